"""Metadata events of the tier, as they were first written, with the stamp of their publisher."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from headwater.tier import (
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
from headwater.tier.events import publisher_epoch_of, stamp

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


@pytest.mark.parametrize("name", EVENTS)
def test_events_are_written_and_read_as_they_always_were(name: str) -> None:
    golden = (FOLDER / name).read_bytes()
    assert encode_event(EVENTS[name]) == golden
    found = decode_event(golden)
    assert found == EVENTS[name]
    assert publisher_epoch_of(found) == (None if isinstance(found, PartitionDelete) else 6)
