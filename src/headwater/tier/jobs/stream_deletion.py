"""Publishes that the partitions of a deleted stream are deleted.

    the stream is marked deleted → MARKED, STARTED → its objects are removed → FINISHED

Always holds: no segment is listed whose object is being removed; after an interruption the next
attempt continues.

A deleted stream has no leader. The command that deletes it publishes under an epoch above all
earlier ones, so a leader that still runs is fenced and lists nothing afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headwater.core import runtime
from headwater.tier.eventlog import MetadataEventLog
from headwater.tier.events import EPOCH_MAX, PartitionDelete, PartitionDeleteState, TopicIdPartition
from headwater.tier.manager import TopicMetadataManager

NO_BROKER: Final = -1
_STEPS: Final = (
    PartitionDeleteState.MARKED,
    PartitionDeleteState.STARTED,
    PartitionDeleteState.FINISHED,
)


async def publish_deletion(
    log: MetadataEventLog, partitions: Sequence[TopicIdPartition], through: PartitionDeleteState
) -> int:
    """Publish that these partitions are deleted, as far as that; how many were listed.

    Of one of which nothing is listed nothing is said. `Fenced`: somebody leads one all the same;
    look what that is, and try again.
    """
    manager = await TopicMetadataManager.start(log)
    try:
        followed = {manager.metadata_partition(one) for one in partitions}
        await manager.reconcile_assignment(followed)
        for metadata_partition in sorted(followed):
            await manager.wait_ready(metadata_partition)
        listed = [one for one in partitions if manager.partition(one) is not None]
        for partition in listed:
            await _tell(manager, partition, through)
        return len(listed)
    finally:
        await manager.close()


async def _tell(
    manager: TopicMetadataManager, partition: TopicIdPartition, through: PartitionDeleteState
) -> None:
    spoken = manager.publisher_epoch(partition)
    epoch = 0 if spoken is None else min(spoken + 1, EPOCH_MAX)
    now = manager.delete_state(partition)
    done = 0 if now is None else _STEPS.index(now) + 1
    for state in _STEPS[done : _STEPS.index(through) + 1]:
        event = PartitionDelete(partition, NO_BROKER, runtime.wall_ms(), state)
        await manager.publish(event, publisher_epoch=epoch)
