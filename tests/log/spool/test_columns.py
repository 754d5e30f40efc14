"""Columns that come and go do not make a segment each."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from headwater.core.errors import Bug, Conflict, Refused, Unavailable
from headwater.log import Spool, SpoolConfig, changes_of, prepare_append, range_hash
from headwater.log.record.group import LOG_COLUMNS
from headwater.log.spool.codec import fill_columns
from headwater.log.spool.commit import Appended, PendingAppend, WriteBatch
from headwater.log.spool.spool import _pending
from headwater.testing.disk import FaultyDisk
from tests.log.given import opened, wait

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
        wait(spool.append(records, term=1))


def append_of(records: pa.RecordBatch, first_lsn: int | None = None) -> PendingAppend:
    return _pending(prepare_append(records), 1, first_lsn, None)


def test_appends_with_and_without_a_column_share_a_segment() -> None:
    spool = opened(FaultyDisk())
    append_all(spool, [record(), record("_key")] * 50)
    assert len(spool.segments()) == 1
    groups = wait(spool.read_since(2))
    assert {tuple(group.records.schema.names) for group in groups} == {("_value", "_key")}
    keys = [group.records.column("_key")[0].as_py() for group in groups]
    assert keys == [None, b"k"] * 49


def test_no_segment_is_sealed_for_a_new_column() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    every = [record(*pair) for pair in itertools.permutations(OPTIONAL, 2)]
    append_all(spool, every[:30])
    wait(spool.close())
    spool = opened(disk)
    append_all(spool, [*every[30:], *every])
    assert len(spool.segments()) == 1
    columns = [set(group.records.schema.names) for group in wait(spool.read_since(0))]
    assert all(before <= after for before, after in itertools.pairwise(columns))
    assert columns[-1] == {"_value", *OPTIONAL}


def test_a_record_compares_equal_whatever_columns_its_neighbours_have() -> None:
    mixed, alone = opened(FaultyDisk()), opened(FaultyDisk(), config=SpoolConfig(segment_bytes=1))
    appends = [record("_key"), record("_metadata", "_rid"), record()]
    append_all(mixed, appends)
    append_all(alone, appends)
    assert range_hash(wait(mixed.read_since(0))) == range_hash(wait(alone.read_since(0)))
    assert wait(mixed.read_since(2))[0].records.num_columns == 4


def test_what_was_merged_is_forgotten_with_the_next_segment_and_kept_over_a_restart() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    append_all(spool, [record("_key"), record()])
    wait(spool.close())
    spool = opened(disk)
    append_all(spool, [record()])
    assert len(spool.segments()) == 1
    assert wait(spool.read_since(2))[0].records.schema.names == ["_value", "_key"]
    wait(spool.seal())
    append_all(spool, [record()])
    assert wait(spool.read_since(3))[0].records.schema.names == ["_value"]


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
    last = wait(spool.read_since(0))[-1].records
    assert last.schema.field("_key").nullable
    assert last.column("_key").to_pylist() == [b"k"]


def test_what_a_refused_append_would_have_had_counts_for_nobody_after_it() -> None:
    """It has a column that nobody else brings, and is refused."""
    spool = opened(FaultyDisk())
    wait(spool.append(pa.record_batch({"x": [1]}), term=1))
    refused = append_of(pa.record_batch({"x": [2], "_key": pa.array([b"k"])}), first_lsn=99)
    other = append_of(pa.record_batch({"y": ["kept"]}))
    spool._writer.flush([refused, other])
    with pytest.raises(Conflict):
        refused.result()
    assert other.result() == Appended(2, 2)
    assert [group.records.to_pylist() for group in wait(spool.read_since(1))] == [
        [{"x": None, "y": "kept"}]
    ]


def test_no_column_is_ever_dropped_to_make_records_fit() -> None:
    records = pa.record_batch({"y": [1]})
    with pytest.raises(Bug, match="'y'"):
        fill_columns(records, pa.schema({"x": pa.int64()}), own_schema=records.schema)


def test_an_append_is_given_the_columns_of_its_segment_before_it_gets_in_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spool = opened(FaultyDisk())
    append_all(spool, [record("_key")])
    monkeypatch.setattr(WriteBatch, "_conformed", None)
    append_all(spool, [record(), record("_key"), record()])
    assert len(spool.segments()) == 1
    (columns,) = {tuple(group.records.schema.names) for group in wait(spool.read_since(0))}
    assert columns == ("_value", "_key")


def test_columns_that_an_append_was_given_go_again_where_it_begins_a_segment() -> None:
    spool = opened(FaultyDisk())
    append_all(spool, [record("_key")])
    ready = _pending(prepare_append(record(), schema=record("_key").schema), 1, None, None)
    assert ready.frame_schema == record("_key").schema
    wait(spool.seal())
    spool._writer.flush([ready])
    assert wait(spool.read_since(1))[0].records == record()


def test_columns_that_an_append_was_given_take_the_type_of_the_segment_that_it_goes_to() -> None:
    """It was made ready for one segment, and another append begins the next one before it."""
    spool = opened(FaultyDisk())
    first = pa.record_batch({"a": [1], "x": [{"y": 1}]})
    append_all(spool, [first])
    draft = prepare_append(pa.record_batch({"a": [2]}), schema=first.schema)
    ready = _pending(draft, 1, None, None)
    spool._writer.flush([append_of(pa.record_batch({"x": ["text"], "a": [1]})), ready])
    assert ready.result() == (3, 3)
    assert len(spool.segments()) == 2
    assert wait(spool.read_since(2))[0].records.to_pylist() == [{"x": None, "a": 2}]


def test_frames_keep_to_their_size_with_the_nulls_that_they_are_given() -> None:
    config = SpoolConfig(group_bytes=1000)
    for schema in (None, record(*OPTIONAL).schema):
        spool = opened(FaultyDisk(), config=config)
        append_all(spool, [record(*OPTIONAL)])
        narrow = pa.record_batch({"_value": pa.array([b"v"] * 150, pa.binary())})
        ticket = _pending(prepare_append(narrow, group_bytes=1000, schema=schema), 1, None, None)
        spool._writer.flush([ticket])
        assert ticket.result() == (2, 151)
        assert len(spool.segments()) == 1
        assert max(group.nbytes for group in wait(spool.read_since(0))) <= 1000


def test_what_would_be_mostly_nulls_gets_a_segment_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headwater.log.spool.codec.LOG_GROUP_BYTES", 1000)
    narrow = pa.record_batch({"a": pa.array(range(100), pa.int8())})
    wide = narrow.slice(0, 1)
    for name in OPTIONAL:
        wide = wide.append_column(name, pa.nulls(1, LOG_COLUMNS[name]))
    spool = opened(FaultyDisk())
    append_all(spool, [wide, narrow.slice(0, 1), narrow])
    assert [(one.first_lsn, one.last_lsn) for one in spool.segments()] == [(1, 2), (3, 102)]
    assert wait(spool.read_since(2))[0].records == narrow


@pytest.mark.parametrize("error", [MemoryError("none left"), pa.ArrowInvalid("odd")])
def test_an_append_that_cannot_be_given_its_columns_is_refused_alone(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> pa.RecordBatch:
        raise error

    spool = opened(FaultyDisk())
    append_all(spool, [record("_key")])
    monkeypatch.setattr("headwater.log.spool.commit.fill_columns", failing)
    without, beside = append_of(record()), append_of(record("_key"))
    spool._writer.flush([without, beside])
    with pytest.raises((Unavailable, Refused), match=str(error)):
        without.result()
    assert beside.result() == (2, 2)
    assert wait(spool.append(record("_key"), term=1)) == (3, 3)


ROWS = [
    pa.record_batch({"id": [1], "name": ["a"]}),
    pa.record_batch({"id": [2], "name": ["b"], "email": ["x@y"]}),
    pa.record_batch({"id": [3], "phone": ["1"]}),
]


def test_the_streams_own_columns_may_come_and_go_as_well() -> None:
    """JSON-like rows with optional fields: a segment each would be an object each in the tier."""
    spool = opened(FaultyDisk())
    append_all(spool, ROWS * 50)
    assert len(spool.segments()) == 1
    alone = opened(FaultyDisk(), config=SpoolConfig(segment_bytes=1))
    append_all(alone, ROWS * 50)
    groups = wait(spool.read_since(0, max_records=1000))
    assert range_hash(groups) == range_hash(wait(alone.read_since(0, max_records=1000)))
    assert groups[-1].records.schema.names == ["id", "name", "email", "phone"]


def test_a_full_segment_is_followed_by_one_with_the_columns_in_use() -> None:
    spool = opened(FaultyDisk(), config=SpoolConfig(segment_bytes=4_000))
    append_all(spool, ROWS * 50)
    assert spool.metrics.segments_sealed["schema"] == 0
    assert spool.metrics.segments_sealed["size"] > 5
    append_all(spool, ROWS[:1] * 100)
    last = wait(spool.read_since(spool.current_lsn() - 1))[0]
    assert last.records.schema.names == ["id", "name"], "nobody uses the others any more"


@pytest.mark.parametrize(
    "other",
    [
        pa.record_batch({"id": ["1"], "name": ["a"]}),
        pa.record_batch({"_value": pa.array([b"1"], pa.binary())}),
    ],
    ids=["another type", "values as bytes"],
)
def test_only_what_cannot_go_together_begins_a_segment_each_time(other: pa.RecordBatch) -> None:
    spool = opened(FaultyDisk())
    append_all(spool, [ROWS[0], other] * 3)
    assert len(spool.segments()) == 6


def test_too_many_columns_are_not_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.log.spool.codec.TIER_MERGE_COLUMNS", 5)
    spool = opened(FaultyDisk())
    append_all(spool, [pa.record_batch({f"c{number}": [1]}) for number in range(12)])
    widest = max(group.records.num_columns for group in wait(spool.read_since(0)))
    assert widest == 5


def test_the_json_of_a_record_does_not_depend_on_the_columns_of_its_neighbours() -> None:
    spool = opened(FaultyDisk())
    append_all(spool, [ROWS[1], ROWS[0]])
    both = [one.entity_bytes for group in wait(spool.read_since(0)) for one in changes_of(group)]
    assert both[1] == b'{"id":1,"name":"a"}'
