"""Copies sealed parts of the local log to the tier, in order, each under a new segment id.

Before that, it compares the local log with what is remote: segments that another leader copied
count as copies of this log only if both have the same records. If a log was started at the wrong
LSN, or belongs to another stream, its records would otherwise be dropped as remote and be lost.

Always holds: the event that a copy starts comes before its object, and the event that it finished
after; a copy that was started and did not finish is unlisted before its object is removed; LSNs are
dropped locally only if they were copied from this log or compared with their copy; only a log that
was compared with every readable remote segment is copied. LSNs that the local log cannot read do
not keep others from being copied.
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
from headwater.tier.jobs.led_partition import LedPartition, newest_ms_of
from headwater.tier.jobs.removal import abandon_copy
from headwater.tier.segment_cover import CoverPiece, epoch_at, gaps, share_bytes, walk_cover

_log: Final = logging.getLogger("headwater")
PIECES_AT_ONCE = 64
"""How many pieces are compared in a round; where one leader wrote both, each takes a request or
two."""
COPIES_A_ROUND: Final = 8
"""Then the other jobs get their turn: copying alone does not free a full disk."""


# Comparing


async def compare(led: LedPartition) -> None:
    """Compare each remote piece with the local log, from where they are known to be the same.

    A piece that cannot be read keeps the local log from there on, but does not prevent copies: the
    pieces after it are compared all the same.
    """
    failure = None
    for piece in led.remote_after(led.same_lsn, PIECES_AT_ONCE):
        if (failure := await _try_compare(led, piece)) is not None:
            break
        led.same_lsn = piece.lsns.stop - 1
    led.compared_lsn = max(led.compared_lsn, led.same_lsn)
    if failure is not None:
        for piece in led.remote_after(led.compared_lsn, PIECES_AT_ONCE):
            await _try_compare(led, piece)
            led.compared_lsn = piece.lsns.stop - 1
    # A piece that differed comes first in a round: here it is gone, or the same.
    led.differs_at = None
    led.has_more_work = led.has_more_work or not led.is_compared()
    if failure is not None:
        raise failure


async def compare_all(led: LedPartition) -> None:
    """Compare all remote pieces, for a caller that copies outside the rounds."""
    while not led.is_compared():
        try:
            await compare(led)
        except (Corrupt, NotFound, LastCopy):
            continue  # the job reports it; here it only counts that no difference was found


async def _try_compare(led: LedPartition, piece: CoverPiece) -> HeadwaterError | None:
    """Compare a piece; returns why it must not be dropped locally, if it must not."""
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
            "copies, merges and drops nothing until they are the same. A recreated log must begin "
            "above what is remote, or have the same records: create it again there"
        )
    await _keep_lost_remotely(led, piece, lost)


async def _has_one_writer(led: LedPartition, piece: CoverPiece) -> bool:
    """Whether the local records of a piece and the piece itself have one and the same term.

    Then the leader of that term wrote both, and the last record is enough to compare. Records that
    another leader read from the queue again may differ anywhere.
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
    """Whether both have the same records, without LSNs that either side lost or cannot read."""
    both: list[range] = []
    skipped: list[range] = []
    here = led.readable_groups(lsns.start, lsns.stop - 1, skipped)
    local = await hash_groups(_parts_outside(here, lost, both))
    if skipped:
        # These are not compared, so the segment that they are dropped for must be readable.
        await led.storage.verify(piece.segment)
    if not both:
        return True
    remote = led.storage.fetch(piece.segment, both[0].start, both[-1].stop)
    return local == await hash_groups(_within(remote, both))


async def _parts_outside(
    groups: AsyncIterator[Group], lost: Sequence[range], both: list[range]
) -> AsyncIterator[Group]:
    """The groups without lost LSNs; adds the ranges that it yields to `both`."""
    async for group in groups:
        if group.lost is not None:
            continue
        for part in _subtract(range(group.first_lsn, group.last_lsn + 1), lost):
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


def _subtract(lsns: range, lost: Sequence[range]) -> list[range]:
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


