"""The three metadata events, checked when they are made: what exists can be written."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from headwater.core.errors import LimitExceeded, Refused
from headwater.tier.events.states import PartitionDeleteState, SegmentState
from headwater.tier.identity import SegmentId, TopicIdPartition

CUSTOM_METADATA_MAX_BYTES: Final = 128
"""Kafka's default for `remote.log.metadata.custom.metadata.max.bytes`."""
_I32: Final = 1 << 31
_I64: Final = 1 << 63

Epochs: TypeAlias = tuple[tuple[int, int], ...]
"""Leader epochs of a segment, oldest first, each with the offset at which it begins."""


class SegmentMetadata(msgspec.Struct, frozen=True, gc=False):
    """A remote segment: which offsets it holds, under which epochs, and how far it has come."""

    segment_id: SegmentId
    start_offset: int
    end_offset: int
    """The last offset, which is in it."""
    broker_id: int
    max_timestamp_ms: int
    event_timestamp_ms: int
    epochs: Epochs
    size_bytes: int
    state: SegmentState = SegmentState.COPY_STARTED
    custom_metadata: bytes | None = None
    txn_index_empty: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.start_offset <= self.end_offset < _I64:
            raise Refused(
                f"offsets {self.start_offset} to {self.end_offset} are no range of a segment: it "
                "begins at 0 or above and ends where it begins or later"
            )
        if not 0 <= self.size_bytes < _I32:
            raise LimitExceeded(
                f"a segment has between 0 and {_I32 - 1:,} bytes, not {self.size_bytes:,}"
            )
        _check_event(self.broker_id, self.event_timestamp_ms, self.custom_metadata)
        _check_timestamp(self.max_timestamp_ms)
        _check_epochs(self.epochs)

    def with_update(self, update: SegmentUpdate) -> SegmentMetadata:
        """As the update has it: state, time, broker and custom metadata are those of the update."""
        if update.segment_id != self.segment_id:
            raise Refused(f"an update of {update.segment_id} is none of {self.segment_id}")
        return msgspec.structs.replace(
            self,
            broker_id=update.broker_id,
            event_timestamp_ms=update.event_timestamp_ms,
            custom_metadata=update.custom_metadata,
            state=update.state,
        )

    def last_offset_of(self, epoch: int) -> int:
        """Where an epoch of this segment ends: before the next one in it, or with the segment."""
        for later, begins in self.epochs:
            if later > epoch:
                return begins - 1
        return self.end_offset


class SegmentUpdate(msgspec.Struct, frozen=True):
    """That a segment came to another state."""

    segment_id: SegmentId
    broker_id: int
    event_timestamp_ms: int
    state: SegmentState
    custom_metadata: bytes | None = None

    def __post_init__(self) -> None:
        _check_event(self.broker_id, self.event_timestamp_ms, self.custom_metadata)


class PartitionDelete(msgspec.Struct, frozen=True):
    """That the deletion of a whole partition came to another state."""

    partition: TopicIdPartition
    broker_id: int
    event_timestamp_ms: int
    state: PartitionDeleteState

    def __post_init__(self) -> None:
        _check_event(self.broker_id, self.event_timestamp_ms, None)


MetadataEvent: TypeAlias = SegmentMetadata | SegmentUpdate | PartitionDelete


def partition_of(event: MetadataEvent) -> TopicIdPartition:
    """Which partition an event is about."""
    if isinstance(event, PartitionDelete):
        return event.partition
    return event.segment_id.partition


def _check_event(broker_id: int, event_timestamp_ms: int, custom_metadata: bytes | None) -> None:
    if not -_I32 <= broker_id < _I32:
        raise Refused(f"broker id {broker_id} does not fit into 32 bits")
    _check_timestamp(event_timestamp_ms)
    if custom_metadata is not None and len(custom_metadata) > CUSTOM_METADATA_MAX_BYTES:
        raise LimitExceeded(
            f"custom metadata has at most {CUSTOM_METADATA_MAX_BYTES} bytes, "
            f"not {len(custom_metadata):,}"
        )


def _check_timestamp(timestamp_ms: int) -> None:
    if not -_I64 <= timestamp_ms < _I64:
        raise Refused(f"the time {timestamp_ms} ms does not fit into 64 bits")


def _check_epochs(epochs: Epochs) -> None:
    if not epochs:
        raise Refused("a segment has at least one leader epoch")
    before_epoch, before_offset = -_I32 - 1, -_I64
    for epoch, offset in epochs:
        if not before_epoch < epoch < _I32 or not before_offset <= offset < _I64:
            raise Refused(
                f"epoch {epoch} at offset {offset} follows {before_epoch} at {before_offset}: "
                "epochs rise, their offsets do not fall, and they fit into 32 and 64 bits"
            )
        before_epoch, before_offset = epoch, offset
