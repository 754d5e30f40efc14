"""Partitions, segments and events to test with."""

from __future__ import annotations

import uuid

import msgspec

from headwater.tier import (
    PartitionDelete,
    PartitionDeleteState,
    SegmentId,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TopicIdPartition,
)
from headwater.tier.events import Epochs, stamp, unstamp
from headwater.tier.segments import PreparedSegment

ORDERS = TopicIdPartition(uuid.UUID(int=1), "orders", 0)


def segment_id(number: int, partition: TopicIdPartition = ORDERS) -> SegmentId:
    return SegmentId(partition, uuid.UUID(int=number))


def started(
    number: int,
    start: int,
    end: int,
    *,
    epochs: Epochs | None = None,
    max_ms: int | None = None,
    publisher: int | None = None,
    partition: TopicIdPartition = ORDERS,
) -> SegmentMetadata:
    """A copy that began; under epoch 0 alone unless it is said otherwise."""
    return SegmentMetadata(
        segment_id=segment_id(number, partition),
        start_offset=start,
        end_offset=end,
        broker_id=1,
        max_timestamp_ms=end + 1 if max_ms is None else max_ms,
        event_timestamp_ms=100,
        epochs=((0, start),) if epochs is None else epochs,
        size_bytes=2048,
        custom_metadata=None if publisher is None else stamp(publisher),
    )


def became(
    number: int,
    state: SegmentState,
    *,
    publisher: int | None = None,
    custom: bytes | None = None,
    partition: TopicIdPartition = ORDERS,
) -> SegmentUpdate:
    return SegmentUpdate(
        segment_id=segment_id(number, partition),
        broker_id=1,
        event_timestamp_ms=200,
        state=state,
        custom_metadata=custom if publisher is None else stamp(publisher),
    )


def finished(
    number: int, *, publisher: int | None = None, partition: TopicIdPartition = ORDERS
) -> SegmentUpdate:
    return became(
        number, SegmentState.COPY_FINISHED, publisher=publisher, custom=b"\x07", partition=partition
    )


def partition_delete(
    state: PartitionDeleteState, partition: TopicIdPartition = ORDERS
) -> PartitionDelete:
    return PartitionDelete(partition, 1, 500, state)


def updated(segment: SegmentMetadata, update: SegmentUpdate) -> SegmentMetadata:
    """The segment as an update leaves it."""
    return msgspec.structs.replace(
        segment,
        broker_id=update.broker_id,
        event_timestamp_ms=update.event_timestamp_ms,
        custom_metadata=update.custom_metadata,
        state=update.state,
    )


def copy_started(
    segment: PreparedSegment, *, event_timestamp_ms: int = 0, epoch: int = 1
) -> SegmentMetadata:
    """The event of the publisher with this epoch that the copy of a segment starts."""
    payload = unstamp(segment.metadata.custom_metadata)[1]
    return msgspec.structs.replace(
        segment.metadata,
        broker_id=1,
        event_timestamp_ms=event_timestamp_ms,
        custom_metadata=stamp(epoch, payload),
    )


def copy_finished(
    segment: PreparedSegment, *, event_timestamp_ms: int = 0, epoch: int = 1
) -> SegmentUpdate:
    """The event that the copy of a segment finished."""
    custom = stamp(epoch, unstamp(segment.metadata.custom_metadata)[1])
    return SegmentUpdate(
        segment.metadata.segment_id, 1, event_timestamp_ms, SegmentState.COPY_FINISHED, custom
    )