async def _keep_lost_remotely(led: LedPartition, piece: CoverPiece, lost: Sequence[range]) -> None:
    """Raise `LastCopy` for records that only the local log has, and schedule a copy of them if it
    would be in the cover."""
    local: list[Group] = []
    for lsns in lost:
        here = led.readable_groups(lsns.start, lsns.stop - 1, [])
        local += [group async for group in here if group.lost is None]
    for group in local:
        lsns = range(group.first_lsn, group.last_lsn + 1)
        if group.term >= epoch_at(piece, lsns.start) and lsns not in led.lost_remotely:
            led.lost_remotely.append(lsns)
    if local:
        raise LastCopy(
            f"LSNs {local[0].first_lsn} to {local[-1].last_lsn} of {led.leader.partition} are lost "
            f"in {piece.segment.segment_id}, at least some of them, and the local log has them, "
            f"under term {local[0].term}: it is kept from there on until they are copied again, "
            "which its leader does if that term is not older than the segment's"
        )


# Copying


async def copy_sealed(led: LedPartition) -> None:
    """Copy parts that are sealed, committed and not remote yet.

    Nothing is copied before the log was compared: copies from a wrong log would stay, and the right
    log would differ from them.
    """
    if not led.is_compared():
        return
    while led.lost_remotely:
        await copy_local(led, led.lost_remotely[-1])
        led.lost_remotely.pop()
    led.damages = []
    for _ in range(COPIES_A_ROUND):
        if (due := _next_due(led)) is None:
            return
        try:
            await copy_local(led, due)
        except LocalLogDamaged as error:
            # What comes before and after it is copied. The next round retries all of it.
            led.damages.append(error)
    led.has_more_work = led.has_more_work or _next_due(led) is not None


async def copy_local(led: LedPartition, lsns: range) -> None:
    """Copy these LSNs from the local log, as one segment, or as several if they do not fit."""
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
            led.copied_from_local(part)
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
    """Make one remote segment of these groups, of about `about_bytes`; returns its size."""
    await led.rate.take(0)  # before the segment is in memory
    async with led.memory.hold(about_bytes):
        prepared = await led.storage.prepare(
            lsns.start, lsns.stop - 1, groups, merged_from=merged_from, columns=columns
        )
        led.rate.spend(prepared.metadata.size_bytes)
        # Records without a time are as old as their first copy: merging does not make them newer.
        newest_ms = max(map(newest_ms_of, merged_from), default=0)
        await led.publisher.copy_started(prepared, newest_ms=newest_ms)
        try:
            await led.storage.copy(prepared)
        except HeadwaterError as failed:
            try:
                await abandon_copy(led, prepared.metadata.segment_id)
            except Fenced:
                raise
            except HeadwaterError as later:
                _log.info("%s is removed later: %s", prepared.metadata.segment_id, later)
            raise failed
        led.copy_finishes(lsns)
        await led.publisher.copy_finished(prepared)
        return prepared.metadata.size_bytes


async def missing_ranges(led: LedPartition) -> list[range]:
    """The lost LSNs: below the local log, and in no remote segment."""
    if not led.has_missing():
        return []
    first_lsn, end_lsn = led.tiered_lsn() + 1, led.local.oldest_lsn()
    async with aclosing(walk_cover(led.metadata.state, first_lsn, end_lsn)) as pieces:
        return gaps([piece async for piece in pieces], first_lsn, end_lsn)


def _next_due(led: LedPartition) -> range | None:
    tiered_lsn, committed_lsn = led.tiered_lsn(), led.leader.committed_lsn()
    # After lost or unreadable LSNs, what follows is copied all the same, and only once.
    unreadable = [damage.lsns for damage in led.damages]
    has_gap = bool(unreadable) or led.has_missing()
    from_lsn = max(led.local.oldest_lsn(), tiered_lsn + 1)
    beyond = led.metadata.state().cover(from_lsn, committed_lsn + 1) if has_gap else ()
    skipped = sorted([*(piece.lsns for piece in beyond), *unreadable], key=lambda r: r.start)
    for sealed in led.local.sealed():
        if sealed.last_lsn > committed_lsn:
            break
        due = range(max(sealed.first_lsn, from_lsn), sealed.last_lsn + 1)
        for lsns in skipped:
            if lsns.start <= due.start < lsns.stop:
                due = range(lsns.stop, due.stop)
            elif due.start < lsns.start < due.stop and lsns in unreadable:
                due = range(due.start, lsns.start)
        if due:
            return due
    return None
