"""Deletes what the tier has of a partition, or drops what is remote when tiering is off.

    MARKED → STARTED → log start moves → every segment is unlisted and removed → FINISHED

A deletion can be interrupted at every step; the next attempt continues. A deleted partition has no
readers, so its objects are removed at once.

With `tiering=delete`, segments stay that a slot needs and the local log does not have; the log
start moves before anything below it is unlisted.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import Final

from headwater.tier.events import PartitionDeleteState, SegmentState
from headwater.tier.jobs.led_partition import ItemFailures, LedPartition
from headwater.tier.jobs.removal import remove_object
from headwater.tier.segment_cover import walk_segments


async def delete_partition(led: LedPartition) -> None:
    """Go on from wherever the deletion has come to."""
    if led.metadata.state().delete_state is None:
        await led.voice.partition_deletion(PartitionDeleteState.MARKED)
    if led.metadata.state().delete_state is PartitionDeleteState.MARKED:
        await led.voice.partition_deletion(PartitionDeleteState.STARTED)
    # Whatever the slots say. Should somebody lead it again with what is left on a disk, that is all
    # there is, and nothing is lost of it.
    led.log_start = await led.register.move(led.leader.epoch, led.local.oldest_lsn())
    setbacks = ItemFailures()
    async with aclosing(walk_segments(led.metadata.state)) as segments:
        async for segment in segments:
            with setbacks.kept():
                if segment.state is not SegmentState.DELETE_STARTED:
                    await led.voice.unlist(segment)
                await remove_object(led, segment.segment_id)
    # What no event names is of copies whose outcome was not known.
    async for segment_id, _ in led.storage.objects():
        if segment_id is not None and led.metadata.state().find(segment_id) is None:
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
    async with aclosing(walk_segments(led.metadata.state)) as segments:
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
