"""What the logs of events have in common: numbered partitions, and being open or closed."""

from __future__ import annotations

import asyncio
import uuid
import weakref
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from headwater.core import runtime
from headwater.core.errors import Refused, RolledBack
from headwater.tier.eventlog.contract import EventDelivered, LogItem, PartitionFailed


class Closable(Protocol):
    """What is closed with its log."""

    async def close(self) -> None:
        """Follow nothing any more."""


S = TypeVar("S", bound=Closable)


class PartitionedLog(Generic[S]):
    """Partitions numbered from 0, and the subscriptions to them that are in use."""

    def __init__(self, partition_count: int) -> None:
        if partition_count < 1:
            raise Refused(f"a log has at least one partition, not {partition_count}")
        self._partition_count = partition_count
        # Weakly: a subscription that is dropped without being closed is let go of. A dict, because
        # sets of objects have another order in every process.
        self._subscriptions: weakref.WeakKeyDictionary[S, None] = weakref.WeakKeyDictionary()
        self._closed = False

    @property
    def partition_count(self) -> int:
        """How many partitions there are."""
        return self._partition_count

    def forget(self, subscription: S) -> None:
        """Hold nothing for a subscription that was closed."""
        self._subscriptions.pop(subscription, None)

    def check_open(self) -> None:
        """Raise `Refused` if the log was closed."""
        if self._closed:
            raise Refused("the log of metadata events is closed: open another")

    def check_partition(self, partition: int) -> None:
        """Raise `Refused` if there is no such partition."""
        if not 0 <= partition < self._partition_count:
            raise Refused(
                f"there is no metadata partition {partition}: the log has {self._partition_count}, "
                "numbered from 0"
            )

    def check_start(self, partition: int, start_offset: int) -> None:
        """Raise `Refused` if a partition cannot be followed from an offset."""
        self.check_partition(partition)
        if start_offset < 0:
            raise Refused(f"offset {start_offset} of metadata partition {partition} is below 0")

    def asked(self, partitions: Iterable[int] | None) -> list[int]:
        """The partitions that somebody asks about, in order: all, if none are named."""
        self.check_open()
        if partitions is None:
            return list(range(self._partition_count))
        wanted = sorted(set(partitions))
        for partition in wanted:
            self.check_partition(partition)
        return wanted

    async def close(self) -> None:
        """Close all subscriptions; whatever is asked afterwards is refused."""
        self._closed = True
        for subscription in list(self._subscriptions):
            await subscription.close()


# A subscription whose partitions take turns: a long backlog of one holds up no other.


F = TypeVar("F")


class RoundRobinSubscription(ABC, Generic[F]):
    """Its own assignment, and its own items. `F` is what follows one partition."""

    def __init__(self) -> None:
        self._followed: dict[int, F] = {}
        self._order: list[int] | None = None
        """Those that are followed, in order; None when they have changed."""
        self._last_served = -1
        self._closed = False
        self._waiting: asyncio.Future[None] | None = None

    @property
    def items(self) -> AsyncIterator[LogItem]:
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

    def __aiter__(self) -> AsyncIterator[LogItem]:
        return self

    async def __anext__(self) -> LogItem:
        while not self._closed:
            item = self._take()
            if item is not None:
                return item
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        raise StopAsyncIteration

    def _take(self) -> LogItem | None:
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
    def _next_of(self, partition: int, followed: F) -> LogItem | None:
        """The next item of a partition, if there is one."""


# A log of metadata events in memory, for one process: managers that share it see each other.
#
# A subscription keeps no copies: it has an offset for every partition that it follows and reads
# the log itself. So there is nothing that could overflow, and no seam between backlog and live
# events.


class InProcessEventLog(PartitionedLog["InProcessSubscription"]):
    """Events of one process, for as long as it runs. For one event loop."""

    def __init__(self, partition_count: int) -> None:
        super().__init__(partition_count)
        self._log_id = uuid.UUID(bytes=runtime.new_token())
        self._events: list[list[EventDelivered]] = [[] for _ in range(partition_count)]

    @property
    def log_id(self) -> uuid.UUID:
        """Which log this is."""
        return self._log_id

    async def publish(
        self, partition: int, payload: bytes, *, publisher_epoch: int | None = None
    ) -> int:
        """Append an event; its offset."""
        self.check_open()
        self.check_partition(partition)
        events = self._events[partition]
        offset = len(events)
        events.append(EventDelivered(partition, offset, payload, publisher_epoch))
        for subscription in self._subscriptions:
            subscription.wake()
        return offset

    async def subscribe(self, start_offsets: Mapping[int, int]) -> InProcessSubscription:
        """Follow these partitions, each from its offset."""
        self.check_open()
        subscription = InProcessSubscription(self)
        for partition, start_offset in start_offsets.items():
            subscription.add(partition, start_offset)
        self._subscriptions[subscription] = None
        return subscription

    async def high_water_marks(self, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """One past the last offset of each partition."""
        return {partition: len(self._events[partition]) for partition in self.asked(partitions)}

    def events_of(self, partition: int) -> list[EventDelivered]:
        """The events themselves, which a subscription reads."""
        return self._events[partition]


@dataclass(slots=True)
class _Position:
    next_offset: int


class InProcessSubscription(RoundRobinSubscription[_Position]):
    """Offsets into an in-process log."""

    def __init__(self, log: InProcessEventLog) -> None:
        super().__init__()
        self._log = log

    async def close(self) -> None:
        """Follow nothing any more; the items end."""
        await super().close()
        self._log.forget(self)

    def _check_start(self, partition: int, start_offset: int) -> None:
        self._log.check_start(partition, start_offset)

    def _follow(self, partition: int, start_offset: int) -> _Position:
        return _Position(start_offset)

    def _leave(self, followed: _Position) -> None:
        """It holds nothing."""

    def _next_of(self, partition: int, followed: _Position) -> LogItem | None:
        offset, events = followed.next_offset, self._log.events_of(partition)
        if offset == len(events):
            return None
        if offset > len(events):
            return PartitionFailed(partition, _rolled_back(partition, offset, len(events)))
        followed.next_offset = offset + 1
        return events[offset]


def _rolled_back(partition: int, offset: int, end: int) -> RolledBack:
    return RolledBack(
        f"metadata partition {partition} ends at {end}, before {offset}, where it was to be "
        "followed from: this is not the log that was followed before"
    )
