"""Deletes all that the tier has of a partition, and can be taken up again at every step.

    MARKED → STARTED → the log start moves → every segment unlisted and removed → FINISHED

Nobody reads a partition that is deleted: its objects go at once.
"""

from __future__ import annotations

from contextlib import aclosing

from headwater.tier.events import PartitionDeleteState, SegmentState
from headwater.tier.jobs.led_partition import LedPartition
from headwater.tier.jobs.removal import remove
from headwater.tier.jobs.setbacks import Setbacks
from headwater.tier.walking import walk_segments


async def delete_partition(led: LedPartition) -> None:
    """Go on from wherever the deletion has come to."""
    if led.metadata.delete_state() is None:
        await led.voice.partition_deletion(PartitionDeleteState.MARKED)
    if led.metadata.delete_state() is PartitionDeleteState.MARKED:
        await led.voice.partition_deletion(PartitionDeleteState.STARTED)
    # Whatever the slots say. Should somebody lead it again with what is left on a disk, that is all
    # there is, and nothing is lost of it.
    led.log_start = await led.register.move(led.leader.epoch, led.local.oldest_lsn())
    setbacks = Setbacks()
    async with aclosing(walk_segments(led.metadata)) as segments:
        async for segment in segments:
            with setbacks.kept():
                if segment.state is not SegmentState.DELETE_STARTED:
                    await led.voice.unlist(segment)
                await remove(led, segment.segment_id)
    # What no event names is of copies whose outcome was not known.
    async for segment_id, _ in led.storage.objects():
        if segment_id is not None and led.metadata.find(segment_id) is None:
            with setbacks.kept():
                await led.storage.delete(segment_id)
    setbacks.tell()
    await led.voice.partition_deletion(PartitionDeleteState.FINISHED)
