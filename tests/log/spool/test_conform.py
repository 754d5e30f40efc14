"""Columns that come and go do not make a segment each."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from headwater.core.errors import Bug, Conflict
from headwater.log.record import range_hash
from headwater.log.record.columns import LOG_COLUMNS
from headwater.log.spool import Appended, Spool, SpoolConfig, draft_of
from headwater.log.spool.commit import Ticket
from headwater.log.spool.conform import filled
from headwater.log.spool.spool import _ticket
from headwater.testing.disk import FaultyDisk
from tests.log.given import opened

OPTIONAL = [name for name in LOG_COLUMNS if name != "_value"]


def record(*columns: str) -> pa.RecordBatch:
    """One record with a value and, of these columns, whatever is easy to give."""
    given = {"_key": b"k", "_kind": "row", "_metadata": b"m", "_rid": 7, "_collection": "c"}
    arrays = {"_value": pa.array([b"v"], pa.binary())}
    for name in columns:
        arrays[name] = pa.array([given.get(name)], LOG_COLUMNS[name])
    return pa.record_batch(arrays)


def append_all(spool: Spool, appends: list[pa.RecordBatch]) -> None:
    for records in appends:
        spool.append_blocking(records, term=1)


def ticket_of(records: pa.RecordBatch, first_lsn: int | None = None) -> Ticket:
    return _ticket(draft_of(records), 1, first_lsn, None)


def test_appends_with_and_without_a_column_share_a_segment() -> None:
    spool = opened(FaultyDisk())
    append_all(spool, [record(), record("_key")] * 50)
    assert len(spool.segments()) == 2
    groups = spool.read_since_blocking(2)
    assert {tuple(group.records.schema.names) for group in groups} == {("_value", "_key")}
    keys = [group.records.column("_key")[0].as_py() for group in groups]
    assert keys == [None, b"k"] * 49


def test_a_segment_is_sealed_at_most_once_for_each_column_that_may_be_absent() -> None:
    spool = opened(FaultyDisk())
    every = [record(*pair) for pair in itertools.permutations(OPTIONAL, 2)]
    append_all(spool, every * 2)
    assert len(spool.segments()) <= len(OPTIONAL) + 1


def test_a_record_compares_equal_whatever_columns_its_neighbours_have() -> None:
    mixed, alone = opened(FaultyDisk()), opened(FaultyDisk(), config=SpoolConfig(segment_bytes=1))
    appends = [record("_key"), record("_metadata", "_rid"), record()]
    append_all(mixed, appends)
    append_all(alone, appends)
    assert range_hash(mixed.read_since_blocking(0)) == range_hash(alone.read_since_blocking(0))
    assert mixed.read_since_blocking(2)[0].records.num_columns == 4


def test_what_was_merged_is_forgotten_with_the_next_segment_and_kept_over_a_restart() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    append_all(spool, [record("_key"), record()])
    spool.close_blocking()
    spool = opened(disk)
    append_all(spool, [record()])
    assert len(spool.segments()) == 1
    assert spool.read_since_blocking(2)[0].records.schema.names == ["_value", "_key"]
    spool.seal_blocking()
    append_all(spool, [record()])
    assert spool.read_since_blocking(3)[0].records.schema.names == ["_value"]


def test_the_streams_own_columns_begin_a_segment_each_time_they_change() -> None:
    spool = opened(FaultyDisk())
    append_all(spool, [pa.record_batch({"a": [1]}), pa.record_batch({"a": ["x"]})] * 2)
    assert len(spool.segments()) == 4
    append_all(spool, [record(), pa.record_batch({"a": [1], "_key": pa.array([b"k"])})])
    assert len(spool.segments()) == 6


def test_a_column_that_may_not_be_null_gives_way_to_one_that_is_absent() -> None:
    spool = opened(FaultyDisk())
    strict = record("_key").cast(
        pa.schema([pa.field("_value", pa.binary()), pa.field("_key", pa.binary(), nullable=False)])
    )
    append_all(spool, [strict, record(), strict])
    last = spool.read_since_blocking(0)[-1].records
    assert last.schema.field("_key").nullable
    assert last.column("_key").to_pylist() == [b"k"]


def test_what_a_refused_append_would_have_had_counts_for_nobody_after_it() -> None:
    """It seals the segment for its columns, is refused, and the next one has others."""
    spool = opened(FaultyDisk())
    spool.append_blocking(pa.record_batch({"x": [1]}), term=1)
    refused = ticket_of(pa.record_batch({"x": [2], "_key": pa.array([b"k"])}), first_lsn=99)
    other = ticket_of(pa.record_batch({"y": ["kept"]}))
    spool._writer.flush([refused, other])
    with pytest.raises(Conflict):
        refused.result()
    assert other.result() == Appended(2, 2)
    assert [group.records.to_pylist() for group in spool.read_since_blocking(1)] == [
        [{"y": "kept"}]
    ]


def test_no_column_is_ever_dropped_to_make_records_fit() -> None:
    with pytest.raises(Bug, match="'y'"):
        filled(pa.record_batch({"y": [1]}), pa.schema({"x": pa.int64()}))
