"""A log of metadata events in object storage, and how a log is replaced by a new one.

Each event is an object, numbered within its partition. Followers request the next number: soon
after an event, at growing intervals while there is none, and at once after a publish through their
own handle.

`log.json` has the log's id and its number of partitions; neither ever changes. A log is created in
three steps, and a client that finds them unfinished continues: `log.json` with its id, the floors
of all partitions, `log.json` saying that the floors exist. So a floor that is missing later is
known to be lost, and is not mistaken for an empty partition.

`renew` starts a new log with the state of another one: the way out for a log with an event that
cannot be taken back, such as an epoch that no leader ever reaches, and the way to move a log from
Kafka or to another prefix. All leaders and followers of the old log must be stopped, and continue
with the new one. Then the old log names its successor and refuses every client: one that still
used it would merge, remove and scrub by it, and the new log lists the same objects.
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
from headwater.tier.cache import TierCache
from headwater.tier.errors import LogRenewed
from headwater.tier.event_codec import METADATA_PARTITIONS, decode_event
from headwater.tier.eventlog.contract import (
    EventUnreadable,
    MetadataEventLog,
    PartitionFailed,
    PositionReached,
    SnapshotDelivered,
    Subscription,
)
from headwater.tier.eventlog.stored_events import StoredEvents, store_snapshot
from headwater.tier.eventlog.stored_floor import PREFIX, FloorRegister, PartitionKeys, log_key
from headwater.tier.eventlog.stored_subscription import StoredSubscription
from headwater.tier.events import TopicIdPartition
from headwater.tier.snapshot import dump_all, restore_all

LOG_FORMAT: Final = 1
_log: Final = logging.getLogger("headwater")


class LogRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of `log.json`."""

    log_format: int
    log_id: uuid.UUID
    partition_count: int
    made: bool
    """Whether the floors of all partitions exist."""
    renewed_to: str | None = None
    """The prefix of the log that replaces this one, which is no longer opened."""

    def floor_of(self, store: Store, prefix: str, partition: int) -> FloorRegister:
        key = PartitionKeys(prefix, partition).floor
        return FloorRegister(store, key, self.log_id, self.partition_count)


class StoredEventLog(MetadataEventLog):
    """A handle on a log; every process may have its own. For one event loop."""

    def __init__(self, store: Store, prefix: str, record: LogRecord) -> None:
        super().__init__(record.log_id, record.partition_count)
        self._store = store
        self.prefix = prefix
        """The prefix of its keys in the store."""
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
        """The log under a prefix, which is created if there is none.

        `LogRenewed`: it continues under another prefix. `Refused`: it has another number of
        partitions, or not this id.
        """
        record = await _open_record(store, prefix, partition_count, log_id)
        return cls(store, prefix, record)

    async def publish(
        self, partition: int, payload: bytes, *, publisher_epoch: int | None = None
    ) -> int:
        self.check_open()
        self.check_partition(partition)
        try:
            return await self._events[partition].publish(payload, publisher_epoch)
        finally:
            # Also after an error: it may have met events that followers do not know yet.
            for subscription in self._subscriptions:
                subscription.notify(partition)

    async def high_water_marks(self, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """See `MetadataEventLog`. Followers and publishers of a partition that could not be read
        get the error."""
        requested = self._requested(partitions)
        at_once = asyncio.Semaphore(limits.EVENT_MARKS_AT_ONCE)

        async def mark(partition: int) -> int | None:
            async with at_once:
                try:
                    return await self._events[partition].end()
                except (Unavailable, OutcomeUnknown, Damaged, NotSupported, LogRenewed):
                    return None

        marks = zip(requested, await asyncio.gather(*map(mark, requested)), strict=True)
        return {partition: mark for partition, mark in marks if mark is not None}

    async def mark_renewed(self, target: StoredEventLog) -> None:
        """Let another log replace this one: clients of this one get its prefix in `LogRenewed`."""
        await mark_renewed(self._store, self.prefix, target.prefix)

    def events_of(self, partition: int) -> StoredEvents:
        """The events of a partition, which subscriptions and compactors read."""
        self.check_open()
        self.check_partition(partition)
        return self._events[partition]

    async def _new_subscription(self) -> Subscription:
        return StoredSubscription(self, self.events_of)


async def _open_record(
    store: Store, prefix: str, partition_count: int, log_id: uuid.UUID | None
) -> LogRecord:
    if not 1 <= partition_count <= limits.EVENT_PARTITIONS_MAX:
        raise Refused(
            f"an event log has 1 to {limits.EVENT_PARTITIONS_MAX:,} partitions "
            f"(EVENT_PARTITIONS_MAX), not {partition_count}"
        )
    register = Register(store, log_key(prefix), LogRecord)
    new_id = log_id or uuid.UUID(bytes=runtime.new_token())
    fresh = LogRecord(LOG_FORMAT, new_id, partition_count, made=False)
    record = (await register.update(lambda now: now or fresh)).value
    _check(register.key, record, partition_count, log_id)
    if not record.made:
        await _create_floors(store, prefix, record)
        # Based on the present record: other clients may have created the log and renewed it.
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
            f"{partition_count}; with another number, events of streams would be looked for in "
            f"other partitions: open it with {record.partition_count}"
        )
    if log_id is not None and record.log_id != log_id:
        raise Refused(f"{key}: this is log {record.log_id}, not {log_id}, and has other events")


