"""Tells by events that a stream's partitions are deleted, for whoever deletes the stream.

    the stream says that it is deleted → MARKED, STARTED → its objects go → FINISHED

Always holds: nothing is listed whose object somebody begins to remove; whatever stopped it, the
next attempt goes on.

Nobody leads a deleted stream, so whoever deletes it speaks for it, under an epoch above all that
have spoken: a leader that does not know yet is fenced by that, and lists nothing afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headwater.core import runtime
from headwater.tier.eventlog import MetadataEventLog
from headwater.tier.events import PartitionDelete, PartitionDeleteState
from headwater.tier.events.publisher_epoch import EPOCH_MAX
from headwater.tier.identity import TopicIdPartition
from headwater.tier.manager import TopicMetadataManager

NO_BROKER: Final = -1
_STEPS: Final = (
    PartitionDeleteState.MARKED,
    PartitionDeleteState.STARTED,
    PartitionDeleteState.FINISHED,
)


async def tell_deletion(
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
