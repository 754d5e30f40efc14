"""Deletes what the tier has of a partition: by its leader, for a deleted stream, or with tiering
off.

    a leader deletes:    MARKED, STARTED → log start moves → segments go → FINISHED
    a stream is deleted: the stream is marked deleted → MARKED, STARTED → its objects go → FINISHED

Each can be interrupted at every step; the next attempt continues. A deleted partition has no
readers, so its objects are removed at once. A deleted stream has no leader: the command that
deletes it publishes under an epoch above all earlier ones, so a leader that still runs is fenced
and lists nothing afterwards.

With `tiering=delete`, segments stay that a slot needs and the local log does not have; the log
start moves before anything below it is unlisted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

from headwater.core import runtime
from headwater.tier.eventlog import MetadataEventLog
from headwater.tier.events import (
    EPOCH_MAX,
    PartitionDelete,
    PartitionDeleteState,
    SegmentState,
    TopicIdPartition,
)
from headwater.tier.jobs.led_partition import ItemFailures, LedPartition
from headwater.tier.jobs.removal import remove_object
from headwater.tier.manager import TopicMetadataManager
from headwater.tier.segment_cover import walk_segments


async def delete_partition(led: LedPartition) -> None:
    """Go on from wherever the deletion has come to."""
    if led.metadata.delete_state() is None:
        await led.voice.partition_deletion(PartitionDeleteState.MARKED)
    if led.metadata.delete_state() is PartitionDeleteState.MARKED:
        await led.voice.partition_deletion(PartitionDeleteState.STARTED)
    # Whatever the slots say. Should somebody lead it again with what is left on a disk, that is all
    # there is, and nothing is lost of it.
    led.log_start = await led.register.move(led.leader.epoch, led.local.oldest_lsn())
    setbacks = ItemFailures()
    async with aclosing(walk_segments(led.metadata)) as segments:
        async for segment in segments:
            with setbacks.kept():
                if segment.state is not SegmentState.DELETE_STARTED:
                    await led.voice.unlist(segment)
                await remove_object(led, segment.segment_id)
    # What no event names is of copies whose outcome was not known.
    async for segment_id, _ in led.storage.objects():
        if segment_id is not None and led.metadata.find(segment_id) is None:
            with setbacks.kept():
                await led.storage.delete(segment_id)
    setbacks.tell()
    await led.voice.partition_deletion(PartitionDeleteState.FINISHED)


_log: Final = logging.getLogger("headwater")


async def drop_remote(led: LedPartition) -> None:
    """Let the log begin where the local one does, and unlist what nobody needs remote any more.

    Tiering that is turned on again copies from there on.
    """
    local = led.local
    wanted = min(local.oldest_lsn(), led.leader.slot_floor_lsn() + 1)
    if wanted > led.first_lsn:
        _log.warning(
            "tiering=delete gives up LSNs %d to %d of %s, which the local log does not have",
            led.first_lsn,
            wanted - 1,
            led.leader.partition,
        )
        await led.move_log_start(wanted)
    async with aclosing(walk_segments(led.metadata)) as segments:
        async for segment in segments:
            if segment.state is not SegmentState.COPY_FINISHED:
                continue
            # From the log start up to where the local log begins, only the tier has it.
            only_remote = range(
                max(segment.start_offset, led.first_lsn),
                min(segment.end_offset + 1, local.oldest_lsn()),
            )
            if not only_remote and segment.end_offset <= local.current_lsn():
                await led.unlist(segment)


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
