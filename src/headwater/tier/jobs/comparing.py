"""Looks whether the local log has the records that the tier has under the same LSNs.

What others copied counts as this log's own only then. A log that was begun at the wrong LSN, or is
another stream's, would have its records dropped as remote, and nobody would have them.

Always holds: what is dropped locally was copied from this very log, or compared with its copy; what
is copied comes from a log that was compared with all that is remote and can be read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from headwater.core.errors import Bug, Corrupt, HeadwaterError, NotFound
from headwater.log.record.group import Group
from headwater.log.record.range_hashes import hash_of
from headwater.tier.errors import LastCopy, LocalLogDamaged, OtherRecords
from headwater.tier.jobs.led_partition import LedPartition
from headwater.tier.segment_cover import CoverPiece, epoch_at, share_bytes

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
    local = await hash_of(_parts_outside(here, lost, both))
    if skipped:
        # Nothing is known of these: what they are dropped for must be good.
        await led.storage.verify(piece.segment)
    if not both:
        return True
    remote = led.storage.fetch(piece.segment, both[0].start, both[-1].stop)
    return local == await hash_of(_within(remote, both))


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
