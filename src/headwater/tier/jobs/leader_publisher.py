"""Publishes a leader's events, one after the other.

Always holds: no event is published before the outcome of the previous one is known, because a late
event would overtake decisions that assumed it was lost; after a newer epoch was seen, nothing more
is published.
"""

from __future__ import annotations

import uuid

import msgspec

from headwater.core import runtime
from headwater.core.errors import Fenced, Refused, Unavailable
from headwater.tier.errors import EventRejected
from headwater.tier.events import (
    MetadataEvent,
    PartitionDelete,
    PartitionDeleteState,
    SegmentId,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TopicIdPartition,
    stamp,
    unstamp,
)
from headwater.tier.manager.manager import ManagedPartition
from headwater.tier.segments import PreparedSegment


class LeaderPublisher:
    """Publishes under one epoch. For one task at a time."""

    def __init__(
        self,
        partition: TopicIdPartition,
        metadata: ManagedPartition,
        *,
        epoch: int,
        broker_id: int,
    ) -> None:
        self.partition = partition
        self.epoch = epoch
        self.is_fenced = False
        """Whether a newer leader was seen."""
        self.published = 0
        """How many events were published, or may have been."""
        self._metadata = metadata
        self._broker_id = broker_id
        self._unsettled: MetadataEvent | None = None

    @property
    def is_settled(self) -> bool:
        return self._unsettled is None

    async def begin(self) -> None:
        """Publish the first event of this epoch: events of older leaders are ignored from here on.

        Reading their events is not enough: they may publish more between that and the first event
        of this epoch, and undo what this leader relies on. The event is about a segment that never
        existed, so it changes nothing else, for Kafka's readers either.
        """
        no_segment = SegmentId(self.partition, uuid.UUID(bytes=runtime.new_token()))
        await self._publish_state(no_segment, SegmentState.DELETE_FINISHED)

    async def settle(self) -> None:
        """Learn the outcome of an event whose outcome is unknown, by publishing it again."""
        event = self._unsettled
        if event is None:
            return
        try:
            await self._send(event)
        except (Unavailable, Refused):
            self._unsettled = event  # this attempt was not appended; the earlier one may be
            raise
        except EventRejected:
            pass  # the state has what follows from it already, so it was appended

    async def copy_started(self, prepared: PreparedSegment, *, newest_ms: int = 0) -> None:
        segment = prepared.metadata
        await self._publish(
            msgspec.structs.replace(
                segment,
                broker_id=self._broker_id,
                max_timestamp_ms=max(newest_ms, segment.max_timestamp_ms),
                event_timestamp_ms=runtime.wall_ms(),
                custom_metadata=stamp(self.epoch, _payload(segment)),
            )
        )

    async def copy_finished(self, prepared: PreparedSegment) -> None:
        segment = prepared.metadata
        await self._publish_state(segment.segment_id, SegmentState.COPY_FINISHED, _payload(segment))

    async def unlist(self, segment: SegmentMetadata) -> None:
        """Publish that a segment is no longer read; its object still exists."""
        await self._publish_state(
            segment.segment_id, SegmentState.DELETE_STARTED, _payload(segment)
        )

    async def unlist_copy(self, segment_id: SegmentId) -> None:
        await self._publish_state(segment_id, SegmentState.DELETE_STARTED)

    async def object_removed(self, segment_id: SegmentId) -> None:
        await self._publish_state(segment_id, SegmentState.DELETE_FINISHED)

    async def partition_deletion(self, state: PartitionDeleteState) -> None:
        now_ms = runtime.wall_ms()
        await self._publish(PartitionDelete(self.partition, self._broker_id, now_ms, state))

    async def _publish_state(
        self, segment_id: SegmentId, state: SegmentState, payload: bytes = b""
    ) -> None:
        custom, now_ms = stamp(self.epoch, payload), runtime.wall_ms()
        await self._publish(SegmentUpdate(segment_id, self._broker_id, now_ms, state, custom))

    async def _publish(self, event: MetadataEvent) -> None:
        await self.settle()
        await self._send(event)

    async def _send(self, event: MetadataEvent) -> None:
        if self.is_fenced:
            raise Fenced(f"a leader after epoch {self.epoch} leads {self.partition}")
        # Set before the call: after a cancellation the outcome is unknown, too.
        self._unsettled = event
        self.published += 1
        try:
            await self._metadata.publish(event, publisher_epoch=self.epoch)
        except Fenced:
            self.is_fenced = True
            raise
        except (Unavailable, Refused, EventRejected):
            self._unsettled = None
            raise
        self._unsettled = None


def _payload(segment: SegmentMetadata) -> bytes:
    return unstamp(segment.custom_metadata)[1]
