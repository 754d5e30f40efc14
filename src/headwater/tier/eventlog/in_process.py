"""A log of metadata events in memory, for managers within one process.

A subscription keeps no copies: it has an offset for each partition and reads the log itself. So
nothing can overflow, and existing and new events need no hand-over.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from headwater.core import runtime
from headwater.core.errors import RolledBack
from headwater.tier.eventlog.contract import (
    EventDelivered,
    LogItem,
    MetadataEventLog,
    PartitionFailed,
    RoundRobinSubscription,
    Subscription,
)


class InProcessEventLog(MetadataEventLog):
    """Events that exist as long as this object. For one event loop."""

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
        """The events themselves, which subscriptions read."""
        return self._events[partition]

    async def _new_subscription(self) -> Subscription:
        return InProcessSubscription(self)


@dataclass(slots=True)
class _Position:
    next_offset: int


class InProcessSubscription(RoundRobinSubscription[_Position]):
    """Offsets into an in-process log."""

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
