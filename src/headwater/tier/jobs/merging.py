"""Merges small remote segments that stand side by side, so that objects stay few.

Always holds: what is merged is the cover, LSN by LSN, and the merged segment takes its place in it
when it has finished; only what no LSN is read from any more is unlisted.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

from headwater.core.errors import Refused
from headwater.log.record.group import Group
from headwater.tier.cover import CoverPiece
from headwater.tier.events import SegmentState
from headwater.tier.jobs.copying import copy_range
from headwater.tier.jobs.led_partition import LedPartition
from headwater.tier.jobs.walking import END_LSN

_log: Final = logging.getLogger("headwater")


async def merge_small(led: LedPartition) -> int:
    """Merge what is due, and unlist what was replaced; how many segments that were."""
    while (run := _next_run(led)) is not None:
        lsns = range(run[0].lsns.start, run[-1].lsns.stop)
        segments = [piece.segment for piece in run]
        await led.rate.take(sum(map(share_bytes, run)))
        try:
            await copy_range(led, lsns, _groups(led, run), merged_from=segments)
        except Refused as refused:
            # Columns that do not go together stay so; others are still worth merging.
            led.unmergeable.update(segment.segment_id for segment in segments)
            _log.warning("LSNs %d to %d are not merged: %s", lsns.start, lsns.stop - 1, refused)
    return await unlist_replaced(led)


async def unlist_replaced(led: LedPartition) -> int:
    """Unlist finished segments that no LSN is read from, because later copies hold all of theirs.

    Also what is left of older leaders that copied the same, and what a crash left of a merge.
    """
    read = {piece.segment.segment_id for piece in led.metadata.cover(led.first_lsn, END_LSN)}
    unlisted = 0
    for segment in led.listed(SegmentState.COPY_FINISHED):
        if segment.segment_id not in read:
            await led.unlist(segment)
            unlisted += 1
    return unlisted


def share_bytes(piece: CoverPiece) -> int:
    """About how many bytes of its segment a piece is."""
    segment = piece.segment
    lsns = segment.end_offset - segment.start_offset + 1
    return segment.size_bytes * len(piece.lsns) // lsns


async def _groups(led: LedPartition, run: Sequence[CoverPiece]) -> AsyncIterator[Group]:
    for piece in run:
        async for group in led.storage.fetch(piece.segment, piece.lsns.start, piece.lsns.stop):
            yield group


def _next_run(led: LedPartition) -> list[CoverPiece] | None:
    """The first pieces that are worth merging."""
    most = led.config.merge_segments
    for run, may_grow in _runs(led):
        if len(run) >= (most if may_grow else 2):
            return run[:most]
    return None


def _runs(led: LedPartition) -> Iterator[tuple[list[CoverPiece], bool]]:
    """Small pieces side by side that fit into one segment, and whether more may follow them."""
    config = led.config
    run: list[CoverPiece] = []
    run_bytes = 0
    for piece in led.metadata.cover(led.first_lsn, led.tiered_lsn() + 1):
        size_bytes = share_bytes(piece)
        if run and (
            run_bytes + size_bytes > config.merge_target_bytes or not _fit(led, run[-1], piece)
        ):
            yield run, False
            run, run_bytes = [], 0
        mergeable = piece.segment.segment_id not in led.unmergeable
        if mergeable and size_bytes < config.merge_below_bytes:
            run.append(piece)
            run_bytes += size_bytes
        elif run:
            yield run, False
            run, run_bytes = [], 0
    if run:
        yield run, True


def _fit(led: LedPartition, before: CoverPiece, after: CoverPiece) -> bool:
    """Whether two pieces can stand in one segment: of one schema, and of epochs that do not fall,
    as they may where an older leader had gone further than its successor has come yet."""
    return (
        before.lsns.stop == after.lsns.start
        and _epoch_at(before, before.lsns.stop - 1) <= _epoch_at(after, after.lsns.start)
        and led.storage.schema_version(before.segment) == led.storage.schema_version(after.segment)
    )


def _epoch_at(piece: CoverPiece, lsn: int) -> int:
    epochs = piece.segment.epochs
    return max((epoch for epoch, begins in epochs if begins <= lsn), default=epochs[0][0])
