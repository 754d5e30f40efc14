"""Metadata events: what leaders publish about remote segments.

There are three, as in KIP-405: a segment is added, a segment changes its state, a partition is
deleted. Each is checked when it is created, so every event that exists can be encoded.

The id of a stream is Kafka's topic id. Two partitions are equal if stream id and partition are
equal; the stream's name is only a label.

Headwater's own events carry the epoch of their publisher in the custom metadata (128 bytes at
most):

    HWM1 | u64 publisher epoch | payload, which `headwater.tier.segments` defines

Events whose custom metadata begin otherwise come from a Kafka broker or a plugin for one, which
knows nothing of publisher epochs.
"""

from __future__ import annotations

import uuid
from enum import IntEnum
from struct import Struct
from typing import Final, TypeAlias

import msgspec

from headwater.core.errors import Corrupt, LimitExceeded, Refused

NAME_MAX_BYTES: Final = 0x7FFF
"""Kafka's limit for a string."""
PARTITION_MAX: Final = 0x7FFFFFFF


class TopicIdPartition(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A partition of a stream. Two are equal if stream id and partition are, whatever the name."""

    topic_id: uuid.UUID
    name: str
    partition: int

    def __post_init__(self) -> None:
        if not 0 <= self.partition <= PARTITION_MAX:
            raise Refused(f"partition {self.partition} is not between 0 and {PARTITION_MAX}")
        if self.name.isascii() and len(self.name) <= NAME_MAX_BYTES:
            return
        try:
            size_bytes = len(self.name.encode())
        except UnicodeEncodeError:
            raise Refused(f"the name {self.name!r} cannot be encoded in UTF-8") from None
        if size_bytes > NAME_MAX_BYTES:
            raise LimitExceeded(f"a name has at most {NAME_MAX_BYTES:,} bytes, not {size_bytes:,}")

    @classmethod
    def of_stream(cls, stream_id: str, name: str, partition: int) -> TopicIdPartition:
        try:
            topic_id = uuid.UUID(stream_id)
        except ValueError:
            raise Refused(f"{stream_id!r} is not a stream id, which is a UUID") from None
        return cls(topic_id, name, partition)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopicIdPartition):
            return NotImplemented
        return self.topic_id == other.topic_id and self.partition == other.partition

    def __hash__(self) -> int:
        return hash((self.topic_id, self.partition))

    def __str__(self) -> str:
        return f"{self.name}-{self.partition} ({self.topic_id})"


class SegmentId(msgspec.Struct, frozen=True, gc=False):
    """A remote segment. Every attempt to copy has a new id, so the outcome of one is never
    confused with that of another."""

    partition: TopicIdPartition
    id: uuid.UUID

    def __str__(self) -> str:
        return f"segment {self.id} of {self.partition}"


class SegmentState(IntEnum):
    """The state of a remote segment; the numbers are in the format."""

    COPY_STARTED = 0
    COPY_FINISHED = 1
    DELETE_STARTED = 2
    DELETE_FINISHED = 3


class PartitionDeleteState(IntEnum):
    """The state of the deletion of a partition; the numbers are in the format."""

    MARKED = 0
    STARTED = 1
    FINISHED = 2


_SEGMENT_NEXT: Final = {
    SegmentState.COPY_STARTED: (SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED),
    SegmentState.COPY_FINISHED: (SegmentState.DELETE_STARTED,),
    SegmentState.DELETE_STARTED: (SegmentState.DELETE_FINISHED,),
    SegmentState.DELETE_FINISHED: (),
}
_PARTITION_NEXT: Final = {
    PartitionDeleteState.MARKED: PartitionDeleteState.STARTED,
    PartitionDeleteState.STARTED: PartitionDeleteState.FINISHED,
}


def segment_may_become(now: SegmentState | None, then: SegmentState) -> bool:
    """Whether a segment (None: an unknown one) may change to a state, or stay in it."""
    if now is None:
        return then is SegmentState.COPY_STARTED
    return now is then or then in _SEGMENT_NEXT[now]


def partition_may_become(now: PartitionDeleteState | None, then: PartitionDeleteState) -> bool:
    """Whether a deletion (None: none is running) may change to a state, or stay in it."""
    if now is None:
        return then is PartitionDeleteState.MARKED
    return now is then or _PARTITION_NEXT.get(now) is then


NO_BROKER: Final = -1
"""The broker id of events that no leader publishes."""
CUSTOM_METADATA_MAX_BYTES: Final = 128
"""Kafka's default for `remote.log.metadata.custom.metadata.max.bytes`."""
_I32: Final = 1 << 31
_I64: Final = 1 << 63

Epochs: TypeAlias = tuple[tuple[int, int], ...]
"""The leader epochs of a segment, oldest first, each with its first offset."""


class SegmentMetadata(msgspec.Struct, frozen=True, gc=False):
    """A remote segment: its offsets, epochs and state."""

    segment_id: SegmentId
    start_offset: int
    end_offset: int
    """The last offset, inclusive."""
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
                f"offsets {self.start_offset} to {self.end_offset} are not a range of a segment: "
                "it starts at 0 or above, and ends at its start or above"
            )
        if not 0 <= self.size_bytes < _I32:
            raise LimitExceeded(
                f"a segment has between 0 and {_I32 - 1:,} bytes, not {self.size_bytes:,}"
            )
        _check_event(self.broker_id, self.event_timestamp_ms, self.custom_metadata)
        _check_timestamp(self.max_timestamp_ms)
        _check_epochs(self.epochs)

    def last_offset_of(self, epoch: int) -> int:
        for later, begins in self.epochs:
            if later > epoch:
                return begins - 1
        return self.end_offset


