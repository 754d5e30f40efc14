"""Replaces the old events of a partition by one snapshot, and deletes them later.

    1. read the snapshot below the floor and the events from the floor on
    2. write their result as a new snapshot, and read it back
    3. move the floor to it, unless the floor is there or above already
    4. a grace later: raise `trimmed` to the floor that has settled, then delete

A crash after any step leaves a log that reads as before: with a snapshot that nothing names, or
events that are not needed, both of which a later pass deletes. Any number of compactors may work at
once: the register of the floor decides, and neither `floor` nor `trimmed` goes down, however late a
compactor is. A snapshot is deleted only below `trimmed`, so one that a stalled compactor has yet to
name is not: it can become the floor's only if it ends above.

The grace is time that compactors themselves saw pass while the floor was in place, added up in its
register (`core.lease`): no two clocks are compared, and jobs that run for a second each get there
too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from headwater.core import limits, runtime
from headwater.core.errors import (
    Damaged,
    EntriesTrimmed,
    HeadwaterError,
    LimitExceeded,
    NotSupported,
    Refused,
)
from headwater.core.lease import FloorClock
from headwater.tier.cache import TierCache
from headwater.tier.event_codec import decode_event
from headwater.tier.eventlog.contract import EventDelivered, EventUnreadable
from headwater.tier.eventlog.stored_events import (
    StoredEvents,
    load_snapshot,
    snapshot_key,
    store_snapshot,
)
from headwater.tier.eventlog.stored_floor import PartitionFloor
from headwater.tier.eventlog.stored_log import StoredEventLog

DELETES_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Compaction:
    """What one pass over a partition came to."""

    partition: int
    floor: int
    """Where it is afterwards."""
    events: int
    """How many the pass has put into a snapshot that became the floor's."""
    deleted: int
    """Objects that are gone: events below `trimmed`, and snapshots."""
    stopped_by: HeadwaterError | None = None
    """What cannot be read and cannot be passed; the object is named."""


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
        self._standing: dict[int, FloorClock] = {}
        self._swept: set[int] = set()
        self.failures: dict[int, HeadwaterError] = {}
        """By partition, why its last pass failed or could not go on."""

    async def run(self, interval_s: float = limits.COMPACT_INTERVAL_S) -> None:
        """Pass over all partitions, again and again, until it is cancelled."""
        while True:
            await self.pass_over_all()
            await runtime.sleep(interval_s * runtime.random().uniform(0.5, 1.5))

    async def pass_over_all(self) -> list[Compaction]:
        """One pass over every partition; those that fail are in `failures`."""
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
        """Delete what has been compacted for a grace, then compact if there is enough to.

        With `every_events` other than the compactor's own for this pass.
        """
        events = self._log.events_of(partition)
        clock = self._standing.setdefault(partition, FloorClock())
        floor = await events.floors.look()
        clock.see(floor.settling)
        floor, deleted = await self._trim(events, floor, clock)
        wanted = every_events or self._every_events
        if floor.snapshot is not None:
            wanted = max(wanted, floor.snapshot.size_bytes // limits.COMPACT_BYTES_AN_EVENT)
        done = Compaction(partition, floor.floor, 0, deleted)
        if await events.end() - floor.floor >= wanted:
            raised, taken_in, stopped_by = await self._raise_floor(events, floor)
            done = Compaction(partition, raised, taken_in, deleted, stopped_by)
        if events.floors.is_settling:
            # The process may end here: what it saw pass is written down for the next one.
            clock.see((await events.floors.add_standing_time(clock)).settling)
        return done

    async def _raise_floor(
        self, events: StoredEvents, floor: PartitionFloor
    ) -> tuple[int, int, HeadwaterError | None]:
        """Where the floor is, how many events this has put below it, and what was in the way."""
        cache = TierCache()
        if floor.floor:
            floor, cache = await load_snapshot(events, floor)
        try:
            position, stopped_by = await self._fold(events, floor.floor, cache)
        except EntriesTrimmed as trimmed:
            # Another compactor has been here, and for a grace: it needs no help.
            return trimmed.first_offset, 0, None
        if position == floor.floor:
            return floor.floor, 0, stopped_by
        name = await store_snapshot(events, cache, position - 1)
        moved = await events.floors.move(position, name)
        if moved.snapshot != name:
            # Another compactor's floor is there or above: this snapshot will never be named.
            await events.store.delete(events.keys.snapshot(position - 1, name.token))
            return moved.floor, 0, stopped_by
        return position, position - floor.floor, stopped_by

    async def _fold(
        self, events: StoredEvents, position: int, cache: TierCache
    ) -> tuple[int, HeadwaterError | None]:
        """Apply events up to the end, or to one that cannot be read. Where that is, and why."""
        end = position + limits.COMPACT_MAX_EVENTS
        while position < end:
            found = await events.read_events(position, limits.EVENT_READS_AT_ONCE)
            for item in found:
                error = _apply(events, cache, item)
                if error is not None:
                    return position, error
                position += 1
            if len(found) < limits.EVENT_READS_AT_ONCE:
                break
        return position, None

    async def _trim(
        self, events: StoredEvents, floor: PartitionFloor, clock: FloorClock
    ) -> tuple[PartitionFloor, int]:
        """Give up what a snapshot has held for a grace. The floor, and how many objects went."""
        settling = clock.count(floor.settling)
        raised = settling.floor > floor.trimmed and settling.is_settled(self._grace_s)
        if raised:
            # Once more before anything depends on it: it must be there, and whole.
            floor, _ = await load_snapshot(events, floor)
            floor = await events.floors.trim(settling.floor)
            clock.see(floor.settling)
        if not raised and events.partition in self._swept:
            return floor, 0
        self._swept.discard(events.partition)
        deleted = await self._sweep(events, floor)
        self._swept.add(events.partition)
        return floor, deleted

    async def _sweep(self, events: StoredEvents, floor: PartitionFloor) -> int:
        """Delete the events below `trimmed`, and the snapshots that go no further."""
        deleted, group = 0, []
        async for key in _dead(events, floor):
            group.append(key)
            if len(group) == DELETES_AT_ONCE:
                deleted += await _delete_all(events, group)
                group = []
        return deleted + await _delete_all(events, group)


async def _dead(events: StoredEvents, floor: PartitionFloor) -> AsyncIterator[str]:
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


async def _delete_all(events: StoredEvents, keys: list[str]) -> int:
    await asyncio.gather(*(events.store.delete(key) for key in keys))
    return len(keys)


def _apply(
    events: StoredEvents, cache: TierCache, item: EventDelivered | EventUnreadable
) -> HeadwaterError | None:
    """What keeps this event from being part of a snapshot; None if it is."""
    if isinstance(item, EventUnreadable):
        return item.error
    try:
        cache.follow(decode_event(item.payload), item.publisher_epoch)
    except (Damaged, NotSupported, LimitExceeded) as error:
        return type(error)(f"{events.key(item.offset)} holds no event: {error}")
    return None
