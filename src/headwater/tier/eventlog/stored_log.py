"""A log of metadata events in object storage: nothing but a store is needed.

Each event is an object, numbered within its partition. Followers request the next number: soon
after an event came, later and later while none does, and at once after a publish of their own
handle.

`log.json` says which log is stored under a prefix, and how many partitions it has; neither ever
changes. A log is created in three steps, and a client that finds them unfinished goes on:
`log.json` with its id, the floors of all partitions, `log.json` saying that the floors exist. So a
floor that is missing later is known to be lost, and is not taken for an empty partition.

A log that was replaced by one under another prefix says so, and is opened and followed no more: a
client that went on with it would merge, remove and scrub by what it says, and the other log lists
the same objects.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import uuid
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from headwater.core import limits, runtime
from headwater.core.errors import Damaged, NotSupported, OutcomeUnknown, Refused, Unavailable
from headwater.store import Register, Store
from headwater.tier.errors import LogRenewed
from headwater.tier.event_codec import METADATA_PARTITIONS
from headwater.tier.eventlog.contract import PartitionedLog
from headwater.tier.eventlog.stored_events import StoredEvents
from headwater.tier.eventlog.stored_floor import PREFIX, FloorRegister, PartitionKeys, log_key
from headwater.tier.eventlog.stored_subscription import StoredSubscription

LOG_FORMAT: Final = 1
_log: Final = logging.getLogger("headwater")


class LogRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of `log.json`."""

    log_format: int
    log_id: uuid.UUID
    partition_count: int
    made: bool
    renewed_to: str | None = None
    """The prefix of the log that replaces this one, which is opened no more."""


async def open_record(
    store: Store, prefix: str, partition_count: int, log_id: uuid.UUID | None
) -> LogRecord:
    """The log under a prefix, made if there is none; `Refused` if it is not the one expected."""
    if not 1 <= partition_count <= limits.EVENT_PARTITIONS_MAX:
        raise Refused(
            f"a log of events has 1 to {limits.EVENT_PARTITIONS_MAX:,} partitions "
            f"(EVENT_PARTITIONS_MAX), not {partition_count}"
        )
    register = Register(store, log_key(prefix), LogRecord)
    new_id = log_id or uuid.UUID(bytes=runtime.new_token())
    fresh = LogRecord(LOG_FORMAT, new_id, partition_count, made=False)
    record = (await register.update(lambda now: now or fresh)).value
    _check(register.key, record, partition_count, log_id)
    if not record.made:
        await _create_floors(store, prefix, record)
        # On top of what is there by then: others may have made the log, and renewed it since.
        record = (await register.update(functools.partial(_made, record))).value
        _check(register.key, record, partition_count, log_id)
    return record


def _made(before: LogRecord, now: LogRecord | None) -> LogRecord:
    return msgspec.structs.replace(now or before, made=True)


def _check(key: str, record: LogRecord, partition_count: int, log_id: uuid.UUID | None) -> None:
    if record.log_format != LOG_FORMAT:
        raise NotSupported(
            f"{key} is of format {record.log_format}; this version reads {LOG_FORMAT}: upgrade "
            "Headwater"
        )
    if record.renewed_to is not None:
        raise LogRenewed.to(record.renewed_to, key)
    if record.partition_count != partition_count:
        raise Refused(
            f"{key}: the log has {record.partition_count} metadata partitions, not "
            f"{partition_count}; with another number streams would lie in other partitions: open "
            f"it with {record.partition_count}"
        )
    if log_id is not None and record.log_id != log_id:
        raise Refused(
            f"{key}: this is log {record.log_id}, not {log_id}: what is known of one says nothing "
            "about the other"
        )


async def mark_renewed(store: Store, prefix: str, renewed_to: str) -> None:
    """Let no client open or follow the log under a prefix: another log replaces it."""
    register = Register(store, log_key(prefix), LogRecord)
    record = (await register.read()).value
    # Followers and publishers read the floors, and clients that open the log its record.
    for partition in range(record.partition_count):
        floors = FloorRegister(
            store, PartitionKeys(prefix, partition).floor, record.log_id, record.partition_count
        )
        try:
            await floors.mark_renewed(renewed_to)
        except Damaged as damage:
            # Clients that read it are refused for that.
            _log.info("%s stays as it is: %s", floors.key, damage)
    await register.update(lambda now: msgspec.structs.replace(now or record, renewed_to=renewed_to))


async def _create_floors(store: Store, prefix: str, record: LogRecord) -> None:
    count = record.partition_count
    for first in range(0, count, limits.EVENT_MARKS_AT_ONCE):
        await asyncio.gather(
            *(
                FloorRegister(
                    store, PartitionKeys(prefix, partition).floor, record.log_id, count
                ).create()
                for partition in range(first, min(count, first + limits.EVENT_MARKS_AT_ONCE))
            )
        )


class StoredEventLog(PartitionedLog[StoredSubscription]):
    """One handle on a log; every process may have its own. For one event loop."""

    def __init__(self, store: Store, prefix: str, record: LogRecord) -> None:
        super().__init__(record.partition_count)
        self._store = store
        self.prefix = prefix
        """Where in the store it is."""
        self._log_id = record.log_id
        self._events = [
            StoredEvents(store, prefix, partition, record.log_id, record.partition_count)
            for partition in range(record.partition_count)
        ]

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
            return await self._events[partition].publish(payload, publisher_epoch)
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
        """One past the last offset of each partition that could be read.

        Followers and publishers of a partition get the error why it could not be read.
        """
        wanted = self.requested(partitions)
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
        """Let another log replace this one: clients that open or follow this one learn which."""
        await mark_renewed(self._store, self.prefix, target.prefix)

    def events_of(self, partition: int) -> StoredEvents:
        """The events of a partition themselves, which subscriptions and compactors read."""
        self.check_open()
        self.check_partition(partition)
        return self._events[partition]
