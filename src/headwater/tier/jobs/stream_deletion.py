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
from headwater.tier.events import (
    EPOCH_MAX,
    NO_BROKER,
    PartitionDelete,
    PartitionDeleteState,
    TopicIdPartition,
)
from headwater.tier.manager import TopicMetadataManager

_STEPS: Final = (
    PartitionDeleteState.MARKED,
    PartitionDeleteState.STARTED,
    PartitionDeleteState.FINISHED,
)


async def publish_deletion(
    log: MetadataEventLog, partitions: Sequence[TopicIdPartition], through: PartitionDeleteState
) -> int:
    """Publish the deletion of these partitions through that state; returns how many were known.

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
            await _publish(manager, partition, through)
        return len(listed)
    finally:
        await manager.close()


async def _publish(
    manager: TopicMetadataManager, partition: TopicIdPartition, through: PartitionDeleteState
) -> None:
    known = manager.partition(partition)
    newest, now = known.publisher_epoch, known.delete_state
    epoch = 0 if newest is None else min(newest + 1, EPOCH_MAX)
    done = 0 if now is None else _STEPS.index(now) + 1
    for state in _STEPS[done : _STEPS.index(through) + 1]:
        event = PartitionDelete(partition, NO_BROKER, runtime.wall_ms(), state)
        await manager.publish(event, publisher_epoch=epoch)
