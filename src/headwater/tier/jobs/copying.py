"""Copies sealed parts of the local log to the tier, in order, each under a new segment id.

Before that, it compares the local log with what is remote: segments that another leader copied
count as copies of this log only if both have the same records. If a log was started at the wrong
LSN, or belongs to another stream, its records would otherwise be dropped as remote and be lost.

Always holds: the event that a copy starts comes before its object, and the event that it finished
after; a copy that was started and did not finish is unlisted before its object is removed; LSNs
are dropped locally only if they were copied from this log or compared with their copy; only a log
that was compared with every readable remote segment is copied. LSNs that the local log cannot
read do not keep others from being copied.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Final

import pyarrow as pa

from headwater.core.errors import Bug, Corrupt, Fenced, HeadwaterError, NotFound
from headwater.log.record.group import Group
from headwater.log.record.hashes import hash_groups
from headwater.tier.errors import LastCopy, LocalLogDamaged, NotOneSegment, OtherRecords
from headwater.tier.events import SegmentMetadata
from headwater.tier.jobs.led_partition import LedPartition
from headwater.tier.jobs.removal import abandon_copy
from headwater.tier.segment_cover import CoverPiece, epoch_at, gaps, share_bytes, walk_cover

PIECES_AT_ONCE = 64
"""So many are compared in a round; each takes a request or two where one leader wrote both."""


async def compare(led: LedPartition) -> None:
    """Compare each remote piece with the local log, from where it is known to be the same.

    A piece that cannot be read keeps the local log from there on, and no copy from being made:
    those after it are compared all the same.
    """
    doubt = None
    for piece in led.remote_after(led.same_lsn, PIECES_AT_ONCE):
        if (doubt := await _doubt(led, piece)) is not None:
            break
        led.same_lsn = piece.lsns.stop - 1
    led.compared_lsn = max(led.compared_lsn, led.same_lsn)
    if doubt is not None:
        for piece in led.remote_after(led.compared_lsn, PIECES_AT_ONCE):
            await _doubt(led, piece)
            led.compared_lsn = piece.lsns.stop - 1
    # The one that was found to differ comes first in a look: it is not remote any more, or agrees.
    led.differs_at = None
    led.is_behind = led.is_behind or not led.is_compared()
    if doubt is not None:
        raise doubt


async def compare_all(led: LedPartition) -> None:
    """Know that the log is the one that is remote, for whoever copies from it out of turn."""
    while not led.is_compared():
        try:
            await compare(led)
        except (Corrupt, NotFound, LastCopy):
            continue  # the job tells that; here it counts that nothing was found to differ


async def _doubt(led: LedPartition, piece: CoverPiece) -> HeadwaterError | None:
    """Why it is not known that a piece may be dropped locally, if it is not."""
    try:
        await _compare_piece(led, piece)
    except (Corrupt, NotFound, LastCopy) as error:
        return error
    return None


async def _compare_piece(led: LedPartition, piece: CoverPiece) -> None:
    lost = await led.storage.lost_in(piece.segment, piece.lsns)
    lsns = piece.lsns
    if not lost and await _has_one_writer(led, piece):
        lsns = lsns[-1:]
    else:
        await led.rate.take(share_bytes(piece))
    if not await _is_same(led, piece, lsns, lost):
        led.differs_at = lsns.start
        raise OtherRecords(
            f"LSNs {lsns.start} to {lsns.stop - 1} of {led.leader.partition}: the local log has "
            f"other records than the tier, which goes through LSN {led.tiered_lsn()}. This leader "
            "copies, merges and drops nothing until they agree. A log that was begun anew begins "
            "above what is remote, or with the same records: begin it again there"
        )
    await _keep_what_was_lost(led, piece, lost)


async def _has_one_writer(led: LedPartition, piece: CoverPiece) -> bool:
    """Whether the local records of a piece are of the one term that it is of.

    The leader of that term wrote both then, and the last record tells whether it is that log. What
    another one derived again from the queue may be unlike in any record.
    """
    epoch = epoch_at(piece, piece.lsns[0])
    for lsn in (piece.lsns[0], piece.lsns[-1]):  # terms never fall
        try:
            async for group in led.local_groups(lsn, lsn):
                if group.lost is not None or group.term != epoch or epoch_at(piece, lsn) != epoch:
                    return False
        except LocalLogDamaged:
            return False
    return True


async def _is_same(
    led: LedPartition, piece: CoverPiece, lsns: range, lost: Sequence[range]
) -> bool:
    """Whether both have the same records; LSNs that are lost on a side, or that the local log
    cannot hand out, tell nothing."""
    both: list[range] = []
    skipped: list[range] = []
    here = led.readable_groups(lsns.start, lsns.stop - 1, skipped)
    local = await hash_groups(_parts_outside(here, lost, both))
    if skipped:
        # Nothing is known of these: what they are dropped for must be good.
        await led.storage.verify(piece.segment)
    if not both:
        return True
    remote = led.storage.fetch(piece.segment, both[0].start, both[-1].stop)
    return local == await hash_groups(_within(remote, both))


async def _parts_outside(
    groups: AsyncIterator[Group], lost: Sequence[range], both: list[range]
) -> AsyncIterator[Group]:
    """The groups without what is lost; `both` gets the ranges that are handed out."""
    async for group in groups:
        if group.lost is not None:
            continue
        for part in _outside(range(group.first_lsn, group.last_lsn + 1), lost):
            yield _cut(group, part)
            if both and both[-1].stop == part.start:
                part = range(both.pop().start, part.stop)
            both.append(part)


async def _within(groups: AsyncIterator[Group], wanted: Sequence[range]) -> AsyncIterator[Group]:
    async for group in groups:
        if group.lost is None:
            for lsns in wanted:
                if lsns.start <= group.last_lsn and group.first_lsn < lsns.stop:
                    yield _cut(group, lsns)


def _outside(lsns: range, lost: Sequence[range]) -> list[range]:
    parts, at = [], lsns.start
    for one in lost:
        if one.stop <= at or one.start >= lsns.stop:
            continue
        if one.start > at:
            parts.append(range(at, one.start))
        at = one.stop
    return [*parts, range(at, lsns.stop)] if at < lsns.stop else parts


def _cut(group: Group, lsns: range) -> Group:
    part = group.between(lsns.start, lsns.stop - 1)
    if part is None:
        raise Bug(f"LSNs {lsns} are not in a group of {group.first_lsn} to {group.last_lsn}")
    return part


async def _keep_what_was_lost(led: LedPartition, piece: CoverPiece, lost: Sequence[range]) -> None:
    """Raise `LastCopy` for what only the local log has, and have it copied if the cover would take
    that."""
    kept: list[Group] = []
    for lsns in lost:
        here = led.readable_groups(lsns.start, lsns.stop - 1, [])
        kept += [group async for group in here if group.lost is None]
    for group in kept:
        lsns = range(group.first_lsn, group.last_lsn + 1)
        if group.term >= epoch_at(piece, lsns.start) and lsns not in led.lost_remotely:
            led.lost_remotely.append(lsns)
    if kept:
        raise LastCopy(
            f"LSNs {kept[0].first_lsn} to {kept[-1].last_lsn} of {led.leader.partition} are lost "
            f"in {piece.segment.segment_id}, at least some of them, and the local log has them, "
            f"under term {kept[0].term}: it is kept from there on until they were copied again, "
            "which its leader does if that term is no older than the segment's"
        )


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
                await abandon_copy(led, prepared.segment_id)
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


def has_missing(led: LedPartition) -> bool:
    """Whether LSNs above what is remote without a gap are not in the local log either."""
    return led.tiered_lsn() + 1 < led.local.oldest_lsn()


async def missing_ranges(led: LedPartition) -> list[range]:
    """The LSNs that are neither remote, beyond a gap, nor in the local log: they are lost."""
    if not has_missing(led):
        return []
    first_lsn, end_lsn = led.tiered_lsn() + 1, led.local.oldest_lsn()
    async with aclosing(walk_cover(led.metadata, first_lsn, end_lsn)) as pieces:
        return gaps([piece async for piece in pieces], first_lsn, end_lsn)


def _next_due(led: LedPartition) -> range | None:
    tiered_lsn, committed_lsn = led.tiered_lsn(), led.leader.committed_lsn()
    # Where something is lost, what comes after it is saved all the same, and only once.
    is_cut = bool(led.unreadable) or has_missing(led)
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
