"""What every log of metadata events can do, what subscriptions deliver, and shared base classes.

The contract suite checks each implementation.
"""

from __future__ import annotations

import asyncio
import uuid
import weakref
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeAlias, TypeVar

from headwater.core.errors import HeadwaterError, Refused
from headwater.tier.cache import TierCache


class Assignment(Protocol):
    """Which partitions a subscription follows; it may change while items are delivered.

    Calls take effect at once: no item of a partition is delivered after it was removed, not even
    one that was already fetched, and what is delivered after it was added again begins at the
    offset that was given then.
    """

    def add(self, partition: int, start_offset: int) -> None:
        """Follow a partition from an offset, its backlog first. Nothing happens if it is followed.

        An offset above the end is not waited for: `PartitionFailed` with `RolledBack`.
        """
        ...

    def remove(self, partition: int) -> None:
        """Follow a partition no longer. Nothing happens if it is not followed."""
        ...

    def assigned(self) -> list[int]:
        """The partitions that are followed, in order."""
        ...

    async def close(self) -> None:
        """Follow nothing any more, and let go of all that the subscription holds; items end."""
        ...


class Subscription(Protocol):
    """Items of the partitions that are followed, and which these are."""

    @property
    def items(self) -> AsyncIterator[LogItem]:
        """For one reader. To give up waiting for an item (a cancelled wait) loses none.

        An error it raises ends the subscription: nothing more comes, and one subscribes again.
        """
        ...

    @property
    def assignment(self) -> Assignment:
        """What is followed."""
        ...


class MetadataEventLog(Protocol):
    """Partitions of events. Every handle on the same log, in whatever process, sees the same.

    - The offsets of a partition rise; they may have holes.
    - A subscription delivers each event from its start offset on once, in the order of offsets,
      those that are there and then those that come, also for a partition added later.
    - A subscriber that lags is given from the log whatever it has missed, however much that is.
    - What is below the floor of a log that is compacted comes as a snapshot, and then the events
      after it: together they come to the same as all events.
    """

    @property
    def log_id(self) -> uuid.UUID:
        """Which log this is. A log that is created again, under any name, has another id."""
        ...

    @property
    def partition_count(self) -> int:
        """How many there are; the same for as long as the log exists."""
        ...

    async def publish(
        self, partition: int, payload: bytes, *, publisher_epoch: int | None = None
    ) -> int:
        """Append an event; the offset at which every subscriber will see it.

        `publisher_epoch` travels beside the event, for those that have no room for one. Raises
        `Refused` for a partition that is not there, `Unavailable` if the event has not landed, and
        `OutcomeUnknown` if it may have.
        """
        ...

    async def subscribe(self, start_offsets: Mapping[int, int]) -> Subscription:
        """Follow these partitions, each from its offset, and others later."""
        ...

    async def high_water_marks(self, partitions: Iterable[int] | None = None) -> Mapping[int, int]:
        """One past the last offset of these partitions, or of all; 0 where nothing ever was.

        A partition that is not in the answer is one of which it is not known.
        """
        ...

    async def close(self) -> None:
        """Close all subscriptions; later calls are `Refused`."""
        ...


@dataclass(frozen=True, slots=True)
class EventDelivered:
    """An event as it was published: its bytes, not decoded."""

    partition: int
    offset: int
    payload: bytes
    publisher_epoch: int | None = None
    """What the publisher put beside it; None also if the log's writer knows of no such epoch."""


@dataclass(frozen=True, slots=True)
class EventUnreadable:
    """The object at this offset has no bytes to deliver: it is damaged, or not an event.

    A follower must not go on as if it did not exist; the log delivers what comes after it all the
    same.
    """

    partition: int
    offset: int
    error: HeadwaterError


@dataclass(frozen=True, slots=True)
class SnapshotDelivered:
    """All that the events through an offset come to, because they are no longer there one by one.

    It takes the place of everything that was known of the metadata partition.
    """

    partition: int
    through_offset: int
    cache: TierCache
    """Owned by whichever follower takes the item: the log keeps no reference."""


@dataclass(frozen=True, slots=True)
class PositionReached:
    """Every offset below this one was delivered, or holds no event and never will.

    For logs whose offsets have holes (markers of transactions, compaction), where the last event
    is further below the high-water mark than one. A log without holes need not deliver it.
    """

    partition: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class PartitionFailed:
    """The log cannot go on with this partition, which is assigned no longer: add it to try again.

    `Unavailable`: later, from the same offset. `EntriesTrimmed`: the requested events are deleted,
    and there is no snapshot; the log begins at `error.first_offset`. `RolledBack`: the log ends
    before the requested offset: it is not the log that was followed before.
    """

    partition: int
    error: HeadwaterError


LogItem: TypeAlias = (
    EventDelivered | EventUnreadable | SnapshotDelivered | PositionReached | PartitionFailed
)


class Closable(Protocol):
    """A subscription, which is closed with its log."""

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

    def requested(self, partitions: Iterable[int] | None) -> list[int]:
        """The partitions that a call names, in order: all, if it names none."""
        self.check_open()
        if partitions is None:
            return list(range(self._partition_count))
        wanted = sorted(set(partitions))
        for partition in wanted:
            self.check_partition(partition)
        return wanted

    async def close(self) -> None:
        """Close all subscriptions; later calls are refused."""
        self._closed = True
        for subscription in list(self._subscriptions):
            await subscription.close()


F = TypeVar("F")


class RoundRobinSubscription(ABC, Generic[F]):
    """A subscription whose partitions take turns: a long backlog of one does not delay others.

    `F` follows one partition.
    """

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
        """Wake the reader that waits for an item."""
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
