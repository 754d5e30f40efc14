"""A log of metadata events in object storage: nothing but a store is needed.

Every event is an object of its own, numbered within its partition, and the store lets one publisher
create each number. Followers ask for the next number: soon after something came, later and later
while nothing does, and at once after a publish of their own handle.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping

from headwater.core import limits
from headwater.core.errors import Damaged, NotSupported, OutcomeUnknown, Refused, Unavailable
from headwater.store import Store
from headwater.tier.errors import LogRenewed
from headwater.tier.event_codec import METADATA_PARTITIONS
from headwater.tier.eventlog.partitioned import PartitionedLog
from headwater.tier.eventlog.stored.appender import StoredAppender
from headwater.tier.eventlog.stored.events import StoredEvents
from headwater.tier.eventlog.stored.identity import LogRecord, mark_renewed, open_record
from headwater.tier.eventlog.stored.layout import PREFIX
from headwater.tier.eventlog.stored.subscription import StoredSubscription


class StoredEventLog(PartitionedLog[StoredSubscription]):
    """One handle on a log; every process may have its own. For one event loop."""

    def __init__(self, store: Store, prefix: str, record: LogRecord) -> None:
        super().__init__(record.partition_count)
        self._store = store
        self.prefix = prefix
        """Where in the store it stands."""
        self._log_id = record.log_id
        self._events = [
            StoredEvents(store, prefix, partition, record.log_id, record.partition_count)
            for partition in range(record.partition_count)
        ]
        self._appenders = [StoredAppender(events) for events in self._events]

    @classmethod
    async def open(
        cls,
        store: Store,
        *,
        partition_count: int = METADATA_PARTITIONS,
        prefix: str = PREFIX,
        log_id: uuid.UUID | None = None,
    ) -> StoredEventLog:
        """The log under a prefix, made if there is none.

        `LogRenewed` if it goes on under another prefix; `Refused` if it has another number of
        partitions, or, where an id is given, another id.
        """
        record = await open_record(store, prefix, partition_count, log_id)
        return cls(store, prefix, record)

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
        try:
            return await self._appenders[partition].append(payload, publisher_epoch)
        finally:
            # Also if it failed: what it met on its way may be news to those who follow.
            for subscription in self._subscriptions:
                subscription.look_again(partition)

    async def subscribe(self, start_offsets: Mapping[int, int]) -> StoredSubscription:
        """Follow these partitions, each from its offset."""
        self.check_open()
        subscription = StoredSubscription(self.events_of, self.check_start, self.forget)
        try:
            for partition, start_offset in start_offsets.items():
                subscription.add(partition, start_offset)
        except Refused:
            await subscription.close()
            raise
        self._subscriptions[subscription] = None
        return subscription

    async def high_water_marks(self, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """One past the last offset of each partition that could be asked.

        Why one could not be asked is told to whoever follows it or publishes to it.
        """
        wanted = self.asked(partitions)
        at_once = asyncio.Semaphore(limits.EVENT_MARKS_AT_ONCE)

        async def mark(partition: int) -> int | None:
            async with at_once:
                try:
                    return await self._events[partition].end()
                except (Unavailable, OutcomeUnknown, Damaged, NotSupported, LogRenewed):
                    return None

        marks = await asyncio.gather(*map(mark, wanted))
        return {
            partition: mark
            for partition, mark in zip(wanted, marks, strict=True)
            if mark is not None
        }

    async def mark_renewed(self, target: StoredEventLog) -> None:
        """Let another log go on for this one: whoever opens or follows it is told which."""
        await mark_renewed(self._store, self.prefix, target.prefix)

    def events_of(self, partition: int) -> StoredEvents:
        """The events of a partition themselves, which subscriptions and compactors read."""
        self.check_open()
        self.check_partition(partition)
        return self._events[partition]