class SegmentUpdate(msgspec.Struct, frozen=True):
    """A segment changed its state."""

    segment_id: SegmentId
    broker_id: int
    event_timestamp_ms: int
    state: SegmentState
    custom_metadata: bytes | None = None

    def __post_init__(self) -> None:
        _check_event(self.broker_id, self.event_timestamp_ms, self.custom_metadata)


class PartitionDelete(msgspec.Struct, frozen=True):
    """The deletion of a partition changed its state."""

    partition: TopicIdPartition
    broker_id: int
    event_timestamp_ms: int
    state: PartitionDeleteState

    def __post_init__(self) -> None:
        _check_event(self.broker_id, self.event_timestamp_ms, None)


MetadataEvent: TypeAlias = SegmentMetadata | SegmentUpdate | PartitionDelete


def partition_of(event: MetadataEvent) -> TopicIdPartition:
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


MAGIC: Final = b"HWM1"
EPOCH_MAX: Final = (1 << 64) - 1
_HEAD: Final = Struct(">4sQ")
PAYLOAD_MAX_BYTES: Final = CUSTOM_METADATA_MAX_BYTES - _HEAD.size


def check_epoch(publisher_epoch: int | None) -> None:
    if publisher_epoch is not None and not 0 <= publisher_epoch <= EPOCH_MAX:
        raise Refused(f"epoch {publisher_epoch} does not fit into 64 bits")


def stamp(publisher_epoch: int, payload: bytes = b"") -> bytes:
    check_epoch(publisher_epoch)
    if len(payload) > PAYLOAD_MAX_BYTES:
        raise LimitExceeded(
            f"custom metadata have {PAYLOAD_MAX_BYTES} bytes beside the publisher epoch, not "
            f"{len(payload):,}"
        )
    return _HEAD.pack(MAGIC, publisher_epoch) + payload


def unstamp(custom_metadata: bytes | None) -> tuple[int | None, bytes]:
    if custom_metadata is None or not custom_metadata.startswith(MAGIC):
        return None, custom_metadata or b""
    if len(custom_metadata) < _HEAD.size:
        raise Corrupt(
            f"custom metadata begin with HWM1 and end after {len(custom_metadata)} bytes: "
            f"{_HEAD.size} are needed for the publisher epoch"
        )
    epoch: int = _HEAD.unpack_from(custom_metadata)[1]
    return epoch, custom_metadata[_HEAD.size :]


def publisher_epoch_of(event: MetadataEvent, beside: int | None = None) -> int | None:
    """The publisher epoch of an event, or None.

    A `PartitionDelete` has no custom metadata: the log keeps the epoch `beside` it.
    """
    if isinstance(event, PartitionDelete):
        return beside
    return unstamp(event.custom_metadata)[0]
