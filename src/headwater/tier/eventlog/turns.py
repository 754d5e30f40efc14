"""A subscription whose partitions take turns: a long backlog of one holds up no other."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import AsyncIterator
from typing import Generic, Self, TypeVar

from headwater.core.errors import Refused
from headwater.tier.eventlog.items import Item, PartitionFailed

F = TypeVar("F")


class TurnTaking(ABC, Generic[F]):
    """Its own assignment, and its own items. `F` is what follows one partition."""

    def __init__(self) -> None:
        self._followed: dict[int, F] = {}
        self._order: list[int] | None = None
        """Those that are followed, in order; None when they have changed."""
        self._last_served = -1
        self._closed = False
        self._waiting: asyncio.Future[None] | None = None

    @property
    def items(self) -> AsyncIterator[Item]:
        """The items: the subscription itself."""
        return self

    @property
    def assignment(self) -> Self:
        """The assignment: the subscription itself."""
        return self

    def add(self, partition: int, start_offset: int) -> None:
        """Follow a partition from an offset on."""
        self._check_start(partition, start_offset)
        if self._closed:
            raise Refused("the subscription is closed: subscribe again")
        if partition not in self._followed:
            self._followed[partition] = self._follow(partition, start_offset)
            self._order = None
            self.wake()

    def remove(self, partition: int) -> None:
        """Follow a partition no longer."""
        followed = self._followed.pop(partition, None)
        if followed is not None:
            self._order = None
            self._leave(followed)

    def assigned(self) -> list[int]:
        """The partitions that are followed."""
        return list(self._ordered())

    async def close(self) -> None:
        """Follow nothing any more; the items end."""
        self._closed = True
        for partition in self.assigned():
            self.remove(partition)
        self.wake()

    def wake(self) -> None:
        """Let whoever waits for an item look again."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

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
        partitions = self._ordered()
        turn = bisect_right(partitions, self._last_served)
        for step in range(len(partitions)):
            partition = partitions[(turn + step) % len(partitions)]
            item = self._next_of(partition, self._followed[partition])
            if item is None:
                continue
            self._last_served = partition
            if isinstance(item, PartitionFailed):
                self.remove(partition)
            return item
        return None

    def _ordered(self) -> list[int]:
        # Once for each change of the assignment: of thousands, sorting would be most of an item.
        if self._order is None:
            self._order = sorted(self._followed)
        return self._order

    @abstractmethod
    def _check_start(self, partition: int, start_offset: int) -> None:
        """Raise `Refused` if a partition cannot be followed from an offset."""

    @abstractmethod
    def _follow(self, partition: int, start_offset: int) -> F:
        """Begin to follow a partition."""

    @abstractmethod
    def _leave(self, followed: F) -> None:
        """Follow it no longer."""

    @abstractmethod
    def _next_of(self, partition: int, followed: F) -> Item | None:
        """The next item of a partition, if there is one."""
