"""What can still be read of one metadata partition, in order, and where something is missing."""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from typing import NamedTuple, TypeAlias

from headwater.core import limits, runtime
from headwater.core.errors import Corrupt, Damaged, LimitExceeded, NotFound, NotSupported
from headwater.tier.cache import TierCache, restore_all
from headwater.tier.eventlog.stored_events import StoredEvents, decode_event_object, snapshot_key
from headwater.tier.events import MetadataEvent, decode_event, publisher_epoch_of
from headwater.tier.reader.window import in_order
from headwater.tier.snapshot import decode_snapshot


class Missing(NamedTuple):
    """That something before the next item cannot be read."""

    what: str


class Said(NamedTuple):
    """An event, and the epoch that stood beside it."""

    event: MetadataEvent
    publisher_epoch: int | None


Item: TypeAlias = TierCache | Missing | Said


class Remains:
    """The objects of one metadata partition."""

    def __init__(self, events: StoredEvents) -> None:
        self._events = events
        self.end = 0
        """One past the last event that was met."""

    async def items(self) -> AsyncGenerator[Item, None]:
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
            yield Missing(what)
        self.end = begin
        wanted = (offset for offset in offsets if offset >= begin)
        looks = in_order(
            _each(wanted), self._event, parallel=limits.EVENT_READS_AT_ONCE, name="rebuild"
        )
        async with aclosing(looks) as found:
            async for offset, item in found:
                if offset > self.end:
                    last = f" to {events.key(offset - 1)}" if offset > self.end + 1 else ""
                    yield Missing(f"{events.key(self.end)}{last}: gone, and later events are not")
                self.end = offset + 1
                yield item

    async def _floor(self, snapshots: list[str]) -> tuple[int, list[str], list[str]]:
        """Where events begin that count, which snapshots to try for those before, what is lost."""
        events = self._events
        try:
            floor = await events.floors.look()
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

    async def _event(self, offset: int) -> tuple[int, Item]:
        events, key = self._events, self._events.key(offset)
        try:
            data = (await events.store.get(key)).data
            stored = decode_event_object(key, data, events.log_id, events.partition, offset)
        except (Damaged, NotFound) as error:
            return offset, Missing(str(error))
        try:
            said = Said(decode_event(stored.payload), stored.publisher_epoch)
            publisher_epoch_of(said.event)
        except (Damaged, LimitExceeded, NotSupported) as error:
            # Its checksum is right: this was published so, and no restoring makes an event of it.
            return offset, Missing(f"{key}: {error}")
        return offset, said


async def _each(offsets: Iterable[int]) -> AsyncIterator[int]:
    for offset in offsets:
        yield offset
