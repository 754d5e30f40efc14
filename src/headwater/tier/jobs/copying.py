"""Copies sealed parts of the local log to the tier, in order, each under an id of its own.

Always holds: a copy is told of before it is stored, and told to be there only when it is; what was
begun and did not end is unlisted before its object is removed.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from typing import Final

from headwater.core.errors import Fenced, HeadwaterError
from headwater.log.record.group import Group
from headwater.log.wal import SealedRange
from headwater.tier.errors import NotOneSegment
from headwater.tier.events import SegmentMetadata
from headwater.tier.jobs.led_partition import LedPartition
from headwater.tier.jobs.removal import abandon

_log: Final = logging.getLogger("headwater")


async def copy_sealed(led: LedPartition) -> None:
    """Copy all that is sealed, committed and not remote yet."""
    while (due := _next_due(led)) is not None:
        await copy_local(led, due)


async def copy_local(led: LedPartition, lsns: range) -> None:
    """Copy what the local log has of these LSNs.

    As one segment, or as many as it takes: records that cannot stand in one hold up nothing.
    """
    todo = [lsns]
    while todo:
        part = todo.pop()
        about_bytes = led.local.bytes_since(part.start - 1) - led.local.bytes_since(part.stop - 1)
        groups = led.local_groups(part.start, part.stop - 1)
        try:
            copied_bytes = await copy_range(led, part, groups, about_bytes=about_bytes)
        except NotOneSegment as error:
            if len(part) == 1:
                raise
            cut = error.at_lsn
            if cut is None or not part.start < cut < part.stop:
                cut = part.start + len(part) // 2
            _log.info("LSNs %d to %d become two segments: %s", part.start, part.stop - 1, error)
            todo += [range(cut, part.stop), range(part.start, cut)]
        else:
            led.metrics.copied_segments += 1
            led.metrics.copied_bytes += copied_bytes


async def copy_range(
    led: LedPartition,
    lsns: range,
    groups: AsyncIterator[Group],
    *,
    about_bytes: int,
    merged_from: Sequence[SegmentMetadata] = (),
) -> int:
    """Make one remote segment of these groups, of about so many bytes; how many it has."""
    await led.rate.take(0)  # before it is in memory
    async with led.memory.hold(about_bytes):
        prepared = await led.storage.prepare(
            lsns.start, lsns.stop - 1, groups, merged_from=merged_from
        )
        led.rate.spend(prepared.size_bytes)
        await led.voice.started(prepared)
        try:
            await led.storage.copy(prepared)
        except HeadwaterError as failed:
            try:
                await abandon(led, prepared.segment_id)
            except Fenced:
                raise
            except HeadwaterError as later:
                _log.info("%s is left for later: %s", prepared.segment_id, later)
            raise failed
        led.will_be_read(lsns)
        await led.voice.finished(prepared)
        return prepared.size_bytes


def missing(led: LedPartition) -> range:
    """The LSNs above what is remote that the local log does not have either: they are lost."""
    return range(led.tiered_lsn() + 1, led.local.oldest_lsn())


def _next_due(led: LedPartition) -> range | None:
    tiered_lsn, committed_lsn = led.tiered_lsn(), led.leader.committed_lsn()
    # Where something is lost, what comes after it is saved all the same, and only once.
    beyond = led.metadata.cover(led.local.oldest_lsn(), committed_lsn + 1) if missing(led) else ()
    for sealed in led.local.sealed():
        first_lsn = max(sealed.first_lsn, tiered_lsn + 1, led.local.oldest_lsn())
        for piece in beyond:
            if piece.lsns.start <= first_lsn < piece.lsns.stop:
                first_lsn = piece.lsns.stop
        if _is_due(sealed, first_lsn, committed_lsn):
            return range(first_lsn, sealed.last_lsn + 1)
    return None


def _is_due(sealed: SealedRange, first_lsn: int, committed_lsn: int) -> bool:
    return first_lsn <= sealed.last_lsn <= committed_lsn
