"""What every log of metadata events can do. The contract suite checks each implementation."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from headwater.core.errors import HeadwaterError
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
    - What lies below the floor of a log that is compacted comes as a snapshot, and then the events
      after it: together they come to the same as all events.
    """

    @property
    def log_id(self) -> uuid.UUID:
        """Which log this is. One that is made anew, under whatever name, has another."""
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
        """Close all subscriptions; whatever is asked afterwards is `Refused`."""
        ...


# What a subscription delivers: events, and whatever else happens to whoever follows a log.


@dataclass(frozen=True, slots=True)
class EventDelivered:
    """An event as it was published: its bytes, which nobody has looked into."""

    partition: int
    offset: int
    payload: bytes
    publisher_epoch: int | None = None
    """What the publisher put beside it; None also if the log's writer knows of no such epoch."""


@dataclass(frozen=True, slots=True)
class EventUnreadable:
    """Something stands at this offset that has no bytes to hand on: damaged, or not an event.

    Whoever follows must not go on as if it were not there; the log delivers what comes after it
    all the same.
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
    """Whoever takes the item goes on with it: nobody else has it."""


@dataclass(frozen=True, slots=True)
class PositionReached:
    """Every offset below this one was delivered, or holds no event and never will.

    For logs whose offsets have holes (markers of transactions, compaction), where the last event
    lies further below the high-water mark than one. A log without holes need not say it.
    """

    partition: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class PartitionFailed:
    """The log cannot go on with this partition, which is assigned no longer: add it to try again.

    `Unavailable`: later, from the same offset. `Trimmed`: what was asked for is gone, and there is
    no snapshot; the log begins at `error.floor`. `RolledBack`: the log ends before the offset that
    was asked for: it is not the log that was followed before.
    """

    partition: int
    error: HeadwaterError


LogItem: TypeAlias = (
    EventDelivered | EventUnreadable | SnapshotDelivered | PositionReached | PartitionFailed
)