async def _create_floors(store: Store, prefix: str, record: LogRecord) -> None:
    count = record.partition_count
    for first in range(0, count, limits.EVENT_MARKS_AT_ONCE):
        some = range(first, min(count, first + limits.EVENT_MARKS_AT_ONCE))
        floors = [record.floor_of(store, prefix, partition) for partition in some]
        await asyncio.gather(*(floor.create() for floor in floors))


# Renewing


async def mark_renewed(store: Store, prefix: str, renewed_to: str) -> None:
    """Let no client open or follow the log under a prefix: another log replaces it."""
    register = Register(store, log_key(prefix), LogRecord)
    record = (await register.read()).value
    # Followers and publishers read the floors, and clients that open the log its record.
    for partition in range(record.partition_count):
        floor = record.floor_of(store, prefix, partition)
        try:
            await floor.mark_renewed(renewed_to)
        except Damaged as damage:
            # Clients that read it get this error.
            _log.info("%s is not changed: %s", floor.key, damage)
    await register.update(lambda now: msgspec.structs.replace(now or record, renewed_to=renewed_to))


class RenewedLog(msgspec.Struct, frozen=True):
    """The state with which a new log begins."""

    events: tuple[int, ...]
    """How many events the old log had, by metadata partition."""
    partitions: tuple[TopicIdPartition, ...]
    """The partitions of streams that have a state."""


async def renew(
    source: MetadataEventLog, target: StoredEventLog, *, epoch_max: int | None = None
) -> RenewedLog:
    """Start an empty log with the state after all events of another one.

    Publisher epochs above `epoch_max` are lowered to it. Then events of later leaders count again,
    once the log starts of their partitions are lowered as well (`LogStartRegister.lower`).
    """
    if source.partition_count != target.partition_count:
        raise Refused(
            f"a log of {source.partition_count} metadata partitions cannot be renewed to one of "
            f"{target.partition_count}: events of streams would be in other partitions"
        )
    ends = await _ends(source)
    await check_empty(target)
    partitions: list[TopicIdPartition] = []
    for partition in range(target.partition_count):
        if ends[partition]:
            cache = await _state_of(source, partition, ends[partition])
            partitions += cache.partitions()
            await begin_partition(target, partition, ends[partition], _lowered(cache, epoch_max))
    if await _ends(source) != ends:
        raise Refused(
            "events were published to the old log meanwhile: stop all its clients, and begin the "
            "new one under another prefix"
        )
    if isinstance(source, StoredEventLog):
        await source.mark_renewed(target)
    return RenewedLog(
        tuple(ends[partition] for partition in range(target.partition_count)), tuple(partitions)
    )


async def check_empty(target: StoredEventLog) -> None:
    """Raise `Refused` if a new log has events."""
    for partition, end in (await _ends(target)).items():
        if end:
            raise Refused(
                f"the new log has {end:,} events in metadata partition {partition} already: choose "
                "an unused prefix"
            )


async def begin_partition(
    target: StoredEventLog, partition: int, end: int, cache: TierCache
) -> None:
    """Start a metadata partition with the state of a cache, as if after `end` events."""
    events = target.events_of(partition)
    name = await store_snapshot(events, cache, end - 1)
    if (await events.floors.move(end, name)).snapshot != name:
        raise Damaged(f"{events.floors.key} was moved by another client meanwhile: start again")


async def _ends(log: MetadataEventLog) -> Mapping[int, int]:
    ends = await log.high_water_marks()
    if len(ends) < log.partition_count:
        raise Unavailable("a log does not say how far all of its metadata partitions go")
    return ends


async def _state_of(source: MetadataEventLog, partition: int, end: int) -> TierCache:
    cache, position = TierCache(), 0
    subscription = await source.subscribe({partition: 0})
    try:
        while position < end:
            item = await anext(subscription)
            if isinstance(item, PartitionFailed | EventUnreadable):
                raise item.error
            if isinstance(item, SnapshotDelivered):
                cache, position = item.cache, item.through_offset + 1
            elif isinstance(item, PositionReached):
                position = item.next_offset
            else:
                cache.follow(decode_event(item.payload), item.publisher_epoch)
                position = item.offset + 1
    finally:
        await subscription.close()
    return cache


def _lowered(cache: TierCache, epoch_max: int | None) -> TierCache:
    if epoch_max is None:
        return cache
    return restore_all(
        msgspec.structs.replace(dumped, publisher_epoch=min(dumped.publisher_epoch, epoch_max))
        if dumped.publisher_epoch is not None
        else dumped
        for dumped in dump_all(cache)
    )
