"""The tier of a stream's partitions, to look at: nobody is fenced, and nothing is published."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from headwater.buffer.stream import Stream
from headwater.cli.event_log_place import EventLogPlace
from headwater.core.errors import Refused
from headwater.store import Store
from headwater.tier import TopicIdPartition, TopicMetadataManager
from headwater.tier.jobs import LogStartRegister
from headwater.tier.manager import ManagedPartition

if TYPE_CHECKING:
    from headwater.tier.jobs import ParquetSegments


@dataclass(frozen=True)
class TierPlace:
    """One partition."""

    partition: TopicIdPartition
    metadata: ManagedPartition
    store: Store
    log_start: LogStartRegister
    first_lsn: int
    """The log start; 0 if nobody has led the partition with a tier."""
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
async def open_places(
    store: Store, events: EventLogPlace, stream: Stream, partitions: Sequence[int]
) -> AsyncIterator[list[TierPlace]]:
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
            yield [await _place(store, manager, place) for place in places]
        finally:
            await manager.close()


async def _place(
    store: Store, manager: TopicMetadataManager, partition: TopicIdPartition
) -> TierPlace:
    register = LogStartRegister(store, partition)
    start = await register.read()
    return TierPlace(
        partition,
        ManagedPartition(manager, partition),
        store,
        register,
        0 if start is None else start.first_lsn,
        None if start is None else start.leader_epoch,
        manager.partition(partition).publisher_epoch,
    )
