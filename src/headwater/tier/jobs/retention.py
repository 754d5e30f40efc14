"""Retention: what the tier and the local log no longer keep.

Segments below the log start are unlisted here, and their objects are removed later (removal.py).

Always holds: the log start never moves past an LSN that a valid slot needs, nor past the remote
LSNs without a gap, unless the gap is lost for good; it moves before anything below it is unlisted;
with `tiering=delete`, segments stay that a slot needs and the local log does not have.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import Final

from headwater.tier.events import SegmentState
from headwater.tier.jobs.config import UNLIMITED
from headwater.tier.jobs.led_partition import LedPartition, newest_ms_of
from headwater.tier.segment_cover import END_LSN, share_bytes, walk_cover, walk_segments

_log: Final = logging.getLogger("headwater")


async def expire_remote(led: LedPartition) -> None:
    """Move the log start by the retention settings, and unlist the segments below it."""
    config = led.config
    if (config.retention_ms, config.retention_bytes) != (UNLIMITED, UNLIMITED):
        wanted = min(await wanted_log_start(led), led.leader.slot_floor_lsn() + 1)
        if wanted > led.first_lsn:
            await led.move_log_start(wanted)
    await unlist_below_log_start(led)


async def expire_local(led: LedPartition) -> None:
    """Drop LSNs of the local log that are remote, needed by no slot, and beyond both minimums."""
    before, tiered_lsn = led.local.oldest_lsn(), led.tiered_lsn()
    through = min(
        tiered_lsn,
        led.same_lsn,
        led.leader.slot_floor_lsn(),
        _beyond_local_minimums(led, tiered_lsn),
    )
    if through >= before:
        await led.local.prune_through(through)
    led.metrics.dropped_lsns += led.local.oldest_lsn() - before


async def drop_remote(led: LedPartition) -> None:
    """Move the log start to where the local log begins, and unlist what is not needed remotely.

    If tiering is turned on again, it copies from there on.
    """
    local = led.local
    wanted = min(local.oldest_lsn(), led.leader.slot_floor_lsn() + 1)
    if wanted > led.first_lsn:
        _log.warning(
            "tiering=delete drops LSNs %d to %d of %s, which the local log does not have",
            led.first_lsn,
            wanted - 1,
            led.leader.partition,
        )
        await led.move_log_start(wanted)
    async with aclosing(walk_segments(led.metadata.state)) as segments:
        async for segment in segments:
            if segment.state is not SegmentState.COPY_FINISHED:
                continue
            # From the log start to the beginning of the local log, only the tier has the LSNs.
            only_remote = range(
                max(segment.start_offset, led.first_lsn),
                min(segment.end_offset + 1, local.oldest_lsn()),
            )
            if not only_remote and segment.end_offset <= local.current_lsn():
                await led.unlist(segment)


async def unlist_below_log_start(led: LedPartition) -> None:
    for segment in led.metadata.state().segments_in(0, led.first_lsn):
        if segment.state is SegmentState.COPY_FINISHED and segment.end_offset < led.first_lsn:
            await led.unlist(segment)


async def wanted_log_start(led: LedPartition) -> int:
    """The log start by the retention settings alone: a segment beyond either of them expires.

    Measured on the cover, which has each LSN once, however many copies there are.
    """
    config, now_ms = led.config, led.store_ms()
    # Lost LSNs are as old as what follows them, and expire with it.
    end_lsn = END_LSN if led.has_missing() else led.tiered_lsn() + 1
    left_bytes = await _cover_bytes(led, end_lsn) if config.retention_bytes != UNLIMITED else 0
    at = led.first_lsn
    async with aclosing(walk_cover(led.metadata.state, at, end_lsn)) as pieces:
        async for piece in pieces:
            oldest_ms = now_ms - config.retention_ms
            too_old = config.retention_ms != UNLIMITED and newest_ms_of(piece.segment) < oldest_ms
            left_bytes -= share_bytes(piece)
            too_much = config.retention_bytes != UNLIMITED and left_bytes >= config.retention_bytes
            if not (too_old or too_much):
                break
            at = piece.lsns.stop
    return at


async def _cover_bytes(led: LedPartition, end_lsn: int) -> int:
    """The bytes of the cover from the log start on. Only events of this leader change them."""
    key = (led.publisher.published, led.first_lsn, end_lsn)
    if led.cover_bytes is None or led.cover_bytes[0] != key:
        async with aclosing(walk_cover(led.metadata.state, led.first_lsn, end_lsn)) as pieces:
            led.cover_bytes = key, sum([share_bytes(piece) async for piece in pieces])
    return led.cover_bytes[1]


def _beyond_local_minimums(led: LedPartition, tiered_lsn: int) -> int:
    """The last LSN that neither `local_retention_ms` nor `local_retention_bytes` keeps.

    Both are minimums, so a record is dropped when it is beyond both. The remote `retention_*` are
    maximums: there, being beyond one is enough.
    """
    config, local = led.config, led.local
    if not config.local_retention_ms and not config.local_retention_bytes:
        return tiered_lsn
    oldest_ms = led.store_ms() - config.local_retention_ms
    through = local.oldest_lsn() - 1
    for piece in led.metadata.state().cover(local.oldest_lsn(), tiered_lsn + 1):
        if config.local_retention_ms and newest_ms_of(piece.segment) >= oldest_ms:
            break
        if local.bytes_since(piece.lsns.stop - 1) < config.local_retention_bytes:
            break
        through = piece.lsns.stop - 1
    return through
