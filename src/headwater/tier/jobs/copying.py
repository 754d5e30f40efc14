"""Copies sealed parts of the local log to the tier, in order, each under an id of its own.

What the local log cannot hand out keeps nothing else from being copied.

Always holds: a copy is told of before it is stored, and told to be there only when it is; what was
begun and did not end is unlisted before its object is removed.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Final

import pyarrow as pa

from headwater.core.errors import Fenced, HeadwaterError
from headwater.log.record.group import Group
from headwater.tier.errors import LocalLogDamaged, NotOneSegment
from headwater.tier.events import SegmentMetadata
from headwater.tier.jobs.led_partition import LedPartition
from headwater.tier.jobs.removal import abandon
from headwater.tier.segment_cover import gaps
from headwater.tier.walking import walk_cover

_log: Final = logging.getLogger("headwater")


COPIES_A_ROUND: Final = 8
"""Then the other jobs have their turn: a disk that is full is not freed by copying alone."""


async def copy_sealed(led: LedPartition) -> None:
    """Copy what is sealed, committed and not remote yet, some of it at a time.

    Nothing while it is not known that this is the log that is remote: what is copied from a wrong
    one stays, and the right one differs from it then.
    """
    if not led.is_compared():
        return
    while led.lost_remotely:
        await copy_local(led, led.lost_remotely[-1])
        led.lost_remotely.pop()
    led.unreadable, led.damage = [], None
    for _ in range(COPIES_A_ROUND):
        if (due := _next_due(led)) is None:
            return
        try:
            await copy_local(led, due)
        except LocalLogDamaged as error:
            # What comes before and after it is copied. The next round tries all of it again.
            led.unreadable.append(error.lsns)
            led.damage = led.damage or error
    led.is_behind = led.is_behind or _next_due(led) is not None


async def copy_local(led: LedPartition, lsns: range) -> None:
    """Copy what the local log has of these LSNs.

    As one segment, or as many as it takes: records that cannot stand in one hold up nothing.
    """
    todo = [lsns]
    while todo:
        part = todo.pop()
        about_bytes = led.local_bytes(part)
        groups = led.local_groups(part.start, part.stop - 1)
        columns = await led.local_columns(part)
        try:
            copied_bytes = await copy_range(
                led, part, groups, about_bytes=about_bytes, columns=columns
            )
        except NotOneSegment as error:
            if len(part) == 1:
                raise
            cut = error.at_lsn
            if cut is None or not part.start < cut < part.stop:
                cut = part.start + len(part) // 2
            _log.info("LSNs %d to %d become two segments: %s", part.start, part.stop - 1, error)
            todo += [range(cut, part.stop), range(part.start, cut)]
        else:
            led.was_copied(part)
            led.metrics.copied_segments += 1
            led.metrics.copied_bytes += copied_bytes


async def copy_range(
    led: LedPartition,
    lsns: range,
    groups: AsyncIterator[Group],
    *,
    about_bytes: int,
    merged_from: Sequence[SegmentMetadata] = (),
    columns: pa.Schema | None = None,
) -> int:
    """Make one remote segment of these groups, of about so many bytes; how many it has."""
    await led.rate.take(0)  # before it is in memory
    async with led.memory.hold(about_bytes):
        prepared = await led.storage.prepare(
            lsns.start, lsns.stop - 1, groups, merged_from=merged_from, columns=columns
        )
        led.rate.spend(prepared.size_bytes)
        # Records without a time are as old as their first copy: merging makes none younger.
        newest_ms = max(map(newest_ms_of, merged_from), default=0)
        await led.voice.started(prepared, newest_ms=newest_ms)
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


def newest_ms_of(segment: SegmentMetadata) -> int:
    """How old the newest record of a segment is; without a time, it is as old as its copy."""
    return segment.max_timestamp_ms or segment.event_timestamp_ms


def is_missing(led: LedPartition) -> bool:
    """Whether LSNs above what is remote without a gap are not in the local log either."""
    return led.tiered_lsn() + 1 < led.local.oldest_lsn()


async def missing(led: LedPartition) -> list[range]:
    """The LSNs that are neither remote, beyond a gap, nor in the local log: they are lost."""
    if not is_missing(led):
        return []
    first_lsn, end_lsn = led.tiered_lsn() + 1, led.local.oldest_lsn()
    async with aclosing(walk_cover(led.metadata, first_lsn, end_lsn)) as pieces:
        return gaps([piece async for piece in pieces], first_lsn, end_lsn)


def _next_due(led: LedPartition) -> range | None:
    tiered_lsn, committed_lsn = led.tiered_lsn(), led.leader.committed_lsn()
    # Where something is lost, what comes after it is saved all the same, and only once.
    is_cut = bool(led.unreadable) or is_missing(led)
    from_lsn = max(led.local.oldest_lsn(), tiered_lsn + 1)
    beyond = led.metadata.cover(from_lsn, committed_lsn + 1) if is_cut else ()
    for sealed in led.local.sealed():
        if sealed.last_lsn > committed_lsn:
            break
        due = range(max(sealed.first_lsn, from_lsn), sealed.last_lsn + 1)
        for lsns in sorted([*(piece.lsns for piece in beyond), *led.unreadable], key=_start):
            if lsns.start <= due.start < lsns.stop:
                due = range(lsns.stop, due.stop)
            elif due.start < lsns.start < due.stop and lsns in led.unreadable:
                due = range(due.start, lsns.start)
        if due:
            return due
    return None


def _start(lsns: range) -> int:
    return lsns.start
