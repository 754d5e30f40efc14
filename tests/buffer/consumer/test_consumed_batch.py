"""`headwater.read` shows every batch in one schema, and leaves nothing out silently."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from headwater.buffer.batch import Batch, Call, Calls
from headwater.buffer.consumer import Consumer, read
from headwater.buffer.producer import Producer
from headwater.buffer.records import from_arrow
from headwater.buffer.stream import create_stream
from headwater.core import runtime
from headwater.core.errors import Refused
from headwater.store import Store, open_store
from tests.buffer.consumer.fakes import FakeQueue
from tests.buffer.consumer.given import FakeStreamWithSchema, rows_of
from tests.store.scripted import virtual


async def add_typed(
    queue: FakeQueue, columns: dict[str, Iterable[object]], schema_version: int = 0
) -> None:
    (records,) = from_arrow(pa.table(columns))
    calls = Calls.of([Call(0, 1_000, b"m")])
    await queue.add(batch=Batch(runtime.new_ulid(), records, calls))
    last = queue.entries[-1]
    queue.entries[-1] = msgspec.structs.replace(last, schema_version=schema_version)


@virtual
async def test_older_batches_are_brought_into_the_latest_schema() -> None:
    queue = FakeQueue()
    await add_typed(queue, {"n": pa.array([1], pa.int32())})
    await add_typed(queue, {"n": pa.array([2], pa.int64()), "s": ["x"]})
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    reader = await read(FakeStreamWithSchema(queue, schema)).open()
    assert reader.schema.names[:3] == ["n", "s", "_key"]
    assert [(row["n"], row["s"]) for row in await rows_of(reader)] == [(1, None), (2, "x")]


@virtual
async def test_columns_recorded_after_opening_are_left_out() -> None:
    queue = FakeQueue()
    await add_typed(queue, {"n": [1], "later": ["x"]}, schema_version=2)
    schema = pa.schema([("n", pa.int64())])
    reader = await read(FakeStreamWithSchema(queue, schema)).open()
    assert [row["n"] for row in await rows_of(reader)] == [1]


@virtual
async def test_columns_that_the_stream_never_recorded_are_not_left_out() -> None:
    queue = FakeQueue()
    await add_typed(queue, {"n": [1], "unknown": ["x"]})
    typed = FakeStreamWithSchema(queue, pa.schema([("n", pa.int64())]))
    with pytest.raises(Refused, match=r"has unknown.*not columns of the stream"):
        await anext(await read(typed).open())
    assert await rows_of(await read(typed, columns=["n"]).open()) == [{"n": 1}]


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        (["007"], pa.int64()),
        ([2], pa.bool_()),
        ([datetime(2026, 1, 31, 5, tzinfo=UTC)], pa.date32()),
        ([0.1], pa.float32()),
        ([1.5], pa.int64()),
        ([{"a": 1, "b": 2}], pa.struct([("a", pa.int64())])),
        ([[{"a": 1, "b": 2}]], pa.list_(pa.field("element", pa.struct([("a", pa.int64())])))),
        ([b"x"], pa.string()),
    ],
)
@virtual
async def test_nothing_is_cast_with_a_loss(written: list[Any], kind: pa.DataType) -> None:
    queue = FakeQueue()
    await add_typed(queue, {"n": written}, schema_version=2)
    reader = await read(FakeStreamWithSchema(queue, pa.schema([("n", kind)]))).open()
    with pytest.raises(Refused, match=r"column 'n' of batch 0.*open it again"):
        await anext(reader)


@virtual
async def test_numbers_that_stay_the_same_are_read_in_another_type() -> None:
    queue = FakeQueue()
    nulls = pa.nulls(2, pa.int64())
    await add_typed(queue, {"n": [1, None], "m": [2.0, None], "s": nulls})
    kinds = [("n", pa.float64()), ("m", pa.decimal128(4, 2)), ("s", pa.date32())]
    with pytest.raises(Refused):  # a float is no decimal, whatever its value
        await anext(await read(FakeStreamWithSchema(queue, pa.schema(kinds))).open())
    kinds[1] = ("m", pa.int32())
    rows = await rows_of(await read(FakeStreamWithSchema(queue, pa.schema(kinds))).open())
    assert [(row["n"], row["m"], row["s"]) for row in rows] == [(1.0, 2, None), (None, None, None)]


@virtual
async def test_a_value_too_wide_for_the_schema_of_opening_is_not_cut() -> None:
    queue = FakeQueue()
    await add_typed(queue, {"n": [2**40]})
    reader = await read(FakeStreamWithSchema(queue, pa.schema([("n", pa.int32())]))).open()
    with pytest.raises(Refused, match="open it again"):
        await anext(reader)


@virtual
async def test_a_reader_from_before_the_first_record_is_opened_again() -> None:
    queue = FakeQueue()
    await add_typed(queue, {"n": [1]}, schema_version=1)
    with pytest.raises(Refused, match=r"has n, and its reader shows _value: open it again"):
        await anext(await read(queue.stream()).open())

    opaque = FakeQueue()
    await opaque.add([b"x"])
    typed = FakeStreamWithSchema(opaque, pa.schema([("n", pa.int64())]))
    with pytest.raises(Refused, match="has _value, and its reader shows n"):
        await anext(await read(typed).open())
    with pytest.raises(Refused, match="has _value, and its reader shows n: it would show null"):
        await anext(await read(typed, columns=["n", "_key"]).open())
    with pytest.raises(Refused, match="has n, and its reader shows _value: it would show null"):
        await anext(await read(queue.stream(), columns=["_value"]).open())
    assert await rows_of(await read(queue.stream(), columns=["_lsn"]).open()) == [{"_lsn": 1}]
    both = await read(typed, columns=["_value", "n"]).open()
    assert await rows_of(both) == [{"_value": b"x", "n": None}]


@virtual
async def test_reserved_columns_that_were_written_are_shown_and_gaps_in_them_filled() -> None:
    queue = FakeQueue()
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    await add_typed(
        queue,
        {
            "n": [1, 2],
            "_key": pa.array([b"k", None], pa.binary()),
            "_timestamp": pa.array([noon, None], pa.timestamp("us", "UTC")),
            "_operation": ["delete", "update"],
        },
    )
    stream = FakeStreamWithSchema(queue, pa.schema([("n", pa.int64())]))
    first, second = await rows_of(await read(stream).open())
    assert (first["_key"], first["_timestamp"], first["_operation"]) == (b"k", noon, 2)
    assert second["_timestamp"].timestamp() == 1.0
    assert second["_operation"] == 1


@virtual
async def test_columns_can_be_chosen_and_ordered() -> None:
    queue = FakeQueue()
    await queue.add([b"x"], metadata=b"m", at_ms=1)
    chosen = ["_lsn", "_metadata", "_collection", "_kind", "_rid", "_refresh_records"]
    reader = await read(queue.stream(), columns=chosen).open()
    assert reader.schema.names == chosen
    (row,) = await rows_of(reader)
    assert list(row.values()) == [1, b"m", "orders", "entity", 0, None]
    for wrong in (["nothing"], [], ["_lsn", "_lsn"]):
        with pytest.raises(Refused):
            await read(queue.stream(), columns=wrong).open()


@virtual
async def test_what_cannot_be_asked_for_is_refused() -> None:
    queue = FakeQueue()
    wrong: list[dict[str, Any]] = [{"partition": 1}, {"partition": []}, {"on_bad_batch": "no"}]
    for options in wrong:
        with pytest.raises(Refused):
            await read(queue.stream(), **options).open()
    with pytest.raises(Refused, match="name of the stream"):
        await read(queue.store).open()


# `ConsumedBatch.table()`: the columns and types of the stream, whatever a batch was written in.


NARROW = pa.table({"id": pa.array([1], pa.int32())})
WIDE = pa.table({"id": pa.array([1 << 40], pa.int64()), "name": ["n"]})


async def produced(store: Store, *tables: pa.Table) -> None:
    """Each table as a batch of its own."""
    for table in tables:
        async with Producer(store, "orders", linger_ms=0) as producer:
            await producer.produce_arrow(table)


@virtual
async def test_batches_from_before_and_after_a_widening_are_one_table() -> None:
    store = open_store("memory://")
    await create_stream(store, "orders")
    await produced(store, NARROW, WIDE)
    async with await Consumer.open(store, "orders", gc=False) as consumer:
        batches = [await consumer.next_batch() for _ in range(2)]
        tables = [batch.table() for batch in batches if batch is not None]
    assert [table.schema.field("id").type for table in tables] == [pa.int64()] * 2
    found = pa.concat_tables(tables).select(["id", "name", "_lsn"]).to_pylist()
    assert found == [
        {"id": 1, "name": None, "_lsn": 1},
        {"id": 1 << 40, "name": "n", "_lsn": 2},
    ]
    assert batches[0] is not None
    assert batches[0].records.schema.field("id").type == pa.int32(), "as it was written"


@virtual
async def test_a_consumer_that_is_open_learns_of_columns_that_come_later() -> None:
    store = open_store("memory://")
    await create_stream(store, "orders")
    async with await Consumer.open(store, "orders", gc=False) as consumer:
        await produced(store, NARROW)
        before = await consumer.next_batch()
        assert before is not None
        assert before.table().schema.field("id").type == pa.int32(), "nothing wider is recorded"
        await produced(store, WIDE, NARROW)
        later = [await consumer.next_batch() for _ in range(2)]
        tables = [batch.table() for batch in (before, *later) if batch is not None]
    assert pa.concat_tables(tables)["id"].to_pylist() == [1, 1 << 40, 1]


@virtual
async def test_a_fetch_handle_takes_the_types_along_and_hides_nothing_that_came_later() -> None:
    store = open_store("memory://")
    await create_stream(store, "orders")
    await produced(store, NARROW, pa.table({"id": pa.array([2], pa.int64())}))
    async with await Consumer.open(store, "orders", gc=False) as consumer:
        await produced(store, WIDE)
        handle = consumer.fetch_handle()
        narrow, wider, widest = await consumer.next_descriptors(3)
        again = pickle.loads(pickle.dumps(handle.recorded))
        assert again.schema == handle.recorded.schema
        tables = [(await handle.fetch(one)).table() for one in (narrow, wider, widest)]
    assert [table.schema.field("id").type for table in tables] == [pa.int64()] * 3
    assert tables[2]["name"].to_pylist() == ["n"]
