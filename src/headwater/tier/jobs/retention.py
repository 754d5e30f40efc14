"""Retention: expires the oldest remote segments, and drops LSNs of the local log that are remote.

Always holds: the log start never moves past an LSN that a valid slot needs, nor past the remote
LSNs without a gap, unless the gap is lost for good; it moves before anything below it is unlisted.
"""

from __future__ import annotations

from contextlib import aclosing

from headwater.tier.events import SegmentState
from headwater.tier.jobs.config import UNLIMITED
from headwater.tier.jobs.copying import has_missing, newest_ms_of
from headwater.tier.jobs.led_partition import LedPartition
from headwater.tier.segment_cover import END_LSN, share_bytes, walk_cover


async def expire_remote(led: LedPartition) -> None:
    """Move the log start as retention says, and unlist what lies wholly below it."""
    config = led.config
    if (config.retention_ms, config.retention_bytes) != (UNLIMITED, UNLIMITED):
        wanted = min(await expired_end(led), led.leader.slot_floor_lsn() + 1)
        if wanted > led.first_lsn:
            await led.move_log_start(wanted)
    await unlist_below_log_start(led)


async def unlist_below_log_start(led: LedPartition) -> None:
    """Unlist what nobody can read any more."""
    for segment in led.metadata.segments_in(0, led.first_lsn):
        if segment.state is SegmentState.COPY_FINISHED and segment.end_offset < led.first_lsn:
            await led.unlist(segment)


async def expire_local(led: LedPartition) -> None:
    """Drop what is remote, not needed by a slot, and not kept for local readers."""
    before, tiered_lsn = led.local.oldest_lsn(), led.tiered_lsn()
    through = min(
        tiered_lsn, led.same_lsn, led.leader.slot_floor_lsn(), _kept_after(led, tiered_lsn)
    )
    if through >= before:
        await led.local.prune_through(through)
    led.metrics.dropped_lsns += led.local.oldest_lsn() - before


async def expired_end(led: LedPartition) -> int:
    """Where the log would begin if only retention counted.

    Pieces of the cover are of one lineage, and each LSN counts once, however many copies there are.
    """
    config, now_ms = led.config, led.store_ms()
    # What is lost is no older than what comes after it, and goes with that.
    end_lsn = END_LSN if has_missing(led) else led.tiered_lsn() + 1
    left_bytes = await _cover_bytes(led, end_lsn) if config.retention_bytes != UNLIMITED else 0
    at = led.first_lsn
    async with aclosing(walk_cover(led.metadata, at, end_lsn)) as pieces:
        async for piece in pieces:
            segment = piece.segment
            oldest_ms = now_ms - config.retention_ms
            too_old = config.retention_ms != UNLIMITED and newest_ms_of(segment) < oldest_ms
            left_bytes -= share_bytes(piece)
            too_much = config.retention_bytes != UNLIMITED and left_bytes >= config.retention_bytes
            if not (too_old or too_much):
                break
            at = piece.lsns.stop
    return at


async def _cover_bytes(led: LedPartition, end_lsn: int) -> int:
    """How much is read from the log start on. Only this leader's events change that."""
    of = (led.voice.said, led.first_lsn, end_lsn)
    if led.weighed is None or led.weighed[0] != of:
        async with aclosing(walk_cover(led.metadata, led.first_lsn, end_lsn)) as pieces:
            led.weighed = of, sum([share_bytes(piece) async for piece in pieces])
    return led.weighed[1]


def _kept_after(led: LedPartition, tiered_lsn: int) -> int:
    """Through where the local log may go as far as local retention has a say."""
    config, local = led.config, led.local
    if not config.local_retention_ms and not config.local_retention_bytes:
        return tiered_lsn
    oldest_ms = led.store_ms() - config.local_retention_ms
    through = local.oldest_lsn() - 1
    for piece in led.metadata.cover(local.oldest_lsn(), tiered_lsn + 1):
        if config.local_retention_ms and newest_ms_of(piece.segment) >= oldest_ms:
            break
        if local.bytes_since(piece.lsns.stop - 1) < config.local_retention_bytes:
            break
        through = piece.lsns.stop - 1
    return through
