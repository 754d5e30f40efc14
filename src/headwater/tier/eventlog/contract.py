"""What every log of metadata events promises, what the implementations share, and a log in memory.

The contract suite (`tests/tier/eventlog/test_contract.py`) checks each implementation.
"""

from __future__ import annotations

import asyncio
import uuid
import weakref
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Self, TypeAlias, TypeVar

from headwater.core import runtime
from headwater.core.errors import HeadwaterError, Refused, RolledBack
from headwater.tier.cache import TierCache


@dataclass(frozen=True, slots=True)
class EventDelivered:
    """An event as it was published, not decoded."""

    partition: int
    offset: int
    payload: bytes
    publisher_epoch: int | None = None
    """The epoch that was published beside it; None if there was none."""


@dataclass(frozen=True, slots=True)
class EventUnreadable:
    """The object at this offset is damaged, or is not an event.

    The log delivers later events all the same. A follower must not apply them as if this one did
    not exist.
    """

    partition: int
    offset: int
    error: HeadwaterError


@dataclass(frozen=True, slots=True)
class SnapshotDelivered:
    """The state after all events through an offset, which may be deleted one by one.

    It replaces the whole state of the metadata partition.
    """

    partition: int
    through_offset: int
    cache: TierCache
    """The follower that takes the item owns it: the log keeps no reference."""


@dataclass(frozen=True, slots=True)
class PositionReached:
    """Every offset below this one was delivered, or never holds an event.

    For logs whose offsets have holes (transaction markers, compaction): their last event may be far
    below the high-water mark. A log without holes need not deliver it.
    """

    partition: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class PartitionFailed:
    """The log cannot continue this partition, which is no longer assigned: add it to try again.

    `Unavailable`: retry later from the same offset. `EntriesTrimmed`: the requested events are
    deleted, and there is no snapshot; the log begins at `error.first_offset`. `RolledBack`: the log
    ends before the requested offset, so it is not the log that was followed before.
    """

    partition: int
    error: HeadwaterError


LogItem: TypeAlias = (
    EventDelivered | EventUnreadable | SnapshotDelivered | PositionReached | PartitionFailed
)


class Subscription(ABC):
    """An iterator over the items of the partitions that are assigned to it. For one reader.

    A cancelled wait for an item loses none. An error that the iterator raises ends the
    subscription: subscribe again.

    Assignments change at once: after `remove`, no item of the partition is delivered, not even one
    that was already fetched; after another `add`, items begin at the new offset.
    """

    @abstractmethod
    def add(self, partition: int, start_offset: int) -> None:
        """Follow a partition from an offset, existing events first; no effect if it is followed.

        An offset above the end is not waited for: `PartitionFailed` with `RolledBack`.
        """

    @abstractmethod
    def remove(self, partition: int) -> None:
        """Stop following a partition; no effect if it is not followed."""

    @abstractmethod
    def assigned(self) -> list[int]:
        """The partitions that are followed, in order."""

    @abstractmethod
    async def close(self) -> None:
        """Stop following all partitions, and free what the subscription holds; the items end."""

    @abstractmethod
    def notify(self, partition: int) -> None:
        """An event was published to a partition through the same handle on the log."""

    def __aiter__(self) -> Self:
        return self

    @abstractmethod
    async def __anext__(self) -> LogItem: ...


class MetadataEventLog(ABC):
    """Partitions of events. Every handle on a log, in any process, sees the same events.

    - The offsets of a partition rise; they may have holes.
    - A subscription delivers each event from its start offset on once, in order of offsets: first
      existing ones, then new ones, also for a partition that is added later.
    - A slow subscriber gets everything it has missed from the log.
    - Events below the floor of a compacted log are delivered as a snapshot, followed by the later
      events: the resulting state is that of all events.
    """

    def __init__(self, log_id: uuid.UUID, partition_count: int) -> None:
        if partition_count < 1:
            raise Refused(f"a log has at least one partition, not {partition_count}")
        self.log_id = log_id
        """Identifies the log. A log that is created again, under any name, has another id."""
        self.partition_count = partition_count
        """Never changes as long as the log exists."""
        # Weakly: a subscription may be dropped without being closed. A dict, because the order of a
        # set of objects differs between processes.
        self._subscriptions: weakref.WeakKeyDictionary[Subscription, None] = (
            weakref.WeakKeyDictionary()
        )
        self._closed = False

    @abstractmethod
    async def publish(
        self, partition: int, payload: bytes, *, publisher_epoch: int | None = None
    ) -> int:
        """Append an event; returns its offset, which is the same for every subscriber.

        `publisher_epoch` is stored beside the event, for events that cannot contain one. `Refused`:
        there is no such partition. `Unavailable`: the event was not appended. `OutcomeUnknown`: it
        may have been.
        """

    async def subscribe(self, start_offsets: Mapping[int, int]) -> Subscription:
        """Follow these partitions, each from its offset; others can be added later."""
        self.check_open()
        for partition, start_offset in start_offsets.items():
            self.check_start(partition, start_offset)
        subscription = await self._new_subscription()
        self._subscriptions[subscription] = None
        for partition, start_offset in start_offsets.items():
            subscription.add(partition, start_offset)
        return subscription

    @abstractmethod
    async def high_water_marks(self, partitions: Iterable[int] | None = None) -> Mapping[int, int]:
        """The offset after the last event of these partitions, or of all; 0 for an empty one.

        A partition that is missing in the result is unknown, not empty.
        """

    async def close(self) -> None:
        self._closed = True
        for subscription in list(self._subscriptions):
            await subscription.close()

    def forget(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription, None)

    def check_open(self) -> None:
        if self._closed:
            raise Refused("the event log is closed: open another")

    def check_partition(self, partition: int) -> None:
        if not 0 <= partition < self.partition_count:
            raise Refused(
                f"there is no metadata partition {partition}: the log has {self.partition_count}, "
                "numbered from 0"
            )

    def check_start(self, partition: int, start_offset: int) -> None:
        self.check_partition(partition)
        if start_offset < 0:
            raise Refused(f"offset {start_offset} of metadata partition {partition} is below 0")

    @abstractmethod
    async def _new_subscription(self) -> Subscription: ...

    def _requested(self, partitions: Iterable[int] | None) -> list[int]:
        self.check_open()
        if partitions is None:
            return list(range(self.partition_count))
        requested = sorted(set(partitions))
        for partition in requested:
            self.check_partition(partition)
        return requested


