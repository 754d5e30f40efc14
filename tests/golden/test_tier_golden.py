"""Metadata events, snapshots and segments of the tier, as they were first written."""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash

from headwater.log.record import Group
from headwater.log.record.group import NO_RECORDS
from headwater.tier import (
    EventOutcome,
    MetadataEvent,
    PartitionDelete,
    PartitionDeleteState,
    SegmentId,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TopicIdPartition,
    decode_event,
    encode_event,
)
from headwater.tier.cache import TierCache
from headwater.tier.events import publisher_epoch_of, stamp, unstamp
from headwater.tier.segments import EncodedSegment, SegmentConfig, SegmentPlan, read_index
from headwater.tier.segments.encoder import SegmentEncoder
from headwater.tier.segments.seal import Receipt, read_receipt
from headwater.tier.snapshot import (
    PartitionDump,
    Snapshot,
    decode_snapshot,
    dump_all,
    encode_snapshot,
    restore_all,
)
from tests.tier.given import updated
from tests.tier.segments.given import by_lsn, decoded

FOLDER = Path(__file__).parent
PLACE = TopicIdPartition.of_stream("7c9e6679-7425-40de-944b-e07fc1f90ae7", "orders", 3)
SEGMENT = SegmentId(PLACE, uuid.UUID("01890a5d-ac96-774b-bcce-b302099a8057"))
EVENTS: dict[str, MetadataEvent] = {
    "segment_event.1": SegmentMetadata(
        segment_id=SEGMENT,
        start_offset=1,
        end_offset=100_000,
        broker_id=1,
        max_timestamp_ms=1_767_225_599_999,
        event_timestamp_ms=1_767_225_600_000,
        epochs=((4, 1), (6, 70_000)),
        size_bytes=33_554_432,
        custom_metadata=stamp(6, b"what recovery needs"),
        txn_index_empty=True,
    ),
    "segment_update_event.1": SegmentUpdate(
        segment_id=SEGMENT,
        broker_id=1,
        event_timestamp_ms=1_767_225_601_000,
        state=SegmentState.COPY_FINISHED,
        custom_metadata=stamp(6),
    ),
    "partition_delete_event.1": PartitionDelete(
        PLACE, 1, 1_767_225_602_000, PartitionDeleteState.MARKED
    ),
}
BEGAN = EVENTS["segment_event.1"]
ENDED = EVENTS["segment_update_event.1"]
assert isinstance(BEGAN, SegmentMetadata)
assert isinstance(ENDED, SegmentUpdate)
SNAPSHOT = Snapshot(
    log_id=uuid.UUID("4f9d3c0a-2f0e-4b7c-9d43-0d1e0c6a55b1"),
    partition_count=50,
    partition=31,
    through_offset=2,
    first_offset=0,
    dumps=(
        PartitionDump(
            partition=PLACE,
            publisher_epoch=6,
            delete_state=PartitionDeleteState.MARKED,
            finishes=1,
            segments=(updated(BEGAN, ENDED),),
            finished=(1,),
            referenced=((4, 1, 0), (6, 70_000, 0)),
            highest=((4, 69_999), (6, 100_000)),
        ),
        PartitionDump(
            partition=TopicIdPartition(PLACE.topic_id, "orders", 4),
            publisher_epoch=9,
            delete_state=None,
            finishes=0,
            segments=(),
            finished=(),
            referenced=(),
            highest=(),
        ),
    ),
)


@pytest.mark.parametrize("name", EVENTS)
def test_events_are_written_and_read_as_they_always_were(name: str) -> None:
    golden = (FOLDER / name).read_bytes()
    assert encode_event(EVENTS[name]) == golden
    found = decode_event(golden)
    assert found == EVENTS[name]
    assert publisher_epoch_of(found) == (None if isinstance(found, PartitionDelete) else 6)


def test_a_snapshot_is_written_and_read_as_it_always_was() -> None:
    golden = (FOLDER / "tier_snapshot.1").read_bytes()
    assert encode_snapshot(SNAPSHOT) == golden
    assert decode_snapshot(golden) == SNAPSHOT


def test_the_golden_snapshot_is_what_the_golden_events_come_to() -> None:
    cache = TierCache()
    for name, event in EVENTS.items():
        beside = 6 if name == "partition_delete_event.1" else None
        assert cache.apply(event, publisher_epoch=beside) is EventOutcome.CHANGED
    assert dump_all(cache) == SNAPSHOT.dumps[:1]
    assert dump_all(restore_all(SNAPSHOT.dumps)) == SNAPSHOT.dumps


def segment() -> EncodedSegment:
    """The segment that is kept: two terms, two schemas, a lost range."""
    times = pa.timestamp("us", "UTC")
    first = pa.record_batch(
        {
            "_key": pa.array([b"a", None, b"c"]),
            "_commit_timestamp": pa.array([1_767_225_600_000_000] * 3, times),
            "price": pa.array([9.5, None, 7.25]),
            "tags": pa.array([["x", None], [], None], pa.list_(pa.field("element", pa.string()))),
        }
    )
    second = first.append_column("_metadata", pa.array([b"m", None, b""]))
    groups = [
        Group(4, 1, 3, first),
        Group(4, 4, 9, NO_RECORDS, lost="its batch could not be read"),
        Group(6, 10, 12, second),
    ]
    declared = [pa.schema([first.schema.field("price"), first.schema.field("tags")])]
    schemas = [first.schema, second.schema]
    plan = SegmentPlan(SEGMENT, 1, 12, schemas, declared, sequences=(5, 8))
    encoder = SegmentEncoder(plan, SegmentConfig(row_group_rows=4))
    for group in groups:
        encoder.add(group)
    return encoder.finish()


def test_a_segment_stays_readable() -> None:
    """Its bytes are the Parquet writer's, which tells its version: only what they say is fixed."""
    data = (FOLDER / "remote_segment.1.parquet").read_bytes()
    assert xxhash.xxh3_128_hexdigest(data) == "c6f32a853b826be9d1702cde588b8c69"
    expected = segment()
    view = memoryview(data)
    said = read_index(view, len(view)).description
    assert said.identity == SEGMENT
    assert said.runs == expected.description.runs
    assert said.schemas == expected.description.schemas
    assert by_lsn(decoded(data)) == by_lsn(decoded(expected.data))


def test_what_events_say_of_a_segment_is_written_and_read_as_it_always_was() -> None:
    golden = (FOLDER / "segment_receipt.1").read_bytes()
    receipt = Receipt(6, 12_345, 6_789, 1, (5, 8), bytes(range(16)))
    assert receipt.custom_metadata(6) == golden
    assert read_receipt(unstamp(golden)[1]) == receipt
