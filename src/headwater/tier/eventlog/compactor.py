"""Replaces the old events of a partition by one snapshot, and deletes them later.

    1. read the snapshot below the floor and the events from the floor on
    2. write the resulting state as a new snapshot, and read it back
    3. move the floor to it, unless the floor is there or above
    4. a grace period later: raise `trimmed` to the floor that has settled, then delete

A crash after any step leaves a log that reads as before, with a snapshot that nothing names or
events that are not needed; a later pass deletes both. Any number of compactors may run at once: the
register of the floor decides, and neither `floor` nor `trimmed` goes down, however late a compactor
is. Snapshots are deleted only below `trimmed`. A stalled compactor can move the floor only up, so
never to a snapshot that was deleted.

The grace period is time that compactors themselves observed while the floor was in place, added up
in its register (`core.lease`): no two clocks are compared, and jobs that run for a second each
reach it as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from headwater.core import limits, runtime
from headwater.core.errors import (
    Damaged,
    EntriesTrimmed,
    HeadwaterError,
    LimitExceeded,
    NotSupported,
    Refused,
)
from headwater.core.in_order import in_order
from headwater.core.lease import SettlingClock
from headwater.tier.cache import TierCache
from headwater.tier.event_codec import decode_event
from headwater.tier.eventlog.contract import EventDelivered, EventUnreadable
from headwater.tier.eventlog.stored_events import (
    PartitionFloor,
    StoredEvents,
    load_snapshot,
    snapshot_key,
    store_snapshot,
)
from headwater.tier.eventlog.stored_log import StoredEventLog

DELETES_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of one pass over a partition."""

    partition: int
    floor: int
    """After the pass."""
    events: int
    """How many events the pass compacted into a snapshot that the floor names."""
    deleted: int
    """How many objects it deleted: events below `trimmed`, and snapshots."""
    stopped_by: HeadwaterError | None = None
    """The error of an event that cannot be read, and so cannot be compacted; it names the key."""


