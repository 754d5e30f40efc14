"""The numbered events of one metadata partition: where they end, and what stands where.

Always holds: what is returned was judged under a floor that was known afterwards (`floor`); an
event that is missing though a later one is there is `RolledBack`, never passed over.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Awaitable
from typing import TypeVar

from headwater.core import limits
from headwater.core.errors import (
    Damaged,
    HeadwaterError,
    NotFound,
    NotSupported,
    RolledBack,
    Trimmed,
)
from headwater.store import Object, Store
from headwater.tier.eventlog.items import EventDelivered, EventUnreadable
from headwater.tier.eventlog.stored.event_object import decode_event_object
from headwater.tier.eventlog.stored.floor import FloorKeeper
from headwater.tier.eventlog.stored.layout import Place

T = TypeVar("T")


class StoredEvents:
    """One partition, as one handle on the log sees it."""

    def __init__(
        self, store: Store, prefix: str, partition: int, log_id: uuid.UUID, partition_count: int
    ) -> None:
        self.store = store
        self.partition = partition
        self.log_id = log_id
        self.partition_count = partition_count
        self.place = Place(prefix, partition)
        self.floors = FloorKeeper(store, self.place.floor, log_id, partition_count)
        self._next = 0
        self._recent: dict[int, EventDelivered] = {}
        self._is_end_checked = False

    @property
    def next_offset(self) -> int:
        """Every offset below this one is known to be taken; the end may lie further."""
        return self._next

    def know(self, next_offset: int) -> None:
        """Every offset below this one is taken."""
        self._next = max(self._next, next_offset)

    def landed(self, event: EventDelivered) -> None:
        """This handle has published an event: whoever follows through it need not fetch it."""
        self.know(event.offset + 1)
        self._recent[event.offset] = event
        if len(self._recent) > limits.EVENTS_RECENT:
            del self._recent[next(iter(self._recent))]

    async def end(self) -> int:
        """One past the last event.

        A handle that knows the end of a moment ago asks once if nothing was added since. Otherwise
        one page of a listing tells, and past that steps that double and then halve. Where a
        request costs no network there is no listing, which would go through the whole folder.
        """
        while True:
            begin = await self._low()
            found = await self.first_free(begin + 1) if await self.exists(begin) else begin
            floor = await self.floors.after(found)
            if found < floor.floor:
                continue  # a stall: what was there is compacted by now
            if not self._is_end_checked and not await self.is_end(found):
                continue
            self._is_end_checked = True
            self.know(found)
            return found

    async def read(self, start: int, count: int) -> list[EventDelivered | EventUnreadable]:
        """Up to so many events from `start` on; none at the end. `Trimmed` if they are gone."""
        if start in self._recent:
            ready = itertools.takewhile(self._recent.__contains__, range(start, start + count))
            return [self._recent[offset] for offset in ready]
        offsets = range(start, start + count)
        found = await self.with_lease(
            start, asyncio.gather(*(self.get(offset) for offset in offsets))
        )
        absent = found.index(None) if None in found else len(found)
        floor = await self.floors.after(start)
        if start < floor.trimmed:
            raise Trimmed(
                f"{self.place.folder}: the events before {floor.trimmed} are gone",
                floor=floor.floor,
            )
        taken = [offset + 1 for offset, one in zip(offsets, found, strict=True) if one is not None]
        self.know(max(taken, default=0))
        if absent == 0 and start < self._next:
            await self._refuse_hole(start)
        return [
            self._decoded(offset, one)
            for offset, one in zip(offsets[:absent], found[:absent], strict=True)
            if one is not None
        ]

    async def is_end(self, end: int) -> bool:
        """Whether nothing lies beyond what looks like the end; `RolledBack` if it is a hole.

        An event that was deleted by hand looks like an end that was never passed: followers would
        wait there for ever, and the next event would take its offset.
        """
        async for meta in self.store.list(self.place.folder, start_after=self.place.event(end)):
            if self.place.event_offset(meta.key) is None:
                return True
            await self._refuse_hole(end)
            return False
        return True

    async def get(self, offset: int) -> Object | None:
        """What stands at an offset, which need not count."""
        try:
            return await self.store.get(self.place.event(offset))
        except NotFound:
            return None

    async def exists(self, offset: int) -> bool:
        """Whether something stands at an offset, which need not count."""
        try:
            await self.store.head(self.place.event(offset))
        except NotFound:
            return False
        return True

    async def reaches(self, start: int) -> bool:
        """Whether the event before `start` is there, which need not count.

        Where that costs no more, one page of a listing tells, and what else it shows is known: so
        that a follower asks for all of a backlog at once. Holes are left to whoever reads.
        """
        if self.store.is_local:
            return start == 0 or await self.exists(start - 1)
        first = max(start - 1, 0)
        listed, _ = await self._listed(first)
        self.know(first + listed if listed else 0)
        return start == 0 or listed > 0

    async def with_lease(self, offset: int, request: Awaitable[T]) -> T:
        """Make a request, and ask beside it for a floor under which the answer may count."""
        if self.floors.is_leased(offset) or self.floors.is_below(offset):
            return await request
        answer, _ = await asyncio.gather(request, self._look_if_possible())
        return answer

    async def _look_if_possible(self) -> HeadwaterError | None:
        """Whoever judges the answer looks again if this look failed, and then it counts."""
        try:
            await self.floors.look()
        except HeadwaterError as error:
            return error
        return None

    def _decoded(self, offset: int, found: Object) -> EventDelivered | EventUnreadable:
        key = self.place.event(offset)
        try:
            return decode_event_object(key, found.data, self.log_id, self.partition, offset)
        except (Damaged, NotSupported) as error:
            return EventUnreadable(self.partition, offset, error)

    async def _low(self) -> int:
        """An offset at or below the end, such that all before it are taken."""
        if not self.floors.is_leased(self._next):
            self.know((await self.floors.look()).floor)
        return self._next

    async def first_free(self, low: int) -> int:
        """Where the next event is to be tried for, if all offsets below `low` are taken."""
        step = 1
        if not self.store.is_local:
            listed, is_hole = await self._listed(low)
            low, step = low + listed, max(1, listed)
            if is_hole:
                await self._refuse_hole(low)
            if listed < limits.LIST_PAGE_KEYS:
                return low
        while await self.exists(low + step - 1):
            low, step = low + step, step * 2
        high = low + step - 1  # everything below low is taken, and high is not
        while low < high:
            middle = (low + high) // 2
            if await self.exists(middle):
                low = middle + 1
            else:
                high = middle
        return low

    async def _listed(self, first: int) -> tuple[int, bool]:
        """How many events one page of a listing shows from an offset on, and if a hole ends it."""
        offset, before = first, self.place.event(first - 1) if first else ""
        async for meta in self.store.list(self.place.folder, start_after=before):
            found = self.place.event_offset(meta.key)
            if found != offset:
                return offset - first, found is not None
            offset += 1
            if offset == first + limits.LIST_PAGE_KEYS:
                break
        return offset - first, False

    async def _refuse_hole(self, offset: int) -> None:
        """A later event was there, so this one was written before it: look once more."""
        if await self.exists(offset):
            return
        if offset >= (await self.floors.look()).trimmed:
            raise RolledBack(
                f"{self.place.event(offset)} is missing though later events exist: restore it"
            )
