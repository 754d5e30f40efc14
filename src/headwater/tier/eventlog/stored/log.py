"""A log of metadata events in object storage: nothing but a store is needed.

Every event is an object of its own, numbered within its partition, and the store lets one publisher
create each number. Followers ask for the next number: soon after something came, later and later
while nothing does, and at once after a publish of their own handle.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping

from headwater.core import limits
from headwater.core.errors import Damaged, NotSupported, OutcomeUnknown, Refused, Unavailable
from headwater.store import Store
from headwater.tier.eventlog.stored.events import StoredEvents
from headwater.tier.eventlog.stored.identity import LogRecord, open_record
from headwater.tier.eventlog.stored.layout import PREFIX
from headwater.tier.eventlog.stored.publisher import Publisher
from headwater.tier.eventlog.stored.subscription import StoredSubscription

PARTITION_COUNT = 50
"""Kafka's default."""


class StoredEventLog:
    """One handle on a log; every process may have its own. For one event loop."""

    def __init__(self, store: Store, prefix: str, record: LogRecord) -> None:
        self._record = record
        self._events = [
            StoredEvents(store, prefix, partition, record.log_id, record.partition_count)
            for partition in range(record.partition_count)
        ]
        self._publishers = [Publisher(events) for events in self._events]
        # A dict, because sets of objects have another order in every process.
        self._subscriptions: dict[StoredSubscription, None] = {}
        self._closed = False

    @classmethod
    async def open(
        cls,
        store: Store,
        *,
        partition_count: int = PARTITION_COUNT,
        prefix: str = PREFIX,
        log_id: uuid.UUID | None = None,
    ) -> StoredEventLog:
        """The log under a prefix, made if there is none.

        `Refused` if it has another number of partitions, or, where an id is given, another id.
        """
        record = await open_record(store, prefix, partition_count, log_id)
        return cls(store, prefix, record)

    @property
    def log_id(self) -> uuid.UUID:
        """Which log this is."""
        return self._record.log_id

    @property
    def partition_count(self) -> int:
        """How many partitions there are."""
        return self._record.partition_count

    @property
    def subscription_count(self) -> int:
        """How many subscriptions of this handle are not closed."""
        return len(self._subscriptions)

    async def publish(
        self, partition: int, payload: bytes, *, publisher_epoch: int | None = None
    ) -> int:
        """Append an event; its offset."""
        self._check_open()
        self._check_partition(partition)
        try:
            return await self._publishers[partition].publish(payload, publisher_epoch)
        finally:
            # Also if it failed: what it met on its way may be news to those who follow.
            for subscription in self._subscriptions:
                subscription.look_again(partition)

    async def subscribe(self, start_offsets: Mapping[int, int]) -> StoredSubscription:
        """Follow these partitions, each from its offset."""
        self._check_open()
        subscription = StoredSubscription(self.events_of, self._forget)
        try:
            for partition, start_offset in start_offsets.items():
                subscription.add(partition, start_offset)
        except Refused:
            await subscription.close()
            raise
        self._subscriptions[subscription] = None
        return subscription

    async def high_water_marks(self) -> dict[int, int]:
        """One past the last offset of every partition that could be asked.

        Why one could not be asked is told to whoever follows it or publishes to it.
        """
        self._check_open()
        at_once = asyncio.Semaphore(limits.EVENT_MARKS_AT_ONCE)

        async def mark(events: StoredEvents) -> int | None:
            async with at_once:
                try:
                    return await events.end()
                except (Unavailable, OutcomeUnknown, Damaged, NotSupported):
                    return None

        marks = await asyncio.gather(*map(mark, self._events))
        return {partition: mark for partition, mark in enumerate(marks) if mark is not None}

    async def close(self) -> None:
        """Close all subscriptions; whatever is asked afterwards is refused."""
        self._closed = True
        for subscription in list(self._subscriptions):
            await subscription.close()

    def events_of(self, partition: int) -> StoredEvents:
        """The events of a partition themselves, which subscriptions and compactors read."""
        self._check_open()
        self._check_partition(partition)
        return self._events[partition]

    def _forget(self, subscription: StoredSubscription) -> None:
        self._subscriptions.pop(subscription, None)

    def _check_open(self) -> None:
        if self._closed:
            raise Refused("the log of metadata events is closed: open another")

    def _check_partition(self, partition: int) -> None:
        if not 0 <= partition < self.partition_count:
            raise Refused(
                f"there is no metadata partition {partition}: the log has {self.partition_count}, "
                "numbered from 0"
            )
