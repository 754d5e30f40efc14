"""What a stream carries is recorded before the first append; what does not fit is refused."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headwater.buffer.consumer import read
from headwater.buffer.producer import Producer
from headwater.buffer.stream import Stream, alter_stream, create_stream, open_stream
from headwater.core.errors import Denied, NotFound, Refused, Unavailable
from headwater.store import MemoryBackend, Store
from tests.buffer.stream.given import KEY, given
from tests.store.scripted import fails, virtual


async def orders(**settings: Any) -> tuple[Store, Stream]:
    store = Store(MemoryBackend())
    return store, await create_stream(store, "orders", **settings)


async def stored_rows(store: Store, *columns: str) -> list[tuple[Any, ...]]:
    reader = await read(store, "orders").open()
    rows = [row for batch in [batch async for batch in reader] for row in batch.to_pylist()]
    return [tuple(row[name] for name in columns) for row in rows]


async def types(store: Store) -> dict[str, str]:
    config = (await open_stream(store, "orders")).config
    return {column.name: column.type for column in config.schemas[-1].columns}


STRUCT = pa.struct([("street", pa.string())])


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (pa.array([7]), pa.array(["007"]), ("int64", "string")),
        (pa.array([True]), pa.array([2]), ("bool", "int64")),
        (
            pa.array([date(2026, 1, 31)]),
            pa.array([datetime(2026, 1, 31, 5, tzinfo=UTC)]),
            ("date", "timestamp"),
        ),
        (pa.array([1]), pa.array([1.5]), ("int64", "float64")),
        (pa.array([b"x"]), pa.array(["x"]), ("binary", "string")),
        (pa.array([Decimal("1.00")]), pa.array([Decimal("1.000")]), ("decimal(3, 2)", "decimal")),
        (pa.array([[1]]), pa.array([["1"]]), ("list<int64>", "list<string>")),
        (pa.array([{"a": 1}]), pa.array([{"a": "1"}]), ("struct<a: int64>", "struct<a: string>")),
    ],
)
@virtual
async def test_what_is_of_another_type_is_refused_and_the_producer_goes_on(
    first: pa.Array, second: pa.Array, said: tuple[str, str]
) -> None:
    store, stream = await orders()
    async with Producer(stream) as producer:
        await producer.produce_arrow(pa.table({"x": first}))
        before = (await store.get(KEY)).data
        with pytest.raises(Refused) as refused:
            await producer.produce_arrow(pa.table({"x": second}))
        for word in ("'orders'", "x ", *said, "stream alter"):
            assert word in str(refused.value)
        await producer.produce_arrow(pa.table({"x": first}))
        assert (await store.get(KEY)).data == before
    assert await stored_rows(store, "x") == [(first[0].as_py(),)] * 2


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (pa.int8(), pa.int64()),
        (pa.int32(), pa.int64()),
        (pa.float32(), pa.float64()),
        (pa.decimal128(5, 2), pa.decimal128(9, 2)),
        (pa.list_(pa.int32()), pa.list_(pa.int64())),
        (pa.map_(pa.string(), pa.float32()), pa.map_(pa.string(), pa.float64())),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64()), ("b", pa.string())])),
        (pa.dictionary(pa.int8(), pa.string()), pa.large_string()),
        (pa.string_view(), pa.string()),
    ],
)
@pytest.mark.parametrize("narrow_first", [True, False])
@virtual
async def test_a_wider_type_takes_the_place_and_a_narrower_one_is_widened(
    narrow: pa.DataType, wide: pa.DataType, narrow_first: bool
) -> None:
    values = {
        "int": 1,
        "flo": 1.5,
        "dec": Decimal("1.25"),
        "lis": [1],
        "map": [("k", 1.5)],
        "str": {"a": 1} if pa.types.is_struct(narrow) else "x",
        "dic": "x",
    }
    value = values[str(narrow)[:3]]
    store, stream = await orders()
    kinds = (narrow, wide) if narrow_first else (wide, narrow)
    async with Producer(stream) as producer:
        for kind in kinds:
            made = pa.array([value], kind.value_type if pa.types.is_dictionary(kind) else kind)
            column = made.cast(kind) if pa.types.is_dictionary(kind) else made
            await producer.produce_arrow(pa.table({"x": column}))
            await producer.flush()
    read_back = await stored_rows(store, "x")
    expected = {"a": 1, "b": None} if pa.types.is_struct(narrow) else value
    assert read_back == [(expected,)] * 2


def keyed(kind: pa.DataType, key: int) -> pa.Table:
    return pa.table({"x": pa.array([[(key, 1)]], pa.map_(kind, pa.int32()))})


@virtual
async def test_wider_keys_of_a_map_are_refused_by_a_recorded_column() -> None:
    store, stream = await orders()
    async with Producer(stream) as producer:
        await producer.produce_arrow(keyed(pa.int32(), 7))
        with pytest.raises(Refused, match=r"map<int32, int32> is inferred, map<int64, int32>"):
            await producer.produce_arrow(keyed(pa.int64(), 7))
    assert await types(store) == {"x": "map<int32, int32>"}
    assert await stored_rows(store, "x") == [([(7, 1)],)]


@virtual
async def test_narrower_keys_of_a_map_are_carried_as_those_of_the_column() -> None:
    store, stream = await orders()
    async with Producer(stream) as producer:
        await producer.produce_arrow(keyed(pa.int64(), 7))
        added = keyed(pa.int32(), 8).append_column("y", pa.array([1]))
        await producer.produce_arrow(added)
    assert await types(store) == {"x": "map<int64, int32>", "y": "int64"}
    assert await stored_rows(store, "x", "y") == [([(7, 1)], None), ([(8, 1)], 1)]


@virtual
async def test_wider_keys_of_a_map_can_be_declared_if_every_retained_value_fits() -> None:
    store, stream = await orders()
    async with Producer(stream) as producer:
        await producer.produce_arrow(keyed(pa.int32(), 7))
    await alter_stream(store, "orders", schema={"x": "map<int64, int32>"})
    async with Producer(store, "orders") as producer:
        await producer.produce_arrow(keyed(pa.int64(), 1 << 40))
    assert await stored_rows(store, "x") == [([(7, 1)],), ([(1 << 40, 1)],)]


@virtual
async def test_columns_and_fields_are_added_and_never_dropped() -> None:
    store, stream = await orders()
    async with Producer(stream) as producer:
        await producer.produce_rows([{"id": 1, "place": {"street": "a"}}])
        await producer.produce_rows([{"id": 2, "place": {"street": "b", "no": 7}, "name": "n"}])
        await producer.produce_rows([{"name": "m"}])
    assert await stored_rows(store, "id", "place", "name") == [
        (1, {"street": "a", "no": None}, None),
        (2, {"street": "b", "no": 7}, "n"),
        (None, None, "m"),
    ]
    assert await types(store) == {
        "id": "int64",
        "place": "struct<street: string, no: int64>",
        "name": "string",
    }


@virtual
async def test_opaque_values_and_columns_never_share_a_stream() -> None:
    store, stream = await orders()
    async with Producer(stream) as typed, Producer(stream) as opaque:
        await typed.produce_rows([{"id": 1}])
        for values in ([b"v"], [b"v"] * 100):
            with pytest.raises(Refused, match="opaque values"):
                await opaque.produce(values)
        await opaque.produce([None], keys=[b"k"], operations=["delete"])
    assert set(await stored_rows(store, "id", "_key")) == {(1, None), (None, b"k")}

    store, stream = await orders()
    async with Producer(stream) as opaque, Producer(stream) as typed:
        await opaque.produce([b"v"])
        with pytest.raises(Refused, match=r"opaque values.*another stream"):
            await typed.produce_rows([{"id": 1}])
        await typed.produce([b"w"])
    assert sorted(await stored_rows(store, "_value")) == [(b"v",), (b"w",)]


@virtual
async def test_a_producer_learns_what_others_recorded_since_it_was_opened() -> None:
    store, stream = await orders()
    async with Producer(stream) as first, Producer(stream) as second:
        await first.produce_rows([{"id": 1}])
        await first.produce_rows([{"id": 2, "name": "n"}])
        with pytest.raises(Refused, match=r"id .*int64.*string"):
            await second.produce_rows([{"id": "1"}])
        with pytest.raises(Refused, match=r"name .*string.*int64"):
            await second.produce_rows([{"name": 1}])
        await second.produce_rows([{"id": 3, "more": 1.5}])
    assert sorted(await stored_rows(store, "id", "name", "more")) == [
        (1, None, None),
        (2, "n", None),
        (3, None, 1.5),
    ]


@virtual
async def test_of_producers_that_begin_at_once_one_wins_and_the_others_fit_or_are_refused() -> None:
    store, stream = await orders()
    producers = [await Producer(stream).open() for _ in range(4)]
    rows: list[Any] = [{"x": 1, "a": 1}, {"x": "s", "b": 1}, {"x": 2, "c": 1}, {"x": b"b", "d": 1}]
    outcomes = await asyncio.gather(
        *(one.produce_rows([row]) for one, row in zip(producers, rows, strict=True)),
        return_exceptions=True,
    )
    for one in producers:
        await one.close()
    refused = [row for row, out in zip(rows, outcomes, strict=True) if isinstance(out, Refused)]
    kept = [row["x"] for row in rows if row not in refused]
    assert len({type(x) for x in kept}) == 1
    assert sorted(x for (x,) in await stored_rows(store, "x")) == sorted(kept)
    # What was refused has recorded nothing, none of its columns either.
    assert set(await types(store)) == {name for row in rows if row not in refused for name in row}


@virtual
async def test_what_is_carried_is_recorded_before_anything_is_appended() -> None:
    backend, store, plain = given()
    await create_stream(plain, "orders")
    stream = await open_stream(store, "orders", writing=True)
    producer = await Producer(stream, linger_ms=0).open()
    down = fails(Unavailable("503"))
    backend.next("put_if_unchanged", *[down] * 1000)
    for data in ([b"v"], [b"v"] * 50):
        with pytest.raises(Unavailable, match="nothing of this call"):
            await producer.produce(data)
    with pytest.raises(Unavailable, match="nothing of this call"):
        await producer.produce_rows([{"id": 1}])
    backend.forget_steps("put_if_unchanged")
    await producer.produce_rows([{"id": 2}])
    await producer.close()
    assert await stored_rows(plain, "id") == [(2,)]


@virtual
async def test_columns_of_nulls_have_no_type_until_a_value_comes() -> None:
    store, stream = await orders()
    async with Producer(stream) as producer:
        await producer.produce_rows([{"id": 1, "name": None}])
        assert await types(store) == {"id": "int64"}
        await producer.produce_rows([{"id": 2, "name": "n"}])
        await producer.produce_rows([{"id": 3, "name": None}])
        await producer.produce_arrow(pa.table({"id": [4], "name": pa.nulls(1)}))
        with pytest.raises(Refused, match="give it a type"):
            await producer.produce_rows([{"other": None}])
        with pytest.raises(Refused, match="give it a type"):
            await producer.produce_rows([{"id": 5, "tags": []}])
    assert await stored_rows(store, "id", "name") == [(1, None), (2, "n"), (3, None), (4, None)]


@virtual
async def test_a_declared_type_is_not_replaced_and_no_column_is_added_to_it() -> None:
    store, stream = await orders(schema={"id": "int32", "name": "string"})
    before = (await store.get(KEY)).data
    async with Producer(stream) as producer:
        for wrong in ({"id": 2**40}, {"id": 1, "more": 1}, {"id": "1"}):
            with pytest.raises(Refused):
                await producer.produce_rows([wrong])
        with pytest.raises(Refused, match=r"id .*int32.*int64"):
            await producer.produce_arrow(pa.table({"id": [1]}))
        assert (await store.get(KEY)).data == before
        # What is declared meanwhile, an open producer learns.
        await alter_stream(store, "orders", schema={"id": "int64", "name": "string", "at": "date"})
        await producer.produce_rows([{"id": 2**40, "at": date(2026, 1, 31)}])
        await producer.produce_arrow(pa.table({"id": [2**41]}))
    assert await stored_rows(store, "id", "at") == [(2**40, date(2026, 1, 31)), (2**41, None)]


@virtual
async def test_a_stream_that_was_deleted_and_made_again_is_not_recorded_into() -> None:
    from headwater.buffer.stream import delete_stream

    store, stream = await orders()
    producer = await Producer(stream).open()
    await delete_stream(store, "orders")
    with pytest.raises(NotFound):
        await producer.produce_rows([{"id": 1}])
    again = await create_stream(store, "orders")
    with pytest.raises(NotFound, match="created under its name"):
        await producer.produce_rows([{"id": 1}])
    assert (await open_stream(store, "orders")).config == again.config


@virtual
async def test_the_steady_path_asks_nothing_more() -> None:
    store, stream = await orders()
    async with Producer(stream, linger_ms=0) as producer:
        for data in ({"id": 1}, {"id": 2, "name": "n"}):
            await (await producer.produce_rows([data]))
        before = store.stats.requests
        for number in range(10):
            await (await producer.produce_rows([{"id": number}]))
        assert store.stats.requests - before == 10  # one append each, the batch inside


@virtual
async def test_names_that_differ_in_capitals_alone_are_refused_against_what_is_recorded() -> None:
    store, stream = await orders()
    async with Producer(stream) as producer:
        await producer.produce_rows([{"id": 1}])
        with pytest.raises(Refused, match="only in case"):
            await producer.produce_rows([{"ID": 1}])
        await producer.produce_rows([{"id": 2}])
    assert await types(store) == {"id": "int64"}


@virtual
async def test_a_handle_from_before_the_first_record_reads_what_was_recorded_since() -> None:
    _, stream = await orders()
    async with Producer(stream) as producer:
        await producer.produce_rows([{"id": 1}])
    reader = await read(stream).open()
    assert [row["id"] for batch in [one async for one in reader] for row in batch.to_pylist()] == [
        1
    ]


@virtual
async def test_a_producer_that_may_not_write_the_register_says_what_to_do() -> None:
    backend, store, plain = given()
    await create_stream(plain, "orders")
    async with Producer(store, "orders", linger_ms=0) as producer:
        backend.next("put_if_unchanged", fails(Denied("403")))
        with pytest.raises(Denied, match=r"nothing of the call was appended.*stream alter"):
            await producer.produce_rows([{"id": 1}])
        await create_stream_columns(plain)
        await producer.produce_rows([{"id": 2}])
    assert await stored_rows(plain, "id") == [(2,)]


async def create_stream_columns(store: Store) -> None:
    """Somebody who may declares what the stream carries."""
    await alter_stream(store, "orders", schema={"id": "int64"})
