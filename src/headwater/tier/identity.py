"""Who a segment belongs to. The id of a stream is Kafka's topic id; names are only words."""

from __future__ import annotations

import uuid
from typing import Final

import msgspec

from headwater.core.errors import LimitExceeded, Refused

NAME_MAX_BYTES: Final = 0x7FFF
"""Kafka's limit for a string."""
PARTITION_MAX: Final = 0x7FFFFFFF


class TopicIdPartition(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A partition of a stream. Two are the same if stream id and partition are; names are words."""

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
            raise Refused(f"the name {self.name!r} is not text that UTF-8 can hold") from None
        if size_bytes > NAME_MAX_BYTES:
            raise LimitExceeded(f"a name has at most {NAME_MAX_BYTES:,} bytes, not {size_bytes:,}")

    @classmethod
    def of_stream(cls, stream_id: str, name: str, partition: int) -> TopicIdPartition:
        """Of a stream as `stream.json` names it."""
        try:
            topic_id = uuid.UUID(stream_id)
        except ValueError:
            raise Refused(f"{stream_id!r} is not the id of a stream, which is a UUID") from None
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
    """A remote segment. Every attempt to copy has an id of its own, so that none is in doubt."""

    partition: TopicIdPartition
    id: uuid.UUID

    def __str__(self) -> str:
        return f"segment {self.id} of {self.partition}"
