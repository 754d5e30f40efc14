"""Replays the events of a damaged metadata partition, for `headwater.tier.rebuild`.

`DamagedEvents` reads what is left of the partition, in order, and reports where something is
missing. `EventReplay` applies it to a cache. The events of a segment come in a fixed order, so
most missing events follow from the ones that are left: a segment that finished was started, with
the properties that its object's footer has; one that was removed was unlisted before; a copy that
was under way has finished if its object is there and whole.

Always holds: where nothing is missing, the replay has the same state as every other reader of the
events.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple, TypeAlias

import msgspec

from headwater.core import limits, runtime
from headwater.core.errors import Corrupt, Damaged, LimitExceeded, NotFound, NotSupported
from headwater.core.in_order import in_order
from headwater.store import Store
from headwater.tier.cache import EventOutcome, TierCache
from headwater.tier.errors import EventRejected
from headwater.tier.event_codec import decode_event
from headwater.tier.eventlog.stored_events import StoredEvents, decode_event_object, snapshot_key
from headwater.tier.events import (
    MetadataEvent,
    PartitionDelete,
    PartitionDeleteState,
    SegmentId,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TopicIdPartition,
    publisher_epoch_of,
)
from headwater.tier.segments import ObjectStorage
from headwater.tier.segments.object_storage import segment_key
from headwater.tier.segments.reading import open_index
from headwater.tier.segments.seal import UNKNOWN_XXH3, Receipt
from headwater.tier.snapshot import decode_snapshot, restore_all


async def segment_metadata_of(
    store: Store, segment_id: SegmentId, *, stored_ms: int = 0
) -> SegmentMetadata:
    """The event that started a segment's copy, from the footer of its object.

    `Corrupt` if the footer is damaged or of another segment. It does not have the epoch of the
    leader: the custom metadata have the newest epoch of the records instead.
    """
    key = segment_key(segment_id)
    _, index = await open_index(store, key, None)
    description = index.description
    if description.identity != segment_id:
        raise Corrupt(f"{key} contains {description.identity}")
    receipt = Receipt(
        description.rows,
        index.size_bytes,
        len(index.seal.footer),
        description.schema_version,
        description.sequences,
        UNKNOWN_XXH3,
    )
    return msgspec.structs.replace(
        description.metadata(receipt),
        event_timestamp_ms=stored_ms,
        custom_metadata=receipt.custom_metadata(description.epochs[-1][0]),
    )


class MissingEvents(NamedTuple):
    """Something before the next item cannot be read."""

    what: str


class ReadEvent(NamedTuple):
    event: MetadataEvent
    publisher_epoch: int | None


ReplayItem: TypeAlias = TierCache | MissingEvents | ReadEvent


class DamagedEvents:
    def __init__(self, events: StoredEvents) -> None:
        self._events = events
        self.end = 0
        """One past the last event that was met."""

    async def items(self) -> AsyncGenerator[ReplayItem, None]:
        """What the oldest events come to, if a snapshot says so, and the others one by one."""
        events = self._events
        offsets, snapshots = array("q"), list[str]()
        async for meta in events.store.list(events.folder):
            if (offset := events.number_of(meta.key)) is not None:
                offsets.append(offset)
            elif events.keys.snapshot_offset(meta.key) is not None:
                snapshots.append(meta.key)
        begin, keys, lost = await self._floor(snapshots[::-1])
        for key in keys:
            try:
                behind, cache = await self._snapshot(key)
            except (Damaged, NotFound) as error:
                lost.append(str(error))
                continue
            begin = max(begin, behind)
            yield cache
            break
        # An older snapshot lacks what the lost one has: that is missing behind it.
        for what in lost:
            yield MissingEvents(what)
        self.end = begin
        wanted = (offset for offset in offsets if offset >= begin)
        looks = in_order(wanted, self._event, parallel=limits.EVENT_READS_AT_ONCE, name="rebuild")
        async with aclosing(looks) as items:
            async for offset, item in items:
                if offset > self.end:
                    last = f" to {events.key(offset - 1)}" if offset > self.end + 1 else ""
                    yield MissingEvents(
                        f"{events.key(self.end)}{last}: gone, and later events are not"
                    )
                self.end = offset + 1
                yield item

    async def _floor(self, snapshots: list[str]) -> tuple[int, list[str], list[str]]:
        """Where events begin that count, which snapshots to try for those before, what is lost."""
        events = self._events
        try:
            floor = await events.floors.read()
        except Damaged as error:
            return 0, snapshots, [str(error)]
        if not floor.floor:
            return 0, [], []
        named = snapshot_key(events, floor)
        return floor.trimmed, [named, *(key for key in snapshots if key != named)], []

    async def _snapshot(self, key: str) -> tuple[int, TierCache]:
        """The first offset that is not in a snapshot, and what it holds."""
        events = self._events
        data = (await events.store.get(key)).data
        snapshot = await runtime.run_blocking(decode_snapshot, data, key)
        if (snapshot.log_id, snapshot.partition) != (events.log_id, events.partition):
            raise Corrupt(f"{key} is a snapshot of another log or metadata partition")
        return snapshot.through_offset + 1, await runtime.run_blocking(restore_all, snapshot.dumps)

    async def _event(self, offset: int) -> tuple[int, ReplayItem]:
        events, key = self._events, self._events.key(offset)
        try:
            data = (await events.store.get(key)).data
            stored = decode_event_object(key, data, events.log_id, events.partition, offset)
        except (Damaged, NotFound) as error:
            return offset, MissingEvents(str(error))
        try:
            read = ReadEvent(decode_event(stored.payload), stored.publisher_epoch)
            publisher_epoch_of(read.event)
        except (Damaged, LimitExceeded, NotSupported) as error:
            # Its checksum is right: this was published so, and no restoring makes an event of it.
            return offset, MissingEvents(f"{key}: {error}")
        return offset, read


class EventReplay:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._storage = ObjectStorage(store)
        self.cache = TierCache()
        self.missing: list[str] = []
        self.unfinished: set[SegmentId] = set()
        """Unfinished copies where events are missing, and whose objects are missing or damaged."""
        self.excluded: set[SegmentId] = set()
        """Deleted segments, and segments of leaders that were over."""
        self.stopped_deletions: set[TopicIdPartition] = set()
        """Partitions that were being deleted where events are missing: they may be deleted, and in
        use again."""

    async def apply(self, item: ReplayItem) -> None:
        if isinstance(item, TierCache):
            self.cache = item
        elif isinstance(item, MissingEvents):
            await self._apply_missing(item.what)
        else:
            await self._apply_event(item.event, item.publisher_epoch)

    async def _apply_missing(self, what: str) -> None:
        self.missing.append(what)
        for partition in self.cache.partitions():
            state = self.cache.partition(partition)
            for segment in state.unfinished():
                if segment.state is SegmentState.COPY_STARTED:
                    await self._finish_if_whole(segment)
            if state.delete_state is not None:
                self.stopped_deletions.add(partition)
                state.delete_state = None

    async def _finish_if_whole(self, segment: SegmentMetadata) -> None:
        """Treat an unfinished copy as finished if its object is there and whole.

        At this point and not at the end: a leader copies one after the other, so other segments
        finished after it. If it was abandoned, later events unlist it again.
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

    async def _apply_event(self, event: MetadataEvent, epoch: int | None) -> None:
        if isinstance(event, PartitionDelete):
            self._apply_deletion(event, epoch)
            return
        outcome = self.cache.follow(event, epoch)
        if isinstance(event, SegmentMetadata):
            if outcome is EventOutcome.STALE:
                self.excluded.add(event.segment_id)
        elif event.state is SegmentState.DELETE_FINISHED:
            self.excluded.add(event.segment_id)
            if self.missing and isinstance(outcome, EventRejected):
                unlisted = msgspec.structs.replace(event, state=SegmentState.DELETE_STARTED)
                self.cache.follow(unlisted, epoch)
                self.cache.follow(event, epoch)
        elif self.missing and isinstance(outcome, EventRejected):
            await self._apply_to_unknown(event, epoch)

    def _apply_deletion(self, event: PartitionDelete, epoch: int | None) -> None:
        self.stopped_deletions.discard(event.partition)
        for state in PartitionDeleteState:
            if state is event.state or (self.missing and state < event.state):
                self.cache.follow(msgspec.structs.replace(event, state=state), epoch)

    async def _apply_to_unknown(self, event: SegmentUpdate, epoch: int | None) -> None:
        """Apply an update of an unknown segment, if its object can be read."""
        state = self.cache.partition(event.segment_id.partition)
        if state.find(event.segment_id) is not None or event.segment_id in self.excluded:
            return
        try:
            started = await segment_metadata_of(self._store, event.segment_id)
        except (Damaged, NotFound):
            return  # the listing of objects decides
        self.cache.follow(msgspec.structs.replace(started, custom_metadata=None))
        self.cache.follow(event, epoch)
