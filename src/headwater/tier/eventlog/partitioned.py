"""What the logs of events have in common: numbered partitions, and being open or closed."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from headwater.core.errors import Refused


class Closing(Protocol):
    """What is closed with its log."""

    async def close(self) -> None:
        """Follow nothing any more."""


S = TypeVar("S", bound=Closing)


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
