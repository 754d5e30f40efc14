"""Managers over logs that do what they are told, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from headwater.core import runtime
from headwater.core.errors import HeadwaterError
from headwater.testing import FaultyDisk
from headwater.tier import TopicIdPartition, metadata_partition_for
from headwater.tier.eventlog import InProcessEventLog, LogItem, MetadataEventLog, Subscription
from headwater.tier.eventlog.contract import InProcessSubscription
from headwater.tier.manager import ManagerConfig, TopicMetadataManager
from headwater.tier.manager.following import PartitionStatus
from tests.tier.given import ORDERS, finished, started

FOLDER = "/tier"
PARTITIONS = 4
HOME = metadata_partition_for(ORDERS, PARTITIONS)
"""The metadata partition that has the events of `ORDERS`."""
ELSEWHERE = next(p for p in range(PARTITIONS) if p != HOME)


class TamperedLog(InProcessEventLog):
    """A log in memory that fails as it is told; several may stand for the same log."""

    def __init__(
        self, partition_count: int = PARTITIONS, *, same_as: InProcessEventLog | None = None
    ) -> None:
        super().__init__(partition_count)
        if same_as is not None:
            self.log_id, self._events = same_as.log_id, same_as._events
            self._subscriptions = same_as._subscriptions
        self.marks_error: HeadwaterError | None = None
        self.marks_missing: set[int] = set()
        self.marks_hang = False
        self.marks_asked = 0
        self.asked_for: list[Iterable[int] | None] = []
        self.marks_late: asyncio.Event | None = None
        """What is asked for while this is set is answered as of then, when the event is."""
        self.publish_error: HeadwaterError | None = None
        self.publish_hangs = False
        self.publish_takes_s = 0.0
        self.subscribe_error: HeadwaterError | None = None
        self.subscribe_hangs = False
        self.subscription: TamperedSubscription | None = None
        """The one that was made last."""
        self.is_held = False
        """Whether nothing is delivered, as if the network were slow."""
        self.starts: list[tuple[int, int]] = []
        """Partitions that were followed, with the offset from which they were."""

    async def publish(
        self, partition: int, payload: bytes, *, publisher_epoch: int | None = None
    ) -> int:
        if self.publish_error is not None:
            raise self.publish_error
        await runtime.sleep(self.publish_takes_s)
        offset = await super().publish(partition, payload, publisher_epoch=publisher_epoch)
        if self.publish_hangs:
            await asyncio.Event().wait()
        return offset

    async def _new_subscription(self) -> Subscription:
        if self.subscribe_hangs:
            await asyncio.Event().wait()
        if self.subscribe_error is not None:
            raise self.subscribe_error
        self.subscription = TamperedSubscription(self)
        return self.subscription

    async def high_water_marks(self, partitions: Iterable[int] | None = None) -> dict[int, int]:
        self.marks_asked += 1
        self.asked_for.append(partitions)
        if self.marks_late is not None:
            marks, late = await super().high_water_marks(partitions), self.marks_late
            await late.wait()
            return marks
        if self.marks_hang:
            await asyncio.Event().wait()
        if self.marks_error is not None:
            raise self.marks_error
        marks = await super().high_water_marks(partitions)
        return {p: mark for p, mark in marks.items() if p not in self.marks_missing}

    def deliver(self, *items: LogItem) -> None:
        """Put items before whatever comes next."""
        assert self.subscription is not None
        self.subscription.put.extend(items)
        self.subscription.wake()

    def hold(self, is_held: bool = True) -> None:
        """Deliver nothing of the log, or go on."""
        self.is_held = is_held
        if self.subscription is not None:
            self.subscription.wake()

    def break_off(self, error: Exception) -> None:
        """Let the subscription fail as a whole."""
        assert self.subscription is not None
        self.subscription.error = error
        self.subscription.wake()


class TamperedSubscription(InProcessSubscription):
    """A subscription into which anything can be put: items before the next ones, or an error."""

    def __init__(self, log: TamperedLog) -> None:
        super().__init__(log)
        self.tampered = log
        self.put: list[LogItem] = []
        self.error: Exception | None = None

    def add(self, partition: int, start_offset: int) -> None:
        self.tampered.starts.append((partition, start_offset))
        super().add(partition, start_offset)

    def _take(self) -> LogItem | None:
        if self.error is not None:
            raise self.error
        if self.put:
            return self.put.pop(0)
        return None if self.tampered.is_held else super()._take()


async def start(
    log: MetadataEventLog,
    assigned: Iterable[int] = (),
    *,
    disk: FaultyDisk | None = None,
    **config: float,
) -> TopicMetadataManager:
    """A manager that follows these metadata partitions, and has subscribed."""
    manager = await TopicMetadataManager.start(
        log,
        None if disk is None else FOLDER,
        config=ManagerConfig(**config),
        disk=disk,
    )
    await manager.reconcile_assignment(assigned)
    await runtime.sleep(0.01)
    return manager


async def start_all(
    log: MetadataEventLog, *, disk: FaultyDisk | None = None, **config: float
) -> TopicMetadataManager:
    """A manager that follows everything, and has caught up."""
    manager = await start(log, range(log.partition_count), disk=disk, **config)
    for partition in range(log.partition_count):
        await manager.wait_ready(partition)
    return manager


async def copy_segment(
    manager: TopicMetadataManager,
    number: int,
    start_offset: int,
    end_offset: int,
    *,
    publisher: int | None = None,
    partition: TopicIdPartition = ORDERS,
) -> None:
    """Publish that a copy began and finished."""
    began = started(number, start_offset, end_offset, publisher=publisher, partition=partition)
    await manager.publish(began)
    await manager.publish(finished(number, publisher=publisher, partition=partition))


def numbers(manager: TopicMetadataManager, partition: TopicIdPartition = ORDERS) -> list[int]:
    """The segments that are listed."""
    return [one.segment_id.id.int for one in manager.partition(partition).segments()]


def status_of(manager: TopicMetadataManager, partition: int = HOME) -> PartitionStatus:
    return next(one for one in manager.status().partitions if one.partition == partition)
