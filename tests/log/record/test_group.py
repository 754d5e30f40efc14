"""What a group carries of a consumed batch, and of rows with typed columns."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pyarrow as pa
import pytest

from headwater.buffer.batch import Call, Calls
from headwater.buffer.consumer.consumed_batch import ConsumedBatch
from headwater.core.errors import Bug
from headwater.log import Group, changes_of, consumed_records
from headwater.log.record.group import check_columns


class _Descriptor:
    """As much of a descriptor as nobody asks for here."""

    calls = b""


def consumed(records: pa.RecordBatch, *calls: Call) -> ConsumedBatch:
    descriptor: Any = _Descriptor()
    return ConsumedBatch(descriptor, records, Calls.of(list(calls)), stream="s", partition=0)


def test_the_ingestion_time_and_the_metadata_of_each_call_come_with_its_records() -> None:
    rows = pa.record_batch({"x": pa.array([1, 2, 3])})
    records = consumed_records(consumed(rows, Call(0, 1000, None), Call(2, 2000, b"m")))
    check_columns(records.schema)
    times = [time.timestamp() for time in records.column("_commit_timestamp").to_pylist()]
    assert times == [1, 1, 2]
    assert records.column("_metadata").to_pylist() == [None, None, b"m"]
    assert records.column("x").to_pylist() == [1, 2, 3]


def test_metadata_that_nobody_gave_is_no_column() -> None:
    rows = pa.record_batch({"x": pa.array([1])})
    assert consumed_records(consumed(rows, Call(0, 1, None))).schema.names == [
        "x",
        "_commit_timestamp",
    ]


def test_typed_columns_are_json_where_a_record_stands_alone() -> None:
    rows = pa.record_batch(
        {
            "n": pa.array([1]),
            "day": pa.array([datetime.date(2024, 1, 2)]),
            "raw": pa.array([b"\x01"]),
            "inner": pa.array([{"list": [1.5, None]}]),
            "_commit_timestamp": pa.array([5000], pa.timestamp("us", "UTC")),
        }
    )
    (change,) = changes_of(Group(1, 1, 1, rows))
    assert change.timestamp_ms == 5
    assert json.loads(change.entity_bytes or b"") == {
        "n": 1,
        "day": "2024-01-02",
        "raw": "01",
        "inner": {"list": [1.5, None]},
    }
    (bare,) = changes_of(Group(1, 1, 1, rows.select(["_commit_timestamp"])))
    assert bare.entity_bytes is None


def test_a_group_has_a_record_for_each_lsn() -> None:
    rows = pa.record_batch({"x": pa.array([1, 2])})
    for first, last in ((1, 3), (2, 1)):
        with pytest.raises(Bug):
            Group(1, first, last, rows)
    group = Group(1, 5, 6, rows)
    assert group.after(6) is None
    assert group.after(4) is group
    assert group.between(7, 9) is None


@pytest.mark.parametrize(
    "kind",
    [
        pa.dense_union([pa.field("x", pa.int8())]),
        pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.list_view(pa.int8()),
        pa.dictionary(pa.int8(), pa.string()),
    ],
    ids=str,
)
def test_a_group_of_types_that_a_log_does_not_take_has_a_size(kind: pa.DataType) -> None:
    assert Group(1, 1, 3, pa.record_batch({"v": pa.nulls(3, kind)})).nbytes > 0
