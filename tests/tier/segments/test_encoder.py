"""A segment: one Parquet object, sorted by LSN, with all that readers prune by."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.core import limits
from headwater.core.errors import Corrupt, NotSupported, Refused, Trimmed
from headwater.log.record import Group, range_hash
from headwater.log.spool import SpoolConfig
from headwater.testing import MemoryWal
from headwater.testing.disk import FaultyDisk
from headwater.tier import decode_event, encode_event
from headwater.tier.errors import NotOneSegment
from headwater.tier.events import stamp, unstamp
from headwater.tier.segments import (
    Receipt,
    SegmentConfig,
    SegmentEncoder,
    SegmentPlan,
    encode_segment,
    log_range,
    receipt_of,
)
from headwater.tier.segments.columns import SegmentColumns
from headwater.tier.segments.seal import read_receipt
from tests.log.given import numbered, opened
from tests.store.scripted import virtual
from tests.tier.given import segment_id
from tests.tier.segments.given import (
    EPOCH_US,
    SMALL,
    by_lsn,
    decoded,
    each,
    encoded,
    lost,
    lsns,
    orders,
    plan_of,
    told,
)


def parquet(data: bytes | bytearray) -> pq.ParquetFile:
    return pq.ParquetFile(io.BytesIO(data))


def test_any_reader_of_parquet_reads_it_sorted_by_lsn() -> None:
    groups = [orders(5, 6), orders(11, 3, term=2)]
    table = parquet(encoded(groups).data).read()
    assert table.column("_lsn").to_pylist() == lsns(groups)
    assert table.column("_term").to_pylist() == [1] * 6 + [2] * 3
    assert table.column("note").to_pylist() == [str(lsn) for lsn in lsns(groups)]


def test_row_groups_are_of_the_size_that_was_asked_for_whatever_the_groups_were() -> None:
    groups = [orders(1, 1), orders(2, 1), orders(3, 500, size=1000), orders(503, 2)]
    segment = encoded(groups, config=SegmentConfig(row_group_bytes=100_000))
    rows = [group.rows for group in segment.description.row_groups]
    assert sum(rows) == 504
    assert len(rows) > 3
    assert all(80 <= count <= 202 for count in rows[:-1]), rows
    of_rows = encoded(groups, config=SegmentConfig(row_group_rows=100))
    assert max(group.rows for group in of_rows.description.row_groups) <= 100


def test_many_small_groups_share_a_row_group() -> None:
    segment = encoded([orders(lsn, 1) for lsn in range(1, 200)], config=None)
    assert len(segment.description.row_groups) == 1
    assert len(segment.description.runs) == 1


def test_readers_can_prune_by_lsn_and_by_key() -> None:
    data = encoded([orders(1, 12)]).data
    metadata = parquet(data).metadata
    bounds = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        lsn, key = group.column(0), group.column(2)
        assert (lsn.path_in_schema, key.path_in_schema) == ("_lsn", "_key")
        assert lsn.has_offset_index
        assert lsn.has_column_index
        assert key.to_dict()["bloom_filter_offset"] is not None
        assert group.sorting_columns == (pq.SortingColumn(0),)
        bounds.append((lsn.statistics.min, lsn.statistics.max))
    assert bounds == [(1, 4), (5, 8), (9, 12)]


def test_pages_have_checksums_for_readers_that_know_nothing_of_ours() -> None:
    segment = encoded([orders(1, 4)])
    stored = segment.description.row_groups[0]
    data = bytearray(segment.data)
    data[stored.offset + stored.size_bytes - 3] ^= 1
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(io.BytesIO(data), page_checksum_verification=True)


def test_it_says_what_it_is() -> None:
    schema = orders(1, 1).records.schema.remove_metadata()
    declared = [pa.schema([schema.field("price")]), pa.schema([schema.field(n) for n in (2, 3)])]
    groups = [orders(5, 6), lost(11, 12, term=1), orders(13, 3, term=4)]
    segment = encoded(groups, declared=declared, sequences=(40, 44))
    said = segment.description
    assert (said.first_lsn, said.last_lsn, said.rows) == (5, 15, 9)
    assert (said.schema_version, said.sequences) == (2, (40, 44))
    assert said.epochs == ((1, 5), (4, 13))
    assert said.max_timestamp_ms == (EPOCH_US + 15_000) // 1000
    assert said.identity == segment_id(7)
    began = told(segment)
    assert (began.start_offset, began.end_offset, began.epochs) == (5, 15, said.epochs)
    assert began.size_bytes == len(segment.data)


def test_the_time_of_a_record_is_its_own_before_that_of_its_call() -> None:
    times = pa.timestamp("us", "UTC")
    records = pa.record_batch(
        {
            "_commit_timestamp": pa.array([9_000_000, 5_000_000], times),
            "_timestamp": pa.array([1_000_000, None], times),
        }
    )
    assert encoded([Group(1, 1, 2, records)]).description.max_timestamp_ms == 5000
    bare = Group(1, 1, 1, pa.record_batch({"_value": pa.array([b"x"])}))
    assert encoded([bare]).description.max_timestamp_ms == 0


def test_records_with_and_without_a_column_share_a_segment_and_stay_apart() -> None:
    groups = [orders(1, 3), orders(4, 3, headers=True), orders(7, 3)]
    segment = encoded(groups)
    assert by_lsn(decoded(segment.data)) == by_lsn(groups)
    assert [run.schema for run in segment.description.runs] == [0, 1, 0]


def test_a_segment_of_which_all_is_lost_holds_that() -> None:
    groups = [lost(3, 5), lost(6, 9, cause="drowned")]
    segment = encoded(groups)
    assert by_lsn(decoded(segment.data)) == by_lsn(groups)
    assert parquet(segment.data).read().num_rows == 0


def test_one_type_a_column() -> None:
    of_integers = Group(1, 1, 1, pa.record_batch({"price": pa.array([1])}))
    of_text = Group(1, 2, 2, pa.record_batch({"price": pa.array(["1"])}))
    with pytest.raises(Refused, match="price"):
        encoded([of_integers, of_text])
    with pytest.raises(NotOneSegment):
        SegmentColumns([of_integers.records.schema, of_text.records.schema])
    SegmentColumns([orders(1, 1).records.schema, orders(1, 1, headers=True).records.schema])


def test_a_column_that_was_not_said_beforehand_is_refused() -> None:
    encoder = SegmentEncoder(SegmentPlan(segment_id(7), 1, 2))
    encoder.add(orders(1, 1))
    with pytest.raises(Refused, match="_headers"):
        encoder.add(orders(2, 1, headers=True))


def test_a_column_that_may_not_be_null_is_in_every_record_or_nullable_in_the_segment() -> None:
    strict = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    first = Group(1, 1, 1, pa.RecordBatch.from_arrays([pa.array([1])], schema=strict))
    other = Group(1, 2, 2, pa.record_batch({"b": pa.array([2])}))
    assert by_lsn(decoded(encoded([first, other]).data)) == by_lsn([first, other])
    for later in (other, Group(1, 2, 2, pa.record_batch({"a": pa.array([2])}))):
        encoder = SegmentEncoder(SegmentPlan(segment_id(7), 1, 2))
        encoder.add(first)
        with pytest.raises(Refused, match="another segment"):
            encoder.add(later)


@pytest.mark.parametrize(
    "wrong",
    [orders(3, 1), orders(1, 1), orders(2, 9)],
    ids=["a gap", "again", "too many"],
)
def test_lsns_are_dense_and_those_of_the_plan(wrong: Group) -> None:
    encoder = SegmentEncoder(SegmentPlan(segment_id(7), 1, 4))
    encoder.add(orders(1, 1))
    with pytest.raises(Refused, match="2 to 4"):
        encoder.add(wrong)
    with pytest.raises(Refused, match="missing"):
        encoder.finish()


def test_terms_do_not_fall_and_fit_into_an_event() -> None:
    encoder = SegmentEncoder(plan_of([orders(1, 4)]))
    encoder.add(orders(1, 1, term=5))
    with pytest.raises(Refused, match="term 4"):
        encoder.add(orders(2, 1, term=4))
    with pytest.raises(Refused, match="31 bits"):
        encoder.add(orders(2, 1, term=2**31))


def test_a_segment_above_its_limits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIER_SEGMENT_MAX_BYTES", 1000)
    with pytest.raises(NotOneSegment, match="TIER_SEGMENT_MAX_BYTES"):
        encoded([orders(1, 100)])
    monkeypatch.setattr(limits, "TIER_SEGMENT_RUNS", 2)
    with pytest.raises(NotOneSegment, match="TIER_SEGMENT_RUNS"):
        encoded([orders(1, 1), orders(2, 1, term=2), orders(3, 1, term=3)])


def test_a_plan_and_a_size_that_mean_nothing_are_refused() -> None:
    for first, last in ((0, 1), (2, 1)):
        with pytest.raises(Refused):
            SegmentPlan(segment_id(7), first, last)
    with pytest.raises(Refused):
        SegmentPlan(segment_id(7), 1, 1, sequences=(3, 2))
    with pytest.raises(Refused):
        SegmentConfig(row_group_rows=0)


def test_values_that_come_again_are_in_dictionaries_and_others_are_not() -> None:
    count = 100
    records = pa.record_batch(
        {
            "country": pa.array(["NL", "BE"] * (count // 2)),
            "order": pa.array(range(count)),
            "tags": pa.array([["a"]] * count, pa.list_(pa.field("element", pa.string()))),
        }
    )
    group = parquet(encoded([Group(1, 1, count, records)], config=None).data).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    found = {column.path_in_schema: column.has_dictionary_page for column in columns}
    assert found == {
        "_lsn": False,
        "_term": True,
        "country": True,
        "order": False,
        "tags.list.element": True,
    }


def test_numbers_and_times_that_are_close_to_each_other_are_kept_by_their_differences() -> None:
    count = 100
    counted, scattered = range(10**15, 10**15 + count), [n * 2**40 for n in range(count)]
    records = pa.record_batch(
        {
            "at": pa.array(counted, pa.timestamp("us", "UTC")),
            "order": pa.array(counted),
            "hash": pa.array(scattered),
            "small": pa.array([n * 1000 for n in range(count)], pa.int32()),
            "price": pa.array([n / 7 for n in range(count)]),
        }
    )
    group = parquet(encoded([Group(1, 1, count, records)], config=None).data).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    assert [
        column.path_in_schema for column in columns if "DELTA_BINARY_PACKED" in column.encodings
    ] == ["_lsn", "at", "order"]


def test_the_same_groups_cut_otherwise_are_the_same_records() -> None:
    whole = orders(1, 20)
    cut = [part for low in range(1, 21, 3) if (part := whole.between(low, low + 2)) is not None]
    assert by_lsn(decoded(encoded([whole]).data)) == by_lsn(decoded(encoded(cut).data))
    assert encoded([whole], config=SMALL).data == encoded([whole], config=SMALL).data


# From a log to a segment, and what the events say of it.


RECEIPT = Receipt(3, 4000, 500, 2, (7, 9), bytes(range(16)))


@virtual
async def test_a_range_of_a_spool_becomes_a_segment_with_the_same_hashes() -> None:
    spool = opened(FaultyDisk(), first_lsn=1, config=SpoolConfig(group_bytes=500))
    for first in range(1, 200, 20):
        await spool.append(numbered(first, 20, size=50), term=first // 100 + 1)
    plan = SegmentPlan(segment_id(1), 31, 150)
    segment = await encode_segment(plan, log_range(spool, 31, 150), SegmentConfig(row_group_rows=7))
    found = decoded(segment.data)
    wanted = [group async for group in log_range(spool, 31, 150)]
    assert range_hash(found) == range_hash(wanted)
    assert segment.description.epochs == ((1, 31), (2, 101))
    await spool.close()


@virtual
async def test_what_was_pruned_or_is_not_written_yet_is_no_segment() -> None:
    wal = MemoryWal()
    wal.append(10)
    await wal.prune_through(4)
    with pytest.raises(Trimmed) as caught:
        await encode_segment(SegmentPlan(segment_id(1), 3, 8), log_range(wal, 3, 8))
    assert caught.value.floor_lsn == 5
    with pytest.raises(Refused, match="ends at LSN 10"):
        await encode_segment(SegmentPlan(segment_id(1), 5, 12), log_range(wal, 5, 12))


@virtual
async def test_what_was_pruned_to_the_end_of_the_log_is_trimmed_and_not_unwritten() -> None:
    wal = MemoryWal()
    wal.append(10)
    await wal.prune_through(10)
    with pytest.raises(Trimmed) as caught:
        await encode_segment(SegmentPlan(segment_id(1), 3, 8), log_range(wal, 3, 8))
    assert caught.value.floor_lsn == 11


@virtual
async def test_groups_of_any_size_come_through() -> None:
    groups = [orders(1, 30, size=1 << 20), orders(31, 1)]
    plan = SegmentPlan(segment_id(1), 1, 31)
    segment = await encode_segment(plan, each(groups))
    assert range_hash(decoded(segment.data)) == range_hash(groups)


def test_what_recovery_needs_fits_into_the_custom_metadata() -> None:
    custom = RECEIPT.custom_metadata(2**64 - 1)
    assert len(custom) <= 128
    epoch, payload = unstamp(custom)
    assert (epoch, read_receipt(payload)) == (2**64 - 1, RECEIPT)
    without = RECEIPT._replace(sequences=None)
    assert read_receipt(unstamp(without.custom_metadata(1))[1]) == without
    zero = RECEIPT._replace(sequences=(0, 0))
    assert read_receipt(unstamp(zero.custom_metadata(1))[1]) == zero


def test_the_events_of_a_segment_carry_it() -> None:
    segment = encoded([orders(1, 3)], sequences=(7, 9))
    began = segment.started(broker_id=1, event_timestamp_ms=5, publisher_epoch=3)
    ended = segment.finished(broker_id=1, event_timestamp_ms=6, publisher_epoch=4)
    for event in (began, ended):
        assert decode_event(encode_event(event)) == event
    assert receipt_of(began) == segment.receipt
    assert receipt_of(told(segment)) == segment.receipt
    assert segment.receipt.sequences == (7, 9)


def test_a_receipt_of_another_version_or_size_is_not_guessed_at() -> None:
    payload = unstamp(RECEIPT.custom_metadata(1))[1]
    with pytest.raises(NotSupported, match="Upgrade"):
        read_receipt(b"\x02" + payload[1:])
    with pytest.raises(Corrupt, match="57 bytes"):
        read_receipt(payload[:-1])
    assert read_receipt(b"") is None
    assert stamp(1) == stamp(1, b"")
