"""Partitions of streams as a manager follows them: state, publishing, the deletion of a stream."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.core import runtime
from headwater.core.errors import Refused
from headwater.tier.cache import EventOutcome, PartitionCache
from headwater.tier.errors import NotReady
from headwater.tier.eventlog import MetadataEventLog
from headwater.tier.events import (
    EPOCH_MAX,
    NO_BROKER,
    MetadataEvent,
    PartitionDelete,
    PartitionDeleteState,
    TopicIdPartition,
)
from headwater.tier.manager.manager import TopicMetadataManager
from headwater.tier.segment_cover import CoverPiece, walk_cover


class ManagedPartition:
    """The metadata of one partition, for jobs and readers.

    `NotReady` if the manager does not follow the partition's events: the manager has no state then,
    and a job that used an empty one would treat all segments as deleted.
    """

    def __init__(self, manager: TopicMetadataManager, partition: TopicIdPartition) -> None:
        self._manager = manager
        self._partition = partition

    async def refresh(self) -> None:
        """Apply all events that the log has now."""
        try:
            await self._manager.refresh(self._manager.metadata_partition(self._partition))
        except Refused:
            self._check_assigned()  # the reason, if the partition is not or no longer assigned
            raise

    async def publish(self, event: MetadataEvent, *, publisher_epoch: int) -> EventOutcome:
        """Append an event, wait until it is applied here, and return what it changed.

        `Fenced`: a newer leader has published. `EventRejected`: the event does not follow from the
        state. `Unavailable`: it was not appended. `OutcomeUnknown`: it may have been appended or
        may be later, but never after an event that is published afterwards.
        """
        self._check_assigned()
        return await self._manager.publish(event, publisher_epoch=publisher_epoch)

    def state(self) -> PartitionCache:
        """The state after all events applied so far: do not keep it over an `await`."""
        self._check_assigned()
        return self._manager.partition(self._partition)

    async def refreshed_cover(self, first_lsn: int, end_lsn: int) -> Sequence[CoverPiece]:
        """The cover of [first_lsn, end_lsn) after all events that the log has now: a `CoverSource`.

        A log is pruned as soon as its leader has copied it. A reader follows the events itself and
        may not have applied them yet: without the refresh, existing records would appear to be
        missing.
        """
        await self.refresh()
        return [piece async for piece in walk_cover(self.state, first_lsn, end_lsn)]

    def _check_assigned(self) -> None:
        metadata_partition = self._manager.metadata_partition(self._partition)
        # A partition that is ready is assigned: this is the cheap check, made first.
        is_ready = self._manager.is_ready(metadata_partition)
        if not is_ready and metadata_partition not in self._manager.assigned():
            raise NotReady(
                f"metadata partition {metadata_partition}, which has the events of "
                f"{self._partition}, is not followed: assign it (reconcile_assignment), then try "
                "again",
                partition=metadata_partition,
            )


async def publish_deletion(
    log: MetadataEventLog, partitions: Sequence[TopicIdPartition], through: PartitionDeleteState
) -> int:
    """Publish the deletion of a stream's partitions through a state; returns how many had a state.

        the stream is marked deleted → MARKED, STARTED → its objects are removed → FINISHED

    So no segment is listed whose object is being removed, and after an interruption the next
    attempt continues. A deleted stream has no leader: this publishes under an epoch above all
    earlier ones, so a leader that still runs is fenced and lists nothing afterwards.

    Nothing is published about partitions without a state. `Fenced`: a newer leader runs for one of
    them; find it, and try again.
    """
    manager = await TopicMetadataManager.start(log)
    try:
        followed = {manager.metadata_partition(one) for one in partitions}
        await manager.reconcile_assignment(followed)
        for metadata_partition in sorted(followed):
            await manager.wait_ready(metadata_partition)
        listed = [one for one in partitions if not manager.partition(one).is_blank]
        for partition in listed:
            cache = manager.partition(partition)
            newest, now = cache.publisher_epoch, cache.delete_state
            epoch = 0 if newest is None else min(newest + 1, EPOCH_MAX)
            for state in PartitionDeleteState:
                if state <= through and (now is None or state > now):
                    event = PartitionDelete(partition, NO_BROKER, runtime.wall_ms(), state)
                    await manager.publish(event, publisher_epoch=epoch)
        return len(listed)
    finally:
        await manager.close()
