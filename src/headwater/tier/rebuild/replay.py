"""What the events come to that can be read, though others are missing in between.

Events of a segment come in a known order, so that most that is missing follows from what is there:
a segment that finished had begun, with what it says of itself; one that was removed was unlisted
before; a copy that was under way has finished if it is there and whole.

Always holds: where nothing is missing, this is what everybody knows who follows the events.
"""

from __future__ import annotations

import msgspec

from headwater.core.errors import Damaged, NotFound
from headwater.store import Store
from headwater.tier.cache import Outcome, TierCache
from headwater.tier.errors import EventRejected
from headwater.tier.events import (
    MetadataEvent,
    PartitionDelete,
    PartitionDeleteState,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
)
from headwater.tier.identity import SegmentId, TopicIdPartition
from headwater.tier.rebuild.footers import described
from headwater.tier.rebuild.remains import Item, Missing
from headwater.tier.segments import ObjectStorage


class Replay:
    """What is known of one metadata partition by the items so far."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._storage = ObjectStorage(store)
        self.cache = TierCache()
        self.missing: list[str] = []
        self.unfinished: set[SegmentId] = set()
        """Copies that were under way where something is missing, and are not there or not whole."""
        self.never_count: set[SegmentId] = set()
        """Segments that are deleted, and those of leaders that were over."""
        self.stopped_deletions: set[TopicIdPartition] = set()
        """Partitions that were being deleted where something is missing: it may have ended, and
        they may be in use again."""

    async def take(self, item: Item) -> None:
        """Go on by one item."""
        if isinstance(item, TierCache):
            self.cache = item
        elif isinstance(item, Missing):
            await self._note(item.what)
        else:
            await self._follow(item.event, item.publisher_epoch)

    async def _note(self, what: str) -> None:
        self.missing.append(what)
        for partition in self.cache.partitions():
            known = self.cache.partition(partition)
            if known is None:
                continue
            for segment in known.unfinished():
                if segment.state is SegmentState.COPY_STARTED:
                    await self._finish_perhaps(segment)
            if known.delete_state is not None:
                self.stopped_deletions.add(partition)
                known.delete_state = None

    async def _finish_perhaps(self, segment: SegmentMetadata) -> None:
        """Take a copy that is under way for finished if it is there and whole.

        Here and not at the end: a leader copies one after the other, so whatever else finished
        behind this place did so later. Had it been given up, the events behind unlist it again.
        """
        if segment.segment_id in self.unfinished:
            return
        try:
            await self._storage.fetch_index(segment)
        except (Damaged, NotFound):
            self.unfinished.add(segment.segment_id)
            return
        self.cache.follow(
            SegmentUpdate(
                segment.segment_id,
                segment.broker_id,
                segment.event_timestamp_ms,
                SegmentState.COPY_FINISHED,
                segment.custom_metadata,
            )
        )

    async def _follow(self, event: MetadataEvent, epoch: int | None) -> None:
        if isinstance(event, PartitionDelete):
            self._delete(event, epoch)
            return
        outcome = self.cache.follow(event, epoch)
        if isinstance(event, SegmentMetadata):
            if outcome is Outcome.STALE:
                self.never_count.add(event.segment_id)
        elif event.state is SegmentState.DELETE_FINISHED:
            self.never_count.add(event.segment_id)
            if self.missing and isinstance(outcome, EventRejected):
                unlisted = msgspec.structs.replace(event, state=SegmentState.DELETE_STARTED)
                self.cache.follow(unlisted, epoch)
                self.cache.follow(event, epoch)
        elif self.missing and isinstance(outcome, EventRejected):
            await self._follow_begun(event, epoch)

    def _delete(self, event: PartitionDelete, epoch: int | None) -> None:
        self.stopped_deletions.discard(event.partition)
        for state in PartitionDeleteState:
            if state is event.state or (self.missing and state < event.state):
                self.cache.follow(msgspec.structs.replace(event, state=state), epoch)

    async def _follow_begun(self, event: SegmentUpdate, epoch: int | None) -> None:
        """Follow an update of a segment of which nobody knows, if it is there to be asked."""
        known = self.cache.partition(event.segment_id.partition)
        is_known = known is not None and known.find(event.segment_id) is not None
        if is_known or event.segment_id in self.never_count:
            return
        try:
            began = await described(self._store, event.segment_id)
        except (Damaged, NotFound):
            return  # the listing of objects tells
        self.cache.follow(msgspec.structs.replace(began, custom_metadata=None))
        self.cache.follow(event, epoch)
