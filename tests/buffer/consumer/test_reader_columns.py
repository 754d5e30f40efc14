"""`headwater.read` shows every batch in one schema, and leaves nothing out silently."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from headwater.buffer.batch import Batch
from headwater.buffer.calls import Call, Calls
from headwater.buffer.consumer import read_async
from headwater.buffer.records import from_arrow
from headwater.core import runtime
from headwater.core.errors import Refused
from tests.buffer.consumer.fakes import FakeQueue
from tests.buffer.consumer.rows import FakeStreamWithSchema, rows_of
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
    reader = await read_async(FakeStreamWithSchema(queue, schema))
    assert reader.schema.names[:3] == ["n", "s", "_key"]
    assert [(row["n"], row["s"]) for row in await rows_of(reader)] == [(1, None), (2, "x")]


@virtual
async def test_columns_declared_after_opening_are_left_out() -> None:
    queue = FakeQueue()
    await add_typed(queue, {"n": [1], "later": ["x"]}, schema_version=2)
    schema = pa.schema([("n", pa.int64())])
    reader = await read_async(FakeStreamWithSchema(queue, schema))
    assert [row["n"] for row in await rows_of(reader)] == [1]


@virtual
async def test_columns_from_before_the_schema_that_it_does_not_declare_are_not_left_out() -> None:
    queue = FakeQueue()
    await add_typed(queue, {"n": [1], "undeclared": ["x"]})
    declared = FakeStreamWithSchema(queue, pa.schema([("n", pa.int64())]))
    with pytest.raises(Refused, match=r"has undeclared.*written before the schema was declared"):
        await anext(await read_async(declared))
    assert await rows_of(await read_async(declared, columns=["n"])) == [{"n": 1}]


@virtual
async def test_a_value_too_wide_for_the_schema_of_opening_is_not_cut() -> None:
    queue = FakeQueue()
    await add_typed(queue, {"n": [2**40]})
    reader = await read_async(FakeStreamWithSchema(queue, pa.schema([("n", pa.int32())])))
    with pytest.raises(Refused, match="open it again"):
        await anext(reader)


@virtual
async def test_without_a_declared_schema_the_first_batch_gives_the_columns() -> None:
    queue = FakeQueue()
    await add_typed(queue, {"n": [1]})
    reader = await read_async(queue.stream())
    assert reader.schema.names[:2] == ["n", "_key"]


@virtual
async def test_values_in_another_shape_are_refused_and_not_left_out() -> None:
    queue = FakeQueue()
    await add_typed(queue, {"n": [1]})
    await add_typed(queue, {"n": [1], "more": [2]})
    reader = await read_async(queue.stream())
    await anext(reader)
    with pytest.raises(Refused, match="has more, and its reader shows n"):
        await anext(reader)

    opaque = FakeQueue()
    await opaque.add([b"x"])
    declared = FakeStreamWithSchema(opaque, pa.schema([("n", pa.int64())]))
    with pytest.raises(Refused, match="_value"):
        await anext(await read_async(declared))
    both = await read_async(declared, columns=["_value", "n"])
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
    first, second = await rows_of(await read_async(queue.stream()))
    assert (first["_key"], first["_timestamp"], first["_operation"]) == (b"k", noon, 2)
    assert second["_timestamp"].timestamp() == 1.0
    assert second["_operation"] == 1


@virtual
async def test_columns_can_be_chosen_and_ordered() -> None:
    queue = FakeQueue()
    await queue.add([b"x"], metadata=b"m", at_ms=1)
    chosen = ["_lsn", "_metadata", "_collection", "_kind", "_rid", "_refresh_records"]
    reader = await read_async(queue.stream(), columns=chosen)
    assert reader.schema.names == chosen
    (row,) = await rows_of(reader)
    assert list(row.values()) == [1, b"m", "orders", "entity", 0, None]
    for wrong in (["nothing"], [], ["_lsn", "_lsn"]):
        with pytest.raises(Refused):
            await read_async(queue.stream(), columns=wrong)


@virtual
async def test_what_cannot_be_asked_for_is_refused() -> None:
    queue = FakeQueue()
    wrong: list[dict[str, Any]] = [{"partition": 1}, {"partition": []}, {"on_bad_batch": "no"}]
    for options in wrong:
        with pytest.raises(Refused):
            await read_async(queue.stream(), **options)
    with pytest.raises(Refused, match="which stream"):
        await read_async(queue.store)