class Compactor:
    """Compacts the partitions of a log, in passes."""

    def __init__(
        self,
        log: StoredEventLog,
        *,
        every_events: int = limits.COMPACT_EVENTS,
        grace_s: float = limits.EVENT_GRACE_S,
    ) -> None:
        if every_events < 1:
            raise Refused(f"every_events is {every_events}; compaction takes at least one event")
        if grace_s < limits.EVENT_GRACE_MIN_S:
            raise Refused(
                f"grace_s is {grace_s}; publishers count on at least {limits.EVENT_GRACE_MIN_S} "
                "(EVENT_GRACE_MIN_S)"
            )
        self._log = log
        self._every_events = every_events
        self._grace_s = grace_s
        self._clocks: dict[int, SettlingClock] = {}
        self._swept: set[int] = set()
        self.failures: dict[int, HeadwaterError] = {}
        """By partition, why its last pass failed or stopped."""

    async def run(self, interval_s: float = limits.COMPACT_INTERVAL_S) -> None:
        """Pass over all partitions again and again, until it is cancelled."""
        while True:
            await self.pass_over_all()
            await runtime.sleep(interval_s * runtime.random().uniform(0.5, 1.5))

    async def pass_over_all(self) -> list[Compaction]:
        done = []
        for partition in range(self._log.partition_count):
            try:
                compaction = await self.compact(partition)
            except HeadwaterError as error:
                self.failures[partition] = error
                continue
            done.append(compaction)
            if compaction.stopped_by is None:
                self.failures.pop(partition, None)
            else:
                self.failures[partition] = compaction.stopped_by
        return done

    async def compact(self, partition: int, *, every_events: int | None = None) -> Compaction:
        """Delete events that were compacted a grace period ago; compact if there are enough.

        `every_events` replaces the compactor's own setting for this pass.
        """
        events = self._log.events_of(partition)
        clock = self._clocks.setdefault(partition, SettlingClock())
        floor = await events.floors.read()
        clock.see(floor.settling)
        floor, deleted = await self._trim(events, floor, clock)
        least = every_events or self._every_events
        if floor.snapshot is not None:
            least = max(least, floor.snapshot.size_bytes // limits.COMPACT_BYTES_AN_EVENT)
        done = Compaction(partition, floor.floor, 0, deleted)
        if await events.end() - floor.floor >= least:
            raised, compacted, stopped_by = await self._raise_floor(events, floor)
            done = Compaction(partition, raised, compacted, deleted, stopped_by)
        leased = events.floors.leased.floor
        if leased.counts_from < leased.needed_from:
            # The process may end here: the next one continues from the time that it observed.
            clock.see((await events.floors.add_observed_time(clock)).settling)
        return done

    async def _raise_floor(
        self, events: StoredEvents, floor: PartitionFloor
    ) -> tuple[int, int, HeadwaterError | None]:
        cache = TierCache()
        if floor.floor:
            floor, cache = await load_snapshot(events, floor)
        try:
            position, stopped_by = await self._fold(events, floor.floor, cache)
        except EntriesTrimmed as trimmed:
            # Another compactor did this more than a grace period ago.
            return trimmed.first_offset, 0, None
        if position == floor.floor:
            return floor.floor, 0, stopped_by
        name = await store_snapshot(events, cache, position - 1)
        moved = await events.floors.move(position, name)
        if moved.snapshot != name:
            # Another compactor's floor is there or above: nothing will ever name this snapshot.
            await events.store.delete(events.keys.snapshot(position - 1, name.token))
            return moved.floor, 0, stopped_by
        return position, position - floor.floor, stopped_by

    async def _fold(
        self, events: StoredEvents, position: int, cache: TierCache
    ) -> tuple[int, HeadwaterError | None]:
        """Apply events up to the end or to an unreadable one; returns the offset and the error."""
        end = position + limits.COMPACT_MAX_EVENTS
        while position < end:
            items = await events.read_events(position, limits.EVENT_READS_AT_ONCE)
            for item in items:
                error = _apply(events, cache, item)
                if error is not None:
                    return position, error
                position += 1
            if len(items) < limits.EVENT_READS_AT_ONCE:
                break
        return position, None

    async def _trim(
        self, events: StoredEvents, floor: PartitionFloor, clock: SettlingClock
    ) -> tuple[PartitionFloor, int]:
        """Delete events that a snapshot has had for a grace period; returns the floor and how many
        objects were deleted."""
        settling = clock.count(floor.settling)
        raised = settling.floor > floor.trimmed and settling.is_settled(self._grace_s)
        if raised:
            # Read once more before anything depends on it: it must exist and be whole.
            floor, _ = await load_snapshot(events, floor)
            floor = await events.floors.trim(settling.floor)
            clock.see(floor.settling)
        if not raised and events.partition in self._swept:
            return floor, 0
        self._swept.discard(events.partition)
        # The events below `trimmed`, and the snapshots that end there.
        keys = _obsolete_keys(events, floor)
        deletes = in_order(keys, events.store.delete, parallel=DELETES_AT_ONCE, name="compaction")
        async with aclosing(deletes) as deleted:
            count = sum([1 async for _ in deleted])
        self._swept.add(events.partition)
        return floor, count


async def _obsolete_keys(events: StoredEvents, floor: PartitionFloor) -> AsyncIterator[str]:
    async for offset in events.numbers():
        if offset >= floor.trimmed:
            break
        yield events.key(offset)
    keys = events.keys
    current = None if floor.snapshot is None else snapshot_key(events, floor)
    async for meta in events.store.list(keys.folder, start_after=keys.before_snapshots):
        through = keys.snapshot_offset(meta.key)
        if through is not None and through < floor.trimmed and meta.key != current:
            yield meta.key


def _apply(
    events: StoredEvents, cache: TierCache, item: EventDelivered | EventUnreadable
) -> HeadwaterError | None:
    if isinstance(item, EventUnreadable):
        return item.error
    try:
        cache.follow(decode_event(item.payload), item.publisher_epoch)
    except (Damaged, NotSupported, LimitExceeded) as error:
        return type(error)(f"{events.key(item.offset)} is not an event: {error}")
    return None
