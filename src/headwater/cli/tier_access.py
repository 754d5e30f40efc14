"""The tier of a stream: its partitions, to look at, and the events that its deletion publishes.

Opening partitions fences nothing and publishes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from headwater.buffer.stream import DeletedReport, Stream, delete_stream
from headwater.buffer.stream.config import StreamConfig
from headwater.cli.options import EventLogOptions
from headwater.core.errors import Damaged, NotFound, Refused
from headwater.store import Store
from headwater.tier import PartitionDeleteState, TopicIdPartition, TopicMetadataManager
from headwater.tier.eventlog import MetadataEventLog
from headwater.tier.jobs import LogStartRegister
from headwater.tier.manager import ManagedPartition

if TYPE_CHECKING:
    from headwater.tier.jobs import ParquetSegments


@dataclass(frozen=True)
class TierPartition:
    """One partition."""

    partition: TopicIdPartition
    metadata: ManagedPartition
    store: Store
    log_start: LogStartRegister
    first_lsn: int
    """The log start; 0 if no leader with a tier has opened the partition."""
    leader_epoch: int | None
    """Of the last leader that began, as the log start says."""
    heard_epoch: int | None
    """The newest one that the events tell of."""

    @cached_property
    def storage(self) -> ParquetSegments:
        """Its segments, which need Arrow; its metadata do not."""
        from headwater.tier.jobs import ParquetSegments

        return ParquetSegments(self.store, self.partition)

    def check_heard(self) -> None:
        """Raise `Refused` if its leader speaks in another log of events than this one.

        What that one lists would look like orphans. A leader speaks before it moves the log start.
        """
        if self.leader_epoch is not None and self.leader_epoch > (self.heard_epoch or 0):
            raise Refused(
                f"{self.partition} is led with epoch {self.leader_epoch}, of which this log of "
                "events has not heard: name the log that its leader uses (--prefix, "
                "--bootstrap-servers)"
            )


@asynccontextmanager
async def open_partitions(
    store: Store, events: EventLogOptions, stream: Stream, partitions: Sequence[int]
) -> AsyncIterator[list[TierPartition]]:
    """Follow the events of these partitions to their end; `NotFound` if there is no log of them."""
    async with events.opened(store) as log:
        manager = await TopicMetadataManager.start(log)
        try:
            places = [
                TopicIdPartition.of_stream(stream.id, stream.name, number) for number in partitions
            ]
            followed = {manager.metadata_partition(place) for place in places}
            await manager.reconcile_assignment(followed)
            for one in sorted(followed):
                await manager.wait_ready(one)
            yield [await _tier_partition(store, manager, place) for place in places]
        finally:
            await manager.close()


async def _tier_partition(
    store: Store, manager: TopicMetadataManager, partition: TopicIdPartition
) -> TierPartition:
    register = LogStartRegister(store, partition)
    start = await register.read()
    return TierPartition(
        partition,
        ManagedPartition(manager, partition),
        store,
        register,
        0 if start is None else start.first_lsn,
        None if start is None else start.leader_epoch,
        manager.partition(partition).publisher_epoch,
    )


async def delete_with_tier(
    store: Store, name: str, events: EventLogOptions, *, stream_id: str | None = None
) -> tuple[DeletedReport, Damaged | None]:
    """Delete a stream; what that did, and why its tier's events could not be told, if so.

    `stream_id` is that of the stream that is meant; without it, the one that has the name now.

    Events that cannot be reached hold up the objects: what is listed would be gone. Events that are
    damaged do not, because nobody reads by them.
    """
    async with AsyncExitStack() as stack:
        told = _DeletionEvents(await _log_if_any(store, events, stack))
        report = await delete_stream(store, name, stream_id=stream_id, before_objects=told.begin)
        if not report.failed:
            await told.tell(PartitionDeleteState.FINISHED)
        return report, told.damage


class _DeletionEvents:
    def __init__(self, log: MetadataEventLog | None) -> None:
        self.damage: Damaged | None = None
        self._log = log
        self._partitions: list[TopicIdPartition] = []

    async def begin(self, stream: StreamConfig) -> None:
        self._partitions = [
            TopicIdPartition.of_stream(stream.id, stream.name, number)
            for number in range(stream.partitions)
        ]
        await self.tell(PartitionDeleteState.STARTED)

    async def tell(self, through: PartitionDeleteState) -> None:
        if self._log is None or self.damage is not None:
            return
        # Here: most stores have no tier, and need no manager of its events.
        from headwater.tier.jobs import publish_deletion

        try:
            await publish_deletion(self._log, self._partitions, through)
        except Damaged as damage:
            self.damage = damage


async def _log_if_any(
    store: Store, events: EventLogOptions, stack: AsyncExitStack
) -> MetadataEventLog | None:
    """The log of events; None if nothing was ever copied to a tier here."""
    try:
        return await stack.enter_async_context(events.opened(store))
    except NotFound:
        if not events.is_default:
            raise
        return None
