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
from headwater.tier.errors import NotOneSegment
from headwater.tier.events import SegmentMetadata
from headwater.tier.jobs.contract import SealedRange
from headwater.tier.jobs.led_partition import LedPartition
from headwater.tier.jobs.removal import abandon

_log: Final = logging.getLogger("headwater")


async def copy_sealed(led: LedPartition) -> int:
    """Copy all that is sealed, committed and not remote yet; how many segments that were."""
    copied = 0
    while (due := _next_due(led)) is not None:
        copied += await copy_local(led, due)
    return copied


async def copy_local(led: LedPartition, lsns: range) -> int:
    """Copy what the local log has of these LSNs; how many segments that made.

    One, or as many as it takes: records that cannot stand in one segment hold up nothing.
    """
    copied, todo = 0, [lsns]
    while todo:
        part = todo.pop()
        try:
            await copy_range(led, part, led.local_groups(part.start, part.stop - 1))
        except NotOneSegment as error:
            if len(part) == 1:
                raise
            cut = error.at_lsn
            if cut is None or not part.start < cut < part.stop:
                cut = part.start + len(part) // 2
            _log.info("LSNs %d to %d become two segments: %s", part.start, part.stop - 1, error)
            todo += [range(cut, part.stop), range(part.start, cut)]
        else:
            copied += 1
    return copied


async def copy_range(
    led: LedPartition,
    lsns: range,
    groups: AsyncIterator[Group],
    *,
    merged_from: Sequence[SegmentMetadata] = (),
) -> None:
    """Make one remote segment of these groups."""
    prepared = await led.storage.prepare(lsns.start, lsns.stop - 1, groups, merged_from=merged_from)
    await led.rate.take(prepared.size_bytes)
    await led.publisher.started(prepared)
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
    await led.publisher.finished(prepared)


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