F = TypeVar("F")


class RoundRobinSubscription(Subscription, Generic[F]):
    """A subscription whose partitions take turns: a long backlog of one does not delay the others.

    `F` follows one partition.
    """

    def __init__(self, log: MetadataEventLog) -> None:
        self._log = log
        self._followed: dict[int, F] = {}
        self._order: list[int] | None = None
        """The followed partitions in order; None after they changed."""
        self._last_served = -1
        self._closed = False
        self._waiting: asyncio.Future[None] | None = None

    def add(self, partition: int, start_offset: int) -> None:
        self._log.check_start(partition, start_offset)
        if self._closed:
            raise Refused("the subscription is closed: subscribe again")
        if partition not in self._followed:
            self._followed[partition] = self._follow(partition, start_offset)
            self._order = None
            self.wake()

    def remove(self, partition: int) -> None:
        followed = self._followed.pop(partition, None)
        if followed is not None:
            self._order = None
            self._stop(followed)

    def assigned(self) -> list[int]:
        return list(self._ordered())

    async def close(self) -> None:
        self._closed = True
        for partition in self.assigned():
            self.remove(partition)
        self.wake()
        self._log.forget(self)

    def wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

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
        # Sorted once per change: for thousands of partitions, sorting would dominate each item.
        if self._order is None:
            self._order = sorted(self._followed)
        return self._order

    @abstractmethod
    def _follow(self, partition: int, start_offset: int) -> F:
        """Start to follow a partition."""

    def _stop(self, followed: F) -> None:
        """Stop following it."""

    @abstractmethod
    def _next_of(self, partition: int, followed: F) -> LogItem | None:
        """The next item of a partition, if there is one."""


class InProcessEventLog(MetadataEventLog):
    """Events in memory, for managers within one process. For one event loop."""

    def __init__(self, partition_count: int) -> None:
        super().__init__(uuid.UUID(bytes=runtime.new_token()), partition_count)
        self._events: list[list[EventDelivered]] = [[] for _ in range(partition_count)]

    async def publish(
        self, partition: int, payload: bytes, *, publisher_epoch: int | None = None
    ) -> int:
        self.check_open()
        self.check_partition(partition)
        events = self._events[partition]
        offset = len(events)
        events.append(EventDelivered(partition, offset, payload, publisher_epoch))
        for subscription in self._subscriptions:
            subscription.notify(partition)
        return offset

    async def high_water_marks(self, partitions: Iterable[int] | None = None) -> dict[int, int]:
        return {
            partition: len(self._events[partition]) for partition in self._requested(partitions)
        }

    def events_of(self, partition: int) -> list[EventDelivered]:
        return self._events[partition]

    async def _new_subscription(self) -> Subscription:
        return InProcessSubscription(self)


@dataclass(slots=True)
class _Position:
    next_offset: int


class InProcessSubscription(RoundRobinSubscription[_Position]):
    """Offsets into an in-process log, which it reads itself: it keeps no copies, so nothing can
    overflow, and existing and new events need no hand-over."""

    def __init__(self, log: InProcessEventLog) -> None:
        super().__init__(log)
        self._events_of = log.events_of

    def notify(self, partition: int) -> None:
        self.wake()

    def _follow(self, partition: int, start_offset: int) -> _Position:
        return _Position(start_offset)

    def _next_of(self, partition: int, followed: _Position) -> LogItem | None:
        offset, events = followed.next_offset, self._events_of(partition)
        if offset == len(events):
            return None
        if offset > len(events):
            return PartitionFailed(
                partition,
                RolledBack(
                    f"metadata partition {partition} ends at {len(events)}, below the requested "
                    f"offset {offset}: this is not the log that was followed before"
                ),
            )
        followed.next_offset = offset + 1
        return events[offset]
