"""Publishes a leader's events, one after the other.

Always holds: no event is published before the outcome of the previous one is known, because a
late event would overtake decisions that assumed it was lost; after a newer epoch was seen,
nothing more is published.
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
from headwater.tier.jobs.interfaces import PartitionMetadata
from headwater.tier.segments import PreparedSegment


class LeaderPublisher:
    """Publishes under one epoch. For one task at a time."""

    def __init__(
        self,
        partition: TopicIdPartition,
        metadata: PartitionMetadata,
        *,
        epoch: int,
        broker_id: int,
    ) -> None:
        self.partition = partition
        self.epoch = epoch
        self.is_over = False
        """Whether a newer leader was heard of."""
        self.said = 0
        """How many events were published, or may have been."""
        self._metadata = metadata
        self._broker_id = broker_id
        self._unsettled: MetadataEvent | None = None

    @property
    def is_settled(self) -> bool:
        """Whether it is known what became of every event so far."""
        return self._unsettled is None

    async def begin(self) -> None:
        """Say that this epoch has begun: from here on, what older ones publish changes nothing.

        Only knowing what they published is not enough: they may go on between the looking and the
        first event of this epoch, and take back what was counted on. The event is about a segment
        that never was, so it changes nothing else, for Kafka's readers either.
        """
        nobody = SegmentId(self.partition, uuid.UUID(bytes=runtime.new_token()))
        await self._publish(self._update(nobody, SegmentState.DELETE_FINISHED, b""))

    async def settle(self) -> None:
        """Find out what became of an event whose outcome is not known, by publishing it again."""
        event = self._unsettled
        if event is None:
            return
        try:
            await self._say(event)
        except (Unavailable, Refused):
            self._unsettled = event  # this time it has not landed; before, nobody knows
            raise
        except EventRejected:
            pass  # what follows from it is there already, and with it the answer

    async def started(self, prepared: PreparedSegment, *, newest_ms: int = 0) -> None:
        """That a copy begins, of records that are at least as new as that."""
        event = prepared.started(
            broker_id=self._broker_id,
            event_timestamp_ms=runtime.wall_ms(),
            publisher_epoch=self.epoch,
        )
        newest_ms = max(newest_ms, event.max_timestamp_ms)
        await self._publish(msgspec.structs.replace(event, max_timestamp_ms=newest_ms))

    async def finished(self, prepared: PreparedSegment) -> None:
        """That a copy is there."""
        await self._publish(
            prepared.finished(
                broker_id=self._broker_id,
                event_timestamp_ms=runtime.wall_ms(),
                publisher_epoch=self.epoch,
            )
        )

    async def unlist(self, segment: SegmentMetadata) -> None:
        """That a segment is to be read no longer; its object is still there."""
        said = unstamp(segment.custom_metadata)[1]
        await self._publish(self._update(segment.segment_id, SegmentState.DELETE_STARTED, said))

    async def unlist_copy(self, segment_id: SegmentId) -> None:
        """That a copy never came to its end."""
        await self._publish(self._update(segment_id, SegmentState.DELETE_STARTED, b""))

    async def deleted(self, segment_id: SegmentId) -> None:
        """That the object of an unlisted segment is gone."""
        await self._publish(self._update(segment_id, SegmentState.DELETE_FINISHED, b""))

    async def partition_deletion(self, state: PartitionDeleteState) -> None:
        """How far the deletion of the whole partition has come."""
        now_ms = runtime.wall_ms()
        await self._publish(PartitionDelete(self.partition, self._broker_id, now_ms, state))

    def _update(self, segment_id: SegmentId, state: SegmentState, said: bytes) -> SegmentUpdate:
        custom = stamp(self.epoch, said)
        return SegmentUpdate(segment_id, self._broker_id, runtime.wall_ms(), state, custom)

    async def _publish(self, event: MetadataEvent) -> None:
        await self.settle()
        await self._say(event)

    async def _say(self, event: MetadataEvent) -> None:
        if self.is_over:
            raise Fenced(f"a leader after epoch {self.epoch} leads {self.partition}")
        # Before the question: whoever is cancelled while it is asked knows nothing either.
        self._unsettled = event
        self.said += 1
        try:
            await self._metadata.publish(event, publisher_epoch=self.epoch)
        except Fenced:
            self.is_over = True
            raise
        except (Unavailable, Refused, EventRejected):
            self._unsettled = None
            raise
        self._unsettled = None
