"""Typed rows, and calls that differ in their columns."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from headwater.buffer.producer import Producer
from headwater.core import runtime
from headwater.core.errors import LimitExceeded, Refused
from headwater.core.limits import MIB, RECORD_MAX_BYTES
from tests.buffer.producer.fakes import FakeStream, fake_stream
from tests.store.scripted import virtual

MANY = 65
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def batches(stream: FakeStream) -> list[list[dict[str, Any]]]:
    return [batch.records.to_pylist() for batch in stream.queues[0].batches()]


def at(ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)


@virtual
async def test_arrow_data_arrive_with_their_reserved_columns() -> None:
    stream = fake_stream()
    table = pa.table({"id": [1, 2], "_key": [b"k", None], "_operation": ["delete", "insert"]})
    async with Producer(stream) as producer:
        handle = await producer.produce_arrow(table, b"m")
        await producer.produce_arrow(table.to_batches()[0])
        assert (await handle).rows == 2
    rows = [{"_key": b"k", "_operation": 2, "id": 1}, {"_key": None, "_operation": 0, "id": 2}]
    assert batches(stream) == [rows * 2]


@virtual
async def test_dicts_arrive_as_columns() -> None:
    stream = fake_stream()
    async with Producer(stream) as producer:
        await producer.produce_rows(
            [
                {"id": 1, "_key": b"k", "_headers": {"h": b"1"}, "_operation": "update"},
                {"id": 2, "name": "n"},
            ]
        )
        await producer.produce_rows(iter([{"id": 3, "name": "m"}]))
        await producer.produce_rows([])
    first, second = batches(stream)[0], batches(stream)[0][2:]
    assert first[0] == {
        "_key": b"k",
        "_headers": [{"key": "h", "value": b"1"}],
        "_operation": 1,
        "id": 1,
        "name": None,
    }
    assert first[1]["_operation"] == 0
    assert second == [{**first[1], "id": 3, "name": "m"}]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ({"id": 1}, "one for each record, not dict"),
        ([1], "one for each record, not int"),
        ([{1: 2}], "names are text"),
        ([{"id": 1}, {"id": "x"}], "column 'id'"),
        ([{"id": None}], "give it a type"),
        ([{"id": 1, "_odd": 1}], "'_odd'"),
        ([{"id": 1, "_operation": "upsert"}], "insert, update"),
    ],
)
@virtual
async def test_rows_that_make_no_columns_are_refused(rows: Any, why: str) -> None:
    stream = fake_stream()
    async with Producer(stream) as producer:
        with pytest.raises(Refused, match=why):
            await producer.produce_rows(rows)
    assert batches(stream) == []


@virtual
async def test_what_is_not_arrow_is_refused_with_advice() -> None:
    async with Producer(fake_stream()) as producer:
        with pytest.raises(Refused, match="produce_rows"):
            await producer.produce_arrow([{"id": 1}])
        with pytest.raises(Refused, match="operations are"):
            await producer.produce_arrow(pa.table({"id": [1], "_operation": pa.array([9])}))
        with pytest.raises(LimitExceeded, match="RECORD_MAX_BYTES"):
            await producer.produce_arrow(pa.table({"id": [bytes(RECORD_MAX_BYTES + 1)]}))


@virtual
async def test_a_declared_schema_decides_what_fits() -> None:
    stream = fake_stream(schema=SCHEMA)
    async with Producer(stream) as producer:
        await producer.produce_arrow(pa.table({"name": ["n"], "id": pa.array([1], pa.int32())}))
        await producer.produce_rows([{"id": 2}])
        # A delete needs its key and no columns.
        await producer.produce([None], keys=[b"k"], operations=["delete"])
        for wrong in (pa.table({"id": ["x"]}), pa.table({"name": ["n"]}), pa.table({"ID": [1]})):
            with pytest.raises(Refused, match="schema version 1"):
                await producer.produce_arrow(wrong)
        with pytest.raises(Refused, match="opaque values"):
            await producer.produce([b"v"])
        with pytest.raises(Refused, match="opaque values"):
            await producer.produce([b"v"] * MANY)
    (rows,) = batches(stream)
    assert [(row["id"], row["name"]) for row in rows] == [(1, "n"), (2, None), (None, None)]
    assert [row["_operation"] for row in rows] == [0, 0, 2]
    assert [entry.schema_version for entry in stream.queues[0].entries] == [1]


@virtual
async def test_records_of_other_columns_begin_another_batch_and_keep_their_order() -> None:
    stream = fake_stream()
    async with Producer(stream, linger_ms=10_000) as producer:
        await producer.produce_arrow(pa.table({"id": pa.array([1], pa.int32())}))
        await producer.produce_arrow(pa.table({"id": [2], "_key": [b"k"]}))
        await producer.produce_arrow(pa.table({"name": ["n"], "id": [3]}))
        await producer.produce_arrow(pa.table({"id": pa.array([4], pa.int8())}))
    values = [[row["id"] for row in rows] for rows in batches(stream)]
    assert values == [[1], [2], [3, 4]]
    assert [entry.schema_version for entry in stream.queues[0].entries] == [1, 2, 3]


@virtual
async def test_calls_with_and_without_a_column_share_a_batch_and_absence_keeps_its_meaning() -> (
    None
):
    stream = fake_stream()
    async with Producer(stream, linger_ms=10_000) as producer:
        first_ms = runtime.wall_ms()
        await producer.produce([b"a"])
        await producer.produce([b"b"], keys=[b"k"])
        await runtime.sleep(0.5)
        await producer.produce([b"c"], timestamps=[at(5)], operations=["delete"])
        await producer.produce([b"d"] * MANY)
        await producer.produce([b"e"] * MANY, headers={"h": b"1"})
        await producer.produce([b"f"])
        full = {"_value": [b"g"], "_rid": [7], "_kind": ["row"], "_collection": ["c"]}
        await producer.produce_arrow(pa.table(full))
    (rows,) = batches(stream)
    by_value = {row.pop("_value"): row for row in rows}
    none = {
        "_key": None,
        "_headers": None,
        "_timestamp": at(first_ms),
        "_operation": 0,
        "_collection": "orders",
        "_kind": "entity",
        "_rid": 0,
    }
    later = {**none, "_timestamp": at(first_ms + 500)}
    assert by_value == {
        b"a": none,
        b"b": {**none, "_key": b"k"},
        b"c": {**none, "_timestamp": at(5), "_operation": 2},
        b"d": later,
        b"e": {**later, "_headers": [{"key": "h", "value": b"1"}]},
        b"f": later,
        b"g": {**later, "_rid": 7, "_kind": "row", "_collection": "c"},
    }


@virtual
async def test_a_column_that_nobody_uses_is_not_there() -> None:
    stream = fake_stream()
    async with Producer(stream) as producer:
        await producer.produce([b"a"])
        await producer.produce([b"a"] * MANY)
    (batch,) = stream.queues[0].batches()
    assert batch.records.schema.names == ["_value"]


@pytest.mark.parametrize("kind", ["values", "arrow"])
@virtual
async def test_a_call_larger_than_a_batch_is_cut_and_its_metadata_wait_for_its_end(
    kind: str,
) -> None:
    stream = fake_stream()
    values = [b"%07d" % n + bytes(MIB) for n in range(20)]
    async with Producer(stream, batch_bytes=4 * MIB) as producer:
        await producer.produce([b"before"], b"before")
        if kind == "values":
            handle = await producer.produce(values, b"large")
        else:
            handle = await producer.produce_arrow(pa.table({"_value": values}), b"large")
        await producer.produce([b"after"], b"after")
        accepted = await handle
    queue = stream.queues[0]
    assert queue.values() == [b"before", *values, b"after"]
    assert len(queue.entries) > 5
    assert max(entry.size_bytes for entry in queue.entries) < 5 * MIB
    assert accepted[0].first_lsn == 2
    assert sum(part.rows for part in accepted) == 20
    assert [p.last_lsn + 1 for p in accepted[:-1]] == [p.first_lsn for p in accepted[1:]]
    # Whoever resumes from a batch in the middle repeats the call, whole.
    assert len(accepted) == len(queue.entries)
    ends = [entry.metadata for entry in queue.entries]
    assert ends == [b"before"] * (len(ends) - 1) + [b"after"]
    for batch in queue.batches():
        assert b"large" in batch.calls.columns.column("metadata").to_pylist()
