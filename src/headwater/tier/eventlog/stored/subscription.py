"""What one subscriber follows of a stored log: its own assignment, and its own items."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable

from headwater.core.errors import Refused
from headwater.tier.eventlog.items import Item, PartitionFailed
from headwater.tier.eventlog.stored.events import StoredEvents
from headwater.tier.eventlog.stored.following import Following


class StoredSubscription:
    """Partitions that are followed, each by a task of its own."""

    def __init__(
        self,
        events_of: Callable[[int], StoredEvents],
        on_closed: Callable[[StoredSubscription], None],
    ) -> None:
        self._events_of = events_of
        self._on_closed = on_closed
        self._followed: dict[int, Following] = {}
        self._last_served = -1
        self._closed = False
        self._waiting: asyncio.Future[None] | None = None

    @property
    def items(self) -> AsyncIterator[Item]:
        """The items: the subscription itself."""
        return self

    @property
    def assignment(self) -> StoredSubscription:
        """The assignment: the subscription itself."""
        return self

    def add(self, partition: int, start_offset: int) -> None:
        """Follow a partition from an offset on."""
        events = self._events_of(partition)
        if start_offset < 0:
            raise Refused(f"offset {start_offset} of metadata partition {partition} is below 0")
        if self._closed:
            raise Refused("the subscription is closed: subscribe again")
        if partition not in self._followed:
            self._followed[partition] = Following(events, start_offset, self._wake)

    def remove(self, partition: int) -> None:
        """Follow a partition no longer."""
        followed = self._followed.pop(partition, None)
        if followed is not None:
            followed.cancel()

    def assigned(self) -> list[int]:
        """The partitions that are followed."""
        return sorted(self._followed)

    async def close(self) -> None:
        """Follow nothing any more; the items end."""
        self._closed = True
        followed, self._followed = list(self._followed.values()), {}
        for one in followed:
            one.cancel()
        self._on_closed(self)
        self._wake()
        for one in followed:
            await one.ended()

    def look_again(self, partition: int) -> None:
        """Something was published there."""
        followed = self._followed.get(partition)
        if followed is not None:
            followed.wake()

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        while not self._closed:
            item = self._take()
            if item is not None:
                return item
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        raise StopAsyncIteration

    def _take(self) -> Item | None:
        """The next item, partitions taking turns: a long backlog of one holds up no other."""
        partitions = self.assigned()
        turn = bisect_right(partitions, self._last_served)
        for partition in (*partitions[turn:], *partitions[:turn]):
            followed = self._followed[partition]
            item = followed.take()
            if item is None:
                if followed.crash is not None:
                    raise followed.crash
                continue
            self._last_served = partition
            if isinstance(item, PartitionFailed):
                del self._followed[partition]
            return item
        return None

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
