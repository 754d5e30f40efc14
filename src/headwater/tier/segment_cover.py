"""A cover: which segment each LSN is read from, so that no LSN is read twice.

Several finished segments may hold the same LSN: a new leader copies again what its predecessor
copied, and small segments are merged. The segment that holds the LSN under the newest epoch
counts, because an older leader may have continued after it was replaced. Within an epoch all
copies are equal, and the one that finished last counts.

`walk_cover` and `walk_segments` read long covers and many segments in parts and yield to the
event loop in between: a million segments in one call would block it for seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from headwater.core import runtime
from headwater.tier.events import SegmentMetadata

if TYPE_CHECKING:
    from headwater.tier.cache import PartitionCache

T = TypeVar("T")
END_LSN: Final = (1 << 63) - 1
SEGMENTS_AT_ONCE: Final = 1_000
"""They take about ten milliseconds."""


class CoverPiece(NamedTuple):
    segment: SegmentMetadata
    lsns: range


class _Claim(NamedTuple):
    """A segment holds these LSNs under this epoch or a newer one. Sorts by first LSN."""

    first_lsn: int
    end_lsn: int
    epoch: int
    finished: int
    """The index of the segment in the order of finishing."""


def cover(finished: Sequence[SegmentMetadata], first_lsn: int, end_lsn: int) -> list[CoverPiece]:
    """The pieces to read for [first_lsn, end_lsn), in order of LSNs, without LSNs in no segment.

    `finished` are segments in the order in which they finished. O(n log n), whatever overlaps.
    """
    claims = sorted(_claims(finished, first_lsn, end_lsn))
    pieces: list[CoverPiece] = []
    # By newest epoch, then by latest finish: negated, because heapq has the smallest on top.
    open_claims: list[tuple[int, int, int]] = []
    following, at = 0, first_lsn
    while True:
        while following < len(claims) and claims[following].first_lsn <= at:
            claim = claims[following]
            heapq.heappush(open_claims, (-claim.epoch, -claim.finished, claim.end_lsn))
            following += 1
        while open_claims and open_claims[0][2] <= at:
            heapq.heappop(open_claims)
        if not open_claims:
            if following == len(claims):
                return pieces
            at = claims[following].first_lsn
            continue
        _, negated, until = open_claims[0]
        if following < len(claims):
            until = min(until, claims[following].first_lsn)
        _extend(pieces, finished[-negated], range(at, until))
        at = until


def gaps(pieces: Sequence[CoverPiece], first_lsn: int, end_lsn: int) -> list[range]:
    """The LSNs of [first_lsn, end_lsn) that no piece of its cover has."""
    missing, at = [], first_lsn
    for piece in pieces:
        if piece.lsns.start > at:
            missing.append(range(at, piece.lsns.start))
        at = piece.lsns.stop
    if at < end_lsn:
        missing.append(range(at, end_lsn))
    return missing


def dense_end(pieces: Iterable[CoverPiece], first_lsn: int) -> int:
    """The first LSN from `first_lsn` on that the pieces of a cover do not have."""
    end_lsn = first_lsn
    for piece in pieces:
        if piece.lsns.start > end_lsn:
            break
        end_lsn = max(end_lsn, piece.lsns.stop)
    return end_lsn


def overlap(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


def epoch_at(piece: CoverPiece, lsn: int) -> int:
    epochs = piece.segment.epochs
    return max((epoch for epoch, begins in epochs if begins <= lsn), default=epochs[0][0])


def share_bytes(piece: CoverPiece) -> int:
    segment = piece.segment
    lsns = segment.end_offset - segment.start_offset + 1
    return segment.size_bytes * len(piece.lsns) // lsns


def _claims(finished: Sequence[SegmentMetadata], first_lsn: int, end_lsn: int) -> Iterator[_Claim]:
    for index, segment in enumerate(finished):
        ends = min(segment.end_offset + 1, end_lsn)
        for number, (epoch, offset) in enumerate(segment.epochs):
            # The first epoch begins with the segment, whatever offset the lineage has for it.
            begins = max(segment.start_offset, offset if number else 0, first_lsn)
            # Through the end of the segment: where its next epoch begins, the newer claim wins.
            if begins < ends:
                yield _Claim(begins, ends, epoch, index)


def _extend(pieces: list[CoverPiece], segment: SegmentMetadata, lsns: range) -> None:
    if pieces and pieces[-1].segment is segment and pieces[-1].lsns.stop == lsns.start:
        pieces[-1] = CoverPiece(segment, range(pieces[-1].lsns.start, lsns.stop))
    else:
        pieces.append(CoverPiece(segment, lsns))


async def with_pauses(items: Iterable[T]) -> AsyncGenerator[T, None]:
    """Items that are in memory, with a pause for other tasks from time to time."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % SEGMENTS_AT_ONCE == 0:
            await runtime.sleep(0)


async def walk_segments(
    state: Callable[[], PartitionCache],
) -> AsyncGenerator[SegmentMetadata, None]:
    """All listed segments, in order of their start offsets, read in parts.

    `state` is called for each part. Segments that are added or deleted below the current position
    have no effect.
    """
    at: int | None = 0
    while at is not None:
        part, at = state().segments_part(at, SEGMENTS_AT_ONCE)
        for segment in part:
            yield segment
        if at is not None:
            await runtime.sleep(0)


async def walk_cover(
    state: Callable[[], PartitionCache], first_lsn: int, end_lsn: int
) -> AsyncGenerator[CoverPiece, None]:
    """The pieces of a cover, read in parts; `state` is called for each part.

    Each part is the cover at one moment. If only the caller changes the state, and does not during
    the walk, the whole result is the cover of one moment.
    """
    at = first_lsn
    pending: CoverPiece | None = None
    while at < end_lsn:
        pieces, at = state().cover_part(at, end_lsn, SEGMENTS_AT_ONCE)
        for piece in pieces:
            if pending is None:
                pending = piece
                continue
            same = pending.segment.segment_id == piece.segment.segment_id
            if same and pending.lsns.stop == piece.lsns.start:  # it was cut between two parts
                pending = CoverPiece(piece.segment, range(pending.lsns.start, piece.lsns.stop))
            else:
                yield pending
                pending = piece
        if at < end_lsn:
            await runtime.sleep(0)
    if pending is not None:
        yield pending
