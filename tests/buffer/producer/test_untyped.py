"""Parts of a column that nothing gives a type (`[]`, `{}`, null): no useless type is recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from headwater.buffer.producer import Handle, Producer
from headwater.buffer.stream import create_stream, open_stream
from headwater.core.errors import Refused
from headwater.store import open_store
from tests.buffer.producer.fakes import fake_stream
from tests.buffer.producer.opened import opened
from tests.store.scripted import virtual

Produce = Callable[[Producer, list[dict[str, Any]]], Awaitable[Handle]]


async def as_rows(producer: Producer, rows: list[dict[str, Any]]) -> Handle:
    return await producer.produce_rows(rows)


async def as_arrow(producer: Producer, rows: list[dict[str, Any]]) -> Handle:
    return await producer.produce_arrow(pa.Table.from_pylist(rows))


both = pytest.mark.parametrize("produce", [as_rows, as_arrow])


@both
@pytest.mark.parametrize(
    ("untyped", "typed", "other", "told"),
    [
        ([], [1], ["x"], "a  list<int64> is inferred, list<string> is given"),
        ([None], [1], ["x"], "a  list<int64> is inferred, list<string> is given"),
        ([[]], [[1]], [["x"]], "a  list<list<int64>> is inferred, list<list<string>> is given"),
        ({}, {"x": 1}, {"x": "t"}, "a  struct<x: int64> is inferred, struct<x: string> is given"),
        (
            {"x": None},
            {"x": 1},
            {"x": "t"},
            "a  struct<x: int64> is inferred, struct<x: string> is given",
        ),
        (
            {"x": []},
            {"x": [1]},
            {"x": ["t"]},
            "a  struct<x: list<int64>> is inferred, struct<x: list<string>> is given",
        ),
    ],
)
@virtual
async def test_what_has_no_type_is_refused_until_there_is_one_and_fits_it_then(
    produce: Produce, untyped: Any, typed: Any, other: Any, told: str
) -> None:
    stream = fake_stream()
    async with await opened(stream) as producer:
        with pytest.raises(Refused, match=r"column 'a.*declare the stream's schema"):
            await produce(producer, [{"id": 1, "a": untyped}])
        assert producer.stream.schema is None, "nothing is recorded of a call that is refused"
        for value in (typed, untyped, None):
            await produce(producer, [{"id": 1, "a": value}])
        with pytest.raises(Refused) as refused:
            await produce(producer, [{"id": 1, "a": other}])
        assert told in str(refused.value)
    found = [row["a"] for one in stream.queues[0].batches() for row in one.records.to_pylist()]
    # An object without its fields has them, as null: the stream records them.
    assert found == [typed, {"x": None} if untyped == {} else untyped, None]


@both
@virtual
async def test_a_field_without_a_type_is_left_out_until_a_value_comes(produce: Produce) -> None:
    stream = fake_stream()
    async with await opened(stream) as producer:
        await produce(producer, [{"a": {"x": None, "y": 1}}])
        schema = producer.stream.schema
        assert schema is not None
        assert schema.field("a").type == pa.struct([("y", pa.int64())])
        await produce(producer, [{"a": {"x": "t", "y": 2}}, {"a": {"x": None, "y": 3}}])
        await produce(producer, [{"a": {"y": 4, "z": None}}, {"a": None}])
    kinds = [one.records.schema.field("a").type for one in stream.queues[0].batches()]
    assert [kind.num_fields for kind in kinds] == [1, 2]
    rows = [row["a"] for one in stream.queues[0].batches() for row in one.records.to_pylist()]
    assert rows[1:] == [{"x": "t", "y": 2}, {"x": None, "y": 3}, {"x": None, "y": 4}, None]


@both
@virtual
async def test_a_type_that_another_producer_recorded_serves_as_well(produce: Produce) -> None:
    store = open_store("memory://")
    await create_stream(store, "orders")
    early = await Producer(store, "orders").open()
    async with Producer(store, "orders") as other:
        await produce(other, [{"id": 1, "a": ["x"]}])
    await (await produce(early, [{"id": 2, "a": []}]))
    await early.close()
    schema = (await open_stream(store, "orders")).schema
    assert schema is not None
    assert schema.field("a").type.value_type == pa.string()


@virtual
async def test_maps_and_large_lists_without_a_type_take_the_streams() -> None:
    stream = fake_stream()
    kinds = (pa.map_(pa.string(), pa.int64()), pa.large_list(pa.int64()))
    untyped = (pa.map_(pa.string(), pa.null()), pa.large_list(pa.null()))
    async with await opened(stream) as producer:
        for m, items in (kinds, untyped):
            columns = [pa.array([[("k", None)], None], m), pa.array([[None], []], items)]
            await producer.produce_arrow(pa.table(columns, names=["m", "l"]))
    (batch,) = stream.queues[0].batches()
    assert (
        batch.records.to_pylist()
        == [
            {"m": [("k", None)], "l": [None]},
            {"m": None, "l": []},
        ]
        * 2
    )


@both
@virtual
async def test_where_types_are_declared_what_has_none_takes_them(produce: Produce) -> None:
    kind = pa.struct([("x", pa.list_(pa.int64()))])
    stream = fake_stream(schema=pa.schema([("id", pa.int64()), ("a", kind)]))
    async with await opened(stream) as producer:
        given: list[Any] = [{"x": []}, {"x": None}, {}, None]
        for value in given:
            await produce(producer, [{"id": 1, "a": value}])
        with pytest.raises(Refused, match="y"):
            await produce(producer, [{"id": 1, "a": {"x": [], "y": None}}])
    rows = [row["a"] for one in stream.queues[0].batches() for row in one.records.to_pylist()]
    assert rows == [{"x": []}, {"x": None}, {"x": None}, None]
