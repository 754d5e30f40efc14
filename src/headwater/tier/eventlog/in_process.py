"""A log of metadata events in memory, for one process: managers that share it see each other.

A subscription keeps no copies: it has an offset for each partition that it follows, and reads the
log itself. So nothing can overflow, and backlog and live events need no hand-over.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headwater.core import runtime
from headwater.core.errors import RolledBack
from headwater.tier.eventlog.contract import (
    EventDelivered,
    LogItem,
    PartitionedLog,
    PartitionFailed,
    RoundRobinSubscription,
)


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
        return {partition: len(self._events[partition]) for partition in self.requested(partitions)}

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
