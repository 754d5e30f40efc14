"""Gives up the remote segments of a partition that is tiered no longer.

Always holds: what a slot needs and the local log does not have stays remote; the log start moves
before anything below it is unlisted.
"""

from __future__ import annotations

from headwater.tier.events import SegmentState
from headwater.tier.jobs.led_partition import LedPartition


async def give_up_remote(led: LedPartition) -> int:
    """Let the log begin where the local one does, and unlist what nobody needs remote any more.

    How many segments were unlisted. Tiering that is turned on again copies from there on.
    """
    local = led.local
    wanted = min(local.oldest_lsn(), led.leader.slot_floor_lsn() + 1)
    if wanted > led.first_lsn:
        await led.move_log_start(wanted)
    unlisted = 0
    for segment in led.listed(SegmentState.COPY_FINISHED):
        # From the log start up to where the local log begins, only the tier has it.
        only_remote = range(
            max(segment.start_offset, led.first_lsn),
            min(segment.end_offset + 1, local.oldest_lsn()),
        )
        if not only_remote and segment.end_offset <= local.current_lsn():
            await led.unlist(segment)
            unlisted += 1
    return unlisted
