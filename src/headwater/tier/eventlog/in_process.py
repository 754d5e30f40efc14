"""A log of metadata events in memory, for one process: managers that share it see each other.

A subscription keeps no copies: it has an offset for every partition that it follows and reads the
log itself. So there is nothing that could overflow, and no seam between backlog and live events.
"""

from __future__ import annotations

import asyncio
import uuid
from bisect import bisect_right
from collections.abc import AsyncIterator, Mapping

from headwater.core import runtime
from headwater.core.errors import Refused, RolledBack
from headwater.tier.eventlog.items import EventDelivered, Item, PartitionFailed


class InProcessEventLog:
    """Events of one process, for as long as it runs. For one event loop."""

    def __init__(self, partition_count: int) -> None:
        if partition_count < 1:
            raise Refused(f"a log has at least one partition, not {partition_count}")
        self._log_id = uuid.UUID(bytes=runtime.new_token())
        self._events: list[list[EventDelivered]] = [[] for _ in range(partition_count)]
        # A dict, because sets of objects have another order in every process.
        self._subscriptions: dict[InProcessSubscription, None] = {}
        self._closed = False

    @property
    def log_id(self) -> uuid.UUID:
        """Which log this is."""
        return self._log_id

    @property
    def partition_count(self) -> int:
        """How many partitions there are."""
        return len(self._events)

    @property
    def subscription_count(self) -> int:
        """How many subscriptions are not closed."""
        return len(self._subscriptions)

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

    async def high_water_marks(self) -> dict[int, int]:
        """One past the last offset of every partition."""
        self.check_open()
        return {partition: len(events) for partition, events in enumerate(self._events)}

    async def close(self) -> None:
        """Close all subscriptions; whatever is asked afterwards is refused."""
        self._closed = True
        for subscription in list(self._subscriptions):
            await subscription.close()

    def events_of(self, partition: int) -> list[EventDelivered]:
        """The events themselves, which a subscription reads."""
        return self._events[partition]

    def forget(self, subscription: InProcessSubscription) -> None:
        """Hold nothing for a subscription that was closed."""
        self._subscriptions.pop(subscription, None)

    def check_open(self) -> None:
        """Raise `Refused` if the log was closed."""
        if self._closed:
            raise Refused("the log of metadata events is closed: open another")

    def check_partition(self, partition: int) -> None:
        """Raise `Refused` if there is no such partition."""
        if not 0 <= partition < self.partition_count:
            raise Refused(
                f"there is no metadata partition {partition}: the log has {self.partition_count}, "
                "numbered from 0"
            )


class InProcessSubscription:
    """Offsets into an in-process log: its own assignment, and its own items."""

    def __init__(self, log: InProcessEventLog) -> None:
        self._log = log
        self._next: dict[int, int] = {}
        self._last_served = -1
        self._closed = False
        self._waiting: asyncio.Future[None] | None = None

    @property
    def items(self) -> AsyncIterator[Item]:
        """The items: the subscription itself."""
        return self

    @property
    def assignment(self) -> InProcessSubscription:
        """The assignment: the subscription itself."""
        return self

    def add(self, partition: int, start_offset: int) -> None:
        """Follow a partition from an offset on."""
        self._log.check_partition(partition)
        if start_offset < 0:
            raise Refused(f"offset {start_offset} of metadata partition {partition} is below 0")
        if self._closed:
            raise Refused("the subscription is closed: subscribe again")
        self._next.setdefault(partition, start_offset)
        self.wake()

    def remove(self, partition: int) -> None:
        """Follow a partition no longer."""
        self._next.pop(partition, None)

    def assigned(self) -> list[int]:
        """The partitions that are followed."""
        return sorted(self._next)

    async def close(self) -> None:
        """Follow nothing any more; the items end."""
        self._closed = True
        self._next.clear()
        self._log.forget(self)
        self.wake()

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

    def wake(self) -> None:
        """Let whoever waits for an item look again."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _take(self) -> Item | None:
        """The next item, partitions taking turns: a long backlog of one holds up no other."""
        partitions = sorted(self._next)
        turn = bisect_right(partitions, self._last_served)
        for partition in (*partitions[turn:], *partitions[:turn]):
            offset = self._next[partition]
            events = self._log.events_of(partition)
            if offset == len(events):
                continue
            self._last_served = partition
            if offset > len(events):
                del self._next[partition]
                return PartitionFailed(partition, _rolled_back(partition, offset, len(events)))
            self._next[partition] = offset + 1
            return events[offset]
        return None


def _rolled_back(partition: int, offset: int, end: int) -> RolledBack:
    return RolledBack(
        f"metadata partition {partition} ends at {end}, before {offset}, where it was to be "
        "followed from: this is not the log that was followed before"
    )
