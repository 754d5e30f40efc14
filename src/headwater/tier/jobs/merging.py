"""Merges small neighbouring remote segments, so that there are few objects.

Always holds: a merged segment has the records of the cover, and replaces its sources in the cover
when it has finished; only segments that are in no cover are unlisted.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Set
from contextlib import aclosing
from typing import Final

from headwater.core import runtime
from headwater.core.errors import HeadwaterError, Unavailable
from headwater.log.record.group import Group
from headwater.tier.errors import NotOneSegment, SourceUnreadable
from headwater.tier.events import SegmentId, SegmentMetadata, SegmentState
from headwater.tier.jobs.copying import copy_range
from headwater.tier.jobs.led_partition import ItemFailures, LedPartition
from headwater.tier.segment_cover import (
    END_LSN,
    SEGMENTS_AT_ONCE,
    CoverPiece,
    epoch_at,
    share_bytes,
    walk_cover,
)

_log: Final = logging.getLogger("headwater")

MergeRun = list[CoverPiece]
MERGES_A_ROUND: Final = 8
"""Then the other jobs get their turn."""


async def merge_small(led: LedPartition) -> None:
    await unlist_replaced(led)
    failures = ItemFailures()
    skipped: set[SegmentId] = set()
    retry_lsn = END_LSN
    try:
        for _ in range(MERGES_A_ROUND):
            if (run := await next_run(led, skipped)) is None:
                break
            try:
                await merge(led, run)
                await unlist_replaced(led)
            except HeadwaterError as error:
                retry_lsn = min(retry_lsn, run[0].lsns.start - 1)
                failures.add(error)
                if isinstance(error, SourceUnreadable):
                    skipped.add(error.segment_id)
                else:
                    skipped.update(piece.segment.segment_id for piece in run)
        else:
            led.has_more_work = True
    finally:
        # Segments that were skipped in this round are tried again in the next.
        led.merge_checked_lsn = min(led.merge_checked_lsn, retry_lsn)
    failures.raise_first()


async def merge(led: LedPartition, run: MergeRun) -> None:
    """Merge these pieces, or note from where on they do not fit into one segment."""
    lsns = range(run[0].lsns.start, run[-1].lsns.stop)
    about_bytes = sum(map(share_bytes, run))
    await led.rate.take(about_bytes)
    try:
        merged_bytes = await copy_range(
            led,
            lsns,
            groups_of(led, run),
            about_bytes=about_bytes,
            merged_from=[piece.segment for piece in run],
        )
    except NotOneSegment as error:
        at_lsn = lsns.start if error.at_lsn is None else error.at_lsn
        fits = next((n for n, one in enumerate(run) if one.lsns.stop > at_lsn), 0)
        led.unmergeable.add(run[fits or len(run) - 1].segment.segment_id)
        _log.warning("LSNs %d to %d are not merged: %s", lsns.start, lsns.stop - 1, error)
        return
    led.metrics.merged_segments += 1
    led.metrics.merged_bytes += merged_bytes


async def unlist_replaced(led: LedPartition) -> None:
    """Unlist finished segments that are in no cover, because later copies have all of their LSNs.

    Checks where copies finished since the last call. A new leader checks everything: older leaders
    may have copied the same LSNs, and a crash may have left sources of a merge.
    """
    metadata = led.metadata
    while led.finished_ranges:
        lsns = led.finished_ranges[-1]
        at = max(lsns.start, led.first_lsn)
        while at < lsns.stop:
            pieces, end_lsn = metadata.state().cover_part(at, lsns.stop, SEGMENTS_AT_ONCE)
            used = {piece.segment.segment_id for piece in pieces}
            for segment in metadata.state().segments_in(at, end_lsn):
                finished = segment.state is SegmentState.COPY_FINISHED
                if finished and segment.segment_id not in used and not _is_in_cover(led, segment):
                    await led.unlist(segment)
            at = end_lsn
            if at < lsns.stop:
                await runtime.sleep(0)
        led.finished_ranges.pop()


def _is_in_cover(led: LedPartition, segment: SegmentMetadata) -> bool:
    first_lsn = max(segment.start_offset, led.first_lsn)
    pieces = led.metadata.state().cover(first_lsn, segment.end_offset + 1)
    return any(piece.segment.segment_id == segment.segment_id for piece in pieces)


async def groups_of(led: LedPartition, run: MergeRun) -> AsyncIterator[Group]:
    """The records of these pieces; `SourceUnreadable` says which of them cannot be read."""
    for piece in run:
        try:
            async for group in led.storage.fetch(piece.segment, piece.lsns.start, piece.lsns.stop):
                yield group
        except Unavailable:
            raise
        except HeadwaterError as error:
            raise SourceUnreadable(str(error), segment_id=piece.segment.segment_id) from error


async def next_run(led: LedPartition, skipped: Set[SegmentId] = frozenset()) -> MergeRun | None:
    """The first pieces that are worth merging, without skipped segments.

    Starts where the last call found nothing, and ends before pieces that may still get neighbours.
    """
    config = led.config
    run: MergeRun = []
    run_bytes = 0
    first_lsn = max(led.first_lsn, led.merge_checked_lsn + 1)
    async with aclosing(walk_cover(led.metadata.state, first_lsn, led.tiered_lsn() + 1)) as pieces:
        async for piece in pieces:
            size_bytes = share_bytes(piece)
            too_large = run_bytes + size_bytes > config.merge_target_bytes
            small = (
                size_bytes < config.merge_below_bytes and piece.segment.segment_id not in skipped
            )
            if run and (too_large or not small or not _fit(led, run[-1], piece)):
                if due := _worth_merging(run, config.merge_segments, may_grow=False):
                    return due
                run, run_bytes = [], 0
            if small:
                run.append(piece)
                run_bytes += size_bytes
            most = config.merge_segments
            if len(run) >= most and (due := _worth_merging(run[-most:], most, may_grow=True)):
                return due  # earlier pieces were checked when they were the last
            if led.config is config and len(run) < 2:  # other settings start over
                led.merge_checked_lsn = (piece.lsns.start if run else piece.lsns.stop) - 1
    return _worth_merging(run, config.merge_segments, may_grow=True)


def _worth_merging(run: MergeRun, most: int, *, may_grow: bool) -> MergeRun | None:
    """The pieces of a run to merge at once, the first of them no larger than the others together.

    A large piece before a few small ones would be rewritten again and again for little. So it is
    rewritten only if that doubles it.
    """
    sizes = [share_bytes(piece) for piece in run]
    for begin in range(len(run) - (most if may_grow else 2) + 1):
        if sizes[begin] <= sum(sizes[begin + 1 : begin + most]):
            return run[begin : begin + most]
    return run[:most] if not may_grow and len(run) >= 2 else None


def _fit(led: LedPartition, before: CoverPiece, after: CoverPiece) -> bool:
    """Whether two pieces fit into one segment: one schema version, and epochs that do not fall.

    Epochs may fall where an older leader copied further than its successor has copied yet.
    """
    return (
        before.lsns.stop == after.lsns.start
        and after.segment.segment_id not in led.unmergeable
        and epoch_at(before, before.lsns.stop - 1) <= epoch_at(after, after.lsns.start)
        and led.storage.schema_version(before.segment) == led.storage.schema_version(after.segment)
    )
