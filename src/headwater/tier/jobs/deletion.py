"""Deletes all that the tier has of a partition, and can be taken up again at every step.

    MARKED → STARTED → every segment unlisted and removed → FINISHED

Nobody reads a partition that is deleted: its objects go at once.
"""

from __future__ import annotations

from headwater.tier.events import PartitionDeleteState, SegmentState
from headwater.tier.jobs.led_partition import LedPartition
from headwater.tier.jobs.removal import erase


async def delete_partition(led: LedPartition) -> int:
    """Go on from wherever the deletion has come to; how many objects were removed."""
    if led.metadata.delete_state() is None:
        await led.publisher.partition_deletion(PartitionDeleteState.MARKED)
    if led.metadata.delete_state() is PartitionDeleteState.MARKED:
        await led.publisher.partition_deletion(PartitionDeleteState.STARTED)
    removed = 0
    for segment in led.metadata.segments():
        if segment.state is not SegmentState.DELETE_STARTED:
            await led.publisher.unlist(segment)
        await erase(led, segment.segment_id)
        removed += 1
    # What no event names is of copies whose outcome was not known.
    async for segment_id, _ in led.storage.objects():
        await led.storage.delete(segment_id)
        removed += 1
    await led.publisher.partition_deletion(PartitionDeleteState.FINISHED)
    return removed
