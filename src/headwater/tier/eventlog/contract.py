"""What every log of metadata events can do. The contract suite checks each implementation."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Protocol

from headwater.tier.eventlog.items import Item


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
    def items(self) -> AsyncIterator[Item]:
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
