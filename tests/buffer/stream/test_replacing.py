"""The type of an inferred column is replaced if every retained value fits, whoever appends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headwater.buffer.consumer import read
from headwater.buffer.producer import Producer
from headwater.buffer.retained import RetainedBatches
from headwater.buffer.stream import Stream, alter_stream, create_stream, open_stream
from headwater.buffer.stream import handle as stream_handle
from headwater.buffer.transaction.commit import TransactionCommitter
from headwater.buffer.transaction.record import CommitAttempt
from headwater.buffer.transaction.upload import Uploader
from headwater.core import runtime
from headwater.core.errors import Contended, Refused
from headwater.store import Store
from tests.buffer.stream.given import KEY, given
from tests.store.scripted import Scripted, virtual

Action = Callable[[], Awaitable[None]]


async def orders(**settings: Any) -> tuple[Store, Stream]:
    _, store, _ = given()
    return store, await create_stream(store, "orders", **settings)


async def produce(store: Store, *rows: dict[str, Any]) -> None:
    async with Producer(store, "orders", linger_ms=0) as producer:
        for row in rows:
            await (await producer.produce_rows([row]))


async def stored_values(store: Store) -> list[Any]:
    reader = await read(store, "orders").open()
    return [x for batch in [batch async for batch in reader] for x in batch.column("x").to_pylist()]


async def column(store: Store) -> tuple[str, str, int]:
    latest = (await open_stream(store, "orders")).config.schemas[-1]
    return latest.columns[0].type, latest.origin, latest.version


class Meanwhile(Scripted):
    """Does something once, before a write of a chunk or of the register is carried out."""

    def __init__(self, inner: Any, part: str, action: Action) -> None:
        super().__init__(inner)
        self._part = part
        self._action: Action | None = action

    async def _do(self, operation: str, key: str, apply: Any) -> Any:
        action = self._action
        if action is not None and operation.startswith("put") and self._part in key:
            self._action = None
            await action()
        return await super()._do(operation, key, apply)


@pytest.mark.parametrize(
    ("values", "declared", "read_back"),
    [
        ([1, None, 3], "float64", [1.0, None, 3.0]),
        ([1, None, 3], "int8", [1, None, 3]),
        ([1.0, 2.0], "int64", [1, 2]),
        ([1, None, 3], "decimal(38, 30)", [Decimal(1), None, Decimal(3)]),
        ([Decimal("1.00"), Decimal("2.00")], "int64", [1, 2]),
        ([None, None], "date", [None, None]),
        ([{"a": 1}, {"a": 2}], "struct<a: float64>", [{"a": 1.0}, {"a": 2.0}]),
        ([["a"], []], "list<string not null>", [["a"], []]),
    ],
)
@virtual
async def test_a_type_is_replaced_where_every_value_fits(
    values: list[Any], declared: str, read_back: list[Any]
) -> None:
    store, _ = await orders()
    kind = pa.array(values).type if any(values) else pa.int64()
    table = pa.table({"x": pa.array(values, kind), "y": [1] * len(values)})
    async with Producer(store, "orders") as producer:
        await producer.produce_arrow(table)
        await producer.flush()
        await alter_stream(store, "orders", schema={"x": declared, "y": "int64"})
        assert await stored_values(store) == read_back
        assert await column(store) == (declared, "declared", 2)
        # One that knows the older types goes on, and what it sends is put into the new ones.
        await producer.produce_arrow(table)
    assert await stored_values(store) == read_back * 2


@pytest.mark.parametrize(
    ("values", "declared", "says"),
    [
        ([1, 2**40], "int32", r"record 2 of partition 0 has 1099511627776 \(.*not in range"),
        ([1.0, 1.5], "int64", r"record 2 of partition 0 has 1\.5"),
        ([0.0, -0.0], "int64", r"record 2 of partition 0 has -0\.0"),
        (["a"], "int64", "record 1 of partition 0 has 'a'"),
        ([1], "string", "record 1 of partition 0 has 1"),
        ([1, 10**9], "decimal(38, 30)", "record 2 of partition 0 has 1000000000"),
        ([Decimal("1.00"), Decimal("1.50")], "int64", r"record 2 .* has Decimal\('1\.50'\)"),
        ([{"a": 1, "b": 2}], "struct<a: int64>", "record 1"),
        ([["a"], [None]], "list<string not null>", "record 2.*null within"),
    ],
)
@virtual
async def test_a_value_that_does_not_fit_keeps_the_type(
    values: list[Any], declared: str, says: str
) -> None:
    store, _ = await orders()
    async with Producer(store, "orders") as producer:
        await producer.produce_arrow(pa.table({"x": values}))
    before = (await store.get(KEY)).data
    with pytest.raises(Refused, match=says):
        await alter_stream(store, "orders", schema={"x": declared})
    assert (await store.get(KEY)).data == before
    assert await stored_values(store) == values


@virtual
async def test_what_a_producer_has_on_its_way_is_put_into_the_new_type_or_dropped() -> None:
    store, _ = await orders()
    await produce(store, {"x": 1})
    async with Producer(store, "orders", linger_ms=10_000) as producer:
        fits = await producer.produce_rows([{"x": 2}])
        await producer.flush()
        wide = await producer.produce_rows([{"x": 2**40}])
        await alter_stream(store, "orders", schema={"x": "int32"})
        with pytest.raises(Refused, match=r"x.*int32 while these records were pending"):
            await producer.flush()
        with pytest.raises(Refused):
            await wide
        assert (await fits).rows == 1
        with pytest.raises(Refused, match="int32"):
            await producer.produce_rows([{"x": 2**41}])
        after = await producer.produce_rows([{"x": 3}])
        await producer.flush()
        assert (await after).first_lsn == 3
    assert await stored_values(store) == [1, 2, 3]


@pytest.mark.parametrize("fits", [True, False])
@virtual
async def test_a_batch_that_is_appended_between_the_check_and_the_fence_is_checked(
    fits: bool,
) -> None:
    backend, plain, _ = given()
    await create_stream(plain, "orders")
    await produce(plain, {"x": 1})
    late = await Producer(plain, "orders", linger_ms=0).open()
    value = 7 if fits else 2**40

    async def append() -> None:
        await (await late.produce_rows([{"x": value}]))

    meanwhile = Store(Meanwhile(backend, "chunks/", append))
    if fits:
        await alter_stream(meanwhile, "orders", schema={"x": "int8"})
        assert (await column(plain))[:2] == ("int8", "declared")
    else:
        with pytest.raises(Refused, match="has 1099511627776"):
            await alter_stream(meanwhile, "orders", schema={"x": "int8"})
        assert (await column(plain))[:2] == ("int64", "inferred")
    await (await late.produce_rows([{"x": 9}]))
    await late.close()
    assert await stored_values(plain) == [1, value, 9]


@virtual
async def test_columns_that_are_recorded_meanwhile_end_it() -> None:
    backend, plain, _ = given()
    await create_stream(plain, "orders")
    await produce(plain, {"x": 1})

    async def add() -> None:
        await produce(plain, {"x": 2, "more": 1})

    meanwhile = Store(Meanwhile(backend, "holds.json", add))
    with pytest.raises(Contended, match="Alter it again"):
        await alter_stream(meanwhile, "orders", schema={"x": "int8"})
    await produce(plain, {"x": 2**41})
    assert await stored_values(plain) == [1, 2, 2**41]
    assert (await column(plain))[:2] == ("int64", "inferred")


@virtual
async def test_a_replacement_that_was_cut_off_is_withdrawn_by_a_producer_that_waits() -> None:
    store, _ = await orders(partitions=2)
    await produce(store, {"x": 1})
    producer = await Producer(store, "orders", linger_ms=0).open()
    real, calls = stream_handle.raise_schema_floor, 0

    async def cut(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            # Nothing after this is carried out, the withdrawal neither.
            await asyncio.Event().wait()
        await real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_handle, "raise_schema_floor", cut)
        altering = asyncio.ensure_future(alter_stream(store, "orders", schema={"x": "int8"}))
        while calls < 2:
            await runtime.sleep(0.01)
        assert (await open_stream(store, "orders")).config.schema_floor == 2
        began_s = runtime.monotonic_s()
        handle = await producer.produce_rows([{"x": 2**40}], partition=0)
        await handle
        assert runtime.monotonic_s() - began_s >= 30
        assert await column(store) == ("int64", "inferred", 2)
        altering.cancel()
        await asyncio.wait([altering])
    await producer.close()
    assert sorted(await stored_values(store)) == [1, 2**40]
    with pytest.raises(Refused, match="1099511627776"):
        await alter_stream(store, "orders", schema={"x": "int8"})
    await alter_stream(store, "orders", schema={"x": "float64"})
    assert sorted(await stored_values(store)) == [1.0, float(2**40)]


@virtual
async def test_open_transactions_keep_the_types_and_later_ones_learn_them() -> None:
    store, stream = await orders()
    await produce(store, {"x": 1})
    stream = await open_stream(store, "orders")
    held = Uploader(stream, CommitAttempt.of_job("a"), 0)
    await held.add(0, pa.record_batch({"x": [2**40]}))
    uploads = await held.finish()
    with pytest.raises(Refused, match="transactions of sinks are open"):
        await alter_stream(store, "orders", schema={"x": "int8"})
    await TransactionCommitter(stream, CommitAttempt.of_job("a")).commit([uploads])
    with pytest.raises(Refused, match="1099511627776"):
        await alter_stream(store, "orders", schema={"x": "int8"})
    await alter_stream(store, "orders", schema={"x": "float64"})
    late = Uploader(stream, CommitAttempt.of_job("b"), 0)
    await late.add(0, pa.record_batch({"x": [2**41 + 1]}))
    await TransactionCommitter(stream, CommitAttempt.of_job("b")).commit([await late.finish()])
    assert await stored_values(store) == [1.0, float(2**40), float(2**41 + 1)]
    unfit = Uploader(stream, CommitAttempt.of_job("c"), 0)
    await unfit.add(0, pa.record_batch({"x": [2**53 + 1]}))
    with pytest.raises(Refused, match="declared as float64 while"):
        await unfit.finish()
    # The first piece is uploaded while the second one is still to be gathered.
    pieces = Uploader(stream, CommitAttempt.of_job("d"), 0, batch_bytes=8)
    with pytest.raises(Refused, match="declared as float64 while"):
        await pieces.add(0, pa.record_batch({"x": [1, 2**53 + 1]}))


@virtual
async def test_a_sink_that_learns_of_replaced_types_half_way_writes_no_older_ones() -> None:
    store, _ = await orders(partitions=2)
    await produce(store, {"x": 1})
    stream, attempt = await open_stream(store, "orders"), CommitAttempt.of_job("a")
    uploader = Uploader(stream, attempt, 0, batch_bytes=64)
    await uploader.add(0, pa.record_batch({"x": [2]}))  # gathered, in the types of now
    await alter_stream(store, "orders", schema={"x": "float64", "note": "string"})
    await uploader.add(1, pa.record_batch({"x": [3.5], "note": ["n" * 100]}))  # uploaded at once
    uploads = await uploader.finish()
    versions = {one.schema_version for part in uploads.uploads.values() for one in part}
    assert versions == {2}
    await TransactionCommitter(stream, attempt).commit([uploads])
    assert sorted(await stored_values(store)) == [1.0, 2.0, 3.5]


@virtual
async def test_a_null_on_its_way_is_refused_where_a_replaced_type_has_none() -> None:
    store, _ = await orders()
    await produce(store, {"x": ["a"]})
    stream = await open_stream(store, "orders")
    producer = await Producer(store, "orders", linger_ms=0).open()
    await alter_stream(store, "orders", schema={"x": "list<string not null>"})
    handle = await producer.produce_rows([{"x": ["b", None]}])
    with pytest.raises(Refused, match="null"):
        await handle
    await producer.close()
    uploader = Uploader(stream, CommitAttempt.of_job("a"), 0)
    await uploader.add(0, pa.record_batch({"x": [["b", None]]}))
    with pytest.raises(Refused, match="null"):
        await uploader.finish()
    assert await stored_values(store) == [["a"]]


async def cut_off(store: Store, schema: dict[str, str], function: str) -> None:
    """An alter that ends where it would call this, and carries out nothing afterwards."""
    reached = asyncio.Event()

    async def cut(*args: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(function, cut)
        altering = asyncio.ensure_future(alter_stream(store, "orders", schema=schema))
        await reached.wait()
    # Not the withdrawal either.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headwater.buffer.retained.withdraw_replacement", lambda now, **_: now)
        altering.cancel()
        await asyncio.wait([altering])


BEFORE_QUEUES = "headwater.buffer.stream.handle.raise_schema_floor"
BEFORE_HOLDS = "headwater.buffer.retained._refuse_older_sinks"


@virtual
async def test_a_replacement_that_was_cut_off_is_withdrawn_by_a_sink_that_waits() -> None:
    store, _ = await orders()
    await produce(store, {"x": 1})
    await cut_off(store, {"x": "int8"}, BEFORE_QUEUES)
    for number in range(2):
        stream, attempt = (
            await open_stream(store, "orders"),
            CommitAttempt.of_query("q", number, "run"),
        )
        uploader = Uploader(stream, attempt, 0)
        await uploader.add(0, pa.record_batch({"x": [2**40 + number]}))
        await TransactionCommitter(stream, attempt).commit([await uploader.finish()])
    assert await column(store) == ("int64", "inferred", 2)
    assert await stored_values(store) == [1, 2**40, 2**40 + 1]


@virtual
async def test_two_replacements_that_were_cut_off_hold_up_neither_producer_nor_sink() -> None:
    store, stream = await orders()
    await produce(store, {"x": 1})
    stream, attempt = await open_stream(store, "orders"), CommitAttempt.of_job("a")
    producer = await Producer(store, "orders", linger_ms=0).open()
    real = stream_handle.raise_schema_floor
    await cut_off(store, {"x": "int8"}, BEFORE_QUEUES)
    # As far as the queue's floor, which `cut_off` left out.
    await real(store, stream.config, 0, 2, lambda sequence: asyncio.sleep(0))
    await cut_off(store, {"x": "int16"}, BEFORE_HOLDS)
    uploader = Uploader(stream, attempt, 0)
    await uploader.add(0, pa.record_batch({"x": [2**40]}))
    handle = await producer.produce_rows([{"x": 2**41}])
    await handle
    await TransactionCommitter(stream, attempt).commit([await uploader.finish()])
    await producer.close()
    assert await column(store) == ("int64", "inferred", 3)
    assert sorted(await stored_values(store)) == [1, 2**40, 2**41]


@virtual
async def test_a_stream_whose_history_is_in_the_tier_keeps_its_types() -> None:
    store, _ = await orders(consumer="nodes")
    await produce(store, {"x": 1})
    with pytest.raises(Refused, match="tier"):
        await alter_stream(store, "orders", schema={"x": "int8"})
    # Wider types need no look at what is there.
    await alter_stream(store, "orders", schema={"x": "int64", "more": "string"})


@virtual
async def test_a_walk_over_batches_that_fails_leaves_no_other_visit_under_way() -> None:
    """Else they would go on with a store that is closed, and count for another partition."""
    store, stream = await orders()
    await produce(store, *({"x": number} for number in range(4)))
    ended: list[int] = []

    async def visit(batch: Any) -> None:
        if not batch.sequence:
            raise Refused("not this one")
        await runtime.sleep(1.0)
        ended.append(batch.sequence)

    with pytest.raises(Refused, match="not this one"):
        await RetainedBatches(stream, 0, visit).through(4)
    assert sorted(ended) == [1, 2, 3]
