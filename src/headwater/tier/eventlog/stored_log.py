"""A log of metadata events in object storage, and subscriptions to it.

Each event is an object, numbered within its partition. A task follows each partition of a
subscription: it requests the next number soon after an event, at growing intervals while there is
none, and at once after a publish through its own handle. Below the floor a snapshot is delivered
first, and then the later events. A follower that falls behind deleted events gets the snapshot as
well: it has everything that was missed.

`log.json` has the log's id and its number of partitions; neither ever changes. A log is created in
three steps, and a client that finds them unfinished continues: `log.json` with its id, the floors
of all partitions, `log.json` saying that the floors exist. So a floor that is missing later is
known to be lost, and is not mistaken for an empty partition.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from headwater.core import limits, runtime
from headwater.core.errors import (
    Damaged,
    EntriesTrimmed,
    HeadwaterError,
    NotSupported,
    OutcomeUnknown,
    Refused,
    RolledBack,
    Unavailable,
)
from headwater.store import Register, Store
from headwater.tier.errors import LogRenewed
from headwater.tier.event_codec import METADATA_PARTITIONS
from headwater.tier.eventlog.contract import (
    LogItem,
    MetadataEventLog,
    PartitionFailed,
    RoundRobinSubscription,
    SnapshotDelivered,
    Subscription,
)
from headwater.tier.eventlog.stored_events import (
    PREFIX,
    FloorRegister,
    PartitionFloor,
    PartitionKeys,
    StoredEvents,
    load_snapshot,
    log_key,
)

LOG_FORMAT: Final = 1
_log: Final = logging.getLogger("headwater")


class LogRecord(msgspec.Struct, frozen=True, omit_defaults=True):
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
        self.store = store
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

    def events_of(self, partition: int) -> StoredEvents:
        self.check_open()
        self.check_partition(partition)
        return self._events[partition]

    async def _new_subscription(self) -> Subscription:
        return StoredSubscription(self, self._events)


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


class PartitionFollower:
    """Fetches the items of one partition from an offset on, in order, some of them ahead."""

    def __init__(
        self, events: StoredEvents, start_offset: int, on_items: Callable[[], None]
    ) -> None:
        self._events = events
        self._next = start_offset
        self._on_items = on_items
        self._items: deque[LogItem] = deque()
        self._woken: asyncio.Future[None] | None = None
        self._end_checked_s = -math.inf
        self.crash: BaseException | None = None
        """The error that ended it and that no item contains: a bug."""
        name = f"follow metadata partition {events.partition}"
        self.task = runtime.spawn(self._run(), name=name)

    def take(self) -> LogItem | None:
        if not self._items:
            return None
        if len(self._items) == limits.EVENTS_READY:
            self.wake()  # there is room again
        return self._items.popleft()

    def wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def cancel(self) -> None:
        """Stop fetching. From any thread."""
        runtime.call_on(self.task.get_loop(), self.task.cancel)

    async def _run(self) -> None:
        try:
            await self._begin()
            await self._follow()
        except HeadwaterError as error:
            self._add(PartitionFailed(self._events.partition, error))
        except Exception as error:
            self.crash = error
            self._on_items()

    async def _begin(self) -> None:
        """Begin with the snapshot below the floor; `RolledBack` above the end."""
        events, start = self._events, self._next
        while True:
            floor, is_reached = await asyncio.gather(events.floors.read(), events.reaches(start))
            if start < floor.floor:
                await self._deliver_snapshot(floor)
                return
            if start == floor.floor or is_reached:
                return
            if events.leased_floor.covers(start - 1):
                raise RolledBack(
                    f"metadata partition {events.partition} ends below the requested offset "
                    f"{start}: this is not the log that was followed before"
                )

    async def _follow(self) -> None:
        at_once, idle_s = 1, limits.FOLLOW_POLL_BASE_S
        while True:
            while len(self._items) >= limits.EVENTS_READY:
                await self._wait(None)
            ahead = self._events.next_number - self._next
            at_once = max(at_once, min(ahead, limits.EVENT_READS_AT_ONCE))
            try:
                events = await self._events.read_events(self._next, at_once)
            except EntriesTrimmed:
                await self._deliver_snapshot(await self._events.floors.read())
                continue
            self._next += len(events)
            self._add(*events)
            if len(events) == at_once:
                at_once = min(2 * at_once, limits.EVENT_READS_AT_ONCE)
                continue
            idle_s = limits.FOLLOW_POLL_BASE_S if events else idle_s
            at_once = 1
            # Checked again after the listing: a publish meanwhile finds no waiter to wake.
            if self._is_caught_up and await self._is_end() and self._is_caught_up:
                await self._wait(idle_s)
            idle_s = min(2 * idle_s, limits.FOLLOW_POLL_CAP_S)

    @property
    def _is_caught_up(self) -> bool:
        return self._events.next_number <= self._next

    async def _is_end(self) -> bool:
        """Whether there are no more events. From time to time a listing verifies that."""
        if runtime.monotonic_s() - self._end_checked_s < limits.EVENT_END_CHECK_S:
            return True
        is_end = await self._events.is_end(self._next)
        self._end_checked_s = runtime.monotonic_s()
        return is_end

    async def _deliver_snapshot(self, floor: PartitionFloor) -> None:
        floor, cache = await load_snapshot(self._events, floor)
        self._next = floor.floor
        self._add(SnapshotDelivered(self._events.partition, floor.floor - 1, cache))

    def _add(self, *items: LogItem) -> None:
        if items:
            self._items.extend(items)
            self._on_items()

    async def _wait(self, seconds: float | None) -> None:
        self._woken = asyncio.get_running_loop().create_future()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken
        self._woken = None


class StoredSubscription(RoundRobinSubscription[PartitionFollower]):
    """A follower for each assigned partition.

    Their tasks reference the subscription weakly: one that is dropped without being closed leaves
    no task.
    """

    def __init__(self, log: StoredEventLog, events: Sequence[StoredEvents]) -> None:
        super().__init__(log)
        self._events = events
        wake = weakref.WeakMethod(self.wake)

        def wake_if_alive() -> None:
            alive = wake()
            if alive is not None:
                alive()

        self._on_items = wake_if_alive
        weakref.finalize(self, _cancel_all, self._followed).atexit = False

    async def close(self) -> None:
        followed = list(self._followed.values())
        await super().close()
        tasks = (follower.task for follower in followed)
        await asyncio.gather(*tasks, return_exceptions=True)

    def notify(self, partition: int) -> None:
        follower = self._followed.get(partition)
        if follower is not None:
            follower.wake()

    def _follow(self, partition: int, start_offset: int) -> PartitionFollower:
        return PartitionFollower(self._events[partition], start_offset, self._on_items)

    def _stop(self, followed: PartitionFollower) -> None:
        followed.cancel()

    def _next_of(self, partition: int, followed: PartitionFollower) -> LogItem | None:
        item = followed.take()
        if item is None and followed.crash is not None:
            raise followed.crash
        return item


def _cancel_all(followed: dict[int, PartitionFollower]) -> None:
    for follower in followed.values():
        follower.cancel()
