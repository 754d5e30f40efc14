"""Gives up the remote segments of a partition that is tiered no longer.

Always holds: what a slot needs and the local log does not have stays remote; the log start moves
before anything below it is unlisted.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import Final

from headwater.tier.events import SegmentState
from headwater.tier.jobs.led_partition import LedPartition
from headwater.tier.walking import walk_segments

_log: Final = logging.getLogger("headwater")


async def give_up_remote(led: LedPartition) -> None:
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
