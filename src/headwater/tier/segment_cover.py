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
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from headwater.core import runtime
from headwater.tier.events import SegmentMetadata


class CoverPiece(NamedTuple):
    """A part of a segment, and the LSNs that are read from it."""

    segment: SegmentMetadata
    lsns: range


class _Claim(NamedTuple):
    """That a segment holds these LSNs under this epoch or a newer one. Sorts by first LSN."""

    first_lsn: int
    end_lsn: int
    epoch: int
    finished: int
    """The place of the segment among those given, which are in the order in which they finished."""


def cover(finished: Sequence[SegmentMetadata], first_lsn: int, end_lsn: int) -> list[CoverPiece]:
    """What to read for [first_lsn, end_lsn), in order of LSNs; what no segment holds is left out.

    `finished` are segments in the order in which they finished. O(n log n), whatever overlaps.
    """
    claims = sorted(_claims(finished, first_lsn, end_lsn))
    pieces: list[CoverPiece] = []
    # By newest epoch, then by latest finish; Python's heap has the smallest on top.
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
        _, finished_before, until = open_claims[0]
        if following < len(claims):
            until = min(until, claims[following].first_lsn)
        _extend(pieces, finished[-finished_before], range(at, until))
        at = until


def epoch_at(piece: CoverPiece, lsn: int) -> int:
    """The epoch under which a piece holds an LSN."""
    epochs = piece.segment.epochs
    return max((epoch for epoch, begins in epochs if begins <= lsn), default=epochs[0][0])


def share_bytes(piece: CoverPiece) -> int:
    """About how many bytes of its segment a piece is."""
    segment = piece.segment
    lsns = segment.end_offset - segment.start_offset + 1
    return segment.size_bytes * len(piece.lsns) // lsns


def gaps(pieces: Sequence[CoverPiece], first_lsn: int, end_lsn: int) -> list[range]:
    """The LSNs of [first_lsn, end_lsn) that a cover of it does not have."""
    found, at = [], first_lsn
    for piece in pieces:
        if piece.lsns.start > at:
            found.append(range(at, piece.lsns.start))
        at = piece.lsns.stop
    if at < end_lsn:
        found.append(range(at, end_lsn))
    return found


def _claims(finished: Sequence[SegmentMetadata], first_lsn: int, end_lsn: int) -> Iterator[_Claim]:
    for place, segment in enumerate(finished):
        ends = min(segment.end_offset + 1, end_lsn)
        for number, (epoch, offset) in enumerate(segment.epochs):
            # What stands before the first epoch belongs to it: the lineage begins with the segment.
            begins = max(segment.start_offset, offset if number else 0, first_lsn)
            # Through the end of the segment: where a newer epoch of it begins, that one wins.
            if begins < ends:
                yield _Claim(begins, ends, epoch, place)


def _extend(pieces: list[CoverPiece], segment: SegmentMetadata, lsns: range) -> None:
    if pieces and pieces[-1].segment is segment and pieces[-1].lsns.stop == lsns.start:
        pieces[-1] = CoverPiece(segment, range(pieces[-1].lsns.start, lsns.stop))
    else:
        pieces.append(CoverPiece(segment, lsns))


T = TypeVar("T")
END_LSN: Final = (1 << 63) - 1
SEGMENTS_AT_ONCE: Final = 1_000
"""About ten milliseconds' worth."""


class CoverInParts(Protocol):
    """What tells a cover bit by bit."""

    def cover_part(
        self, first_lsn: int, end_lsn: int, most_segments: int
    ) -> tuple[list[CoverPiece], int]:
        """The first pieces of a cover, from about so many segments, and the LSN at which it goes
        on, which is `end_lsn` if it does not."""


class SegmentsInParts(Protocol):
    """What tells segments bit by bit."""

    def segments_part(
        self, first_lsn: int, most_segments: int
    ) -> tuple[list[SegmentMetadata], int | None]:
        """About so many of those that are listed and start at an LSN or after it, in order of
        their start offsets, and the LSN at which it goes on; None if it does not."""


async def with_pauses(items: Iterable[T]) -> AsyncGenerator[T, None]:
    """Items that are at hand, with a pause for others after some of them."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % SEGMENTS_AT_ONCE == 0:
            await runtime.sleep(0)


async def walk_segments(metadata: SegmentsInParts) -> AsyncGenerator[SegmentMetadata, None]:
    """All segments that are listed, in order of their start offsets, found some at a time.

    What is listed or forgotten behind the one who walks is not noticed.
    """
    at: int | None = 0
    while at is not None:
        part, at = metadata.segments_part(at, SEGMENTS_AT_ONCE)
        for segment in part:
            yield segment
        if at is not None:
            await runtime.sleep(0)


async def walk_cover(
    metadata: CoverInParts, first_lsn: int, end_lsn: int
) -> AsyncGenerator[CoverPiece, None]:
    """The pieces of a cover, found some at a time.

    Each LSN is told of as it was at one moment. Where nobody but the one who walks changes what is
    known, all of it is the cover of that moment.
    """
    at = first_lsn
    held: CoverPiece | None = None
    while at < end_lsn:
        pieces, at = metadata.cover_part(at, end_lsn, SEGMENTS_AT_ONCE)
        for piece in pieces:
            if held is not None and _goes_on(held, piece):
                piece = CoverPiece(piece.segment, range(held.lsns.start, piece.lsns.stop))
            elif held is not None:
                yield held
            held = piece
        if at < end_lsn:
            await runtime.sleep(0)
    if held is not None:
        yield held


def _goes_on(before: CoverPiece, after: CoverPiece) -> bool:
    """Whether two pieces are one that was cut where the walk paused."""
    same = before.segment.segment_id == after.segment.segment_id
    return same and before.lsns.stop == after.lsns.start


class KnownPartition(CoverInParts, Protocol):
    """What is known of a partition by its events."""

    async def refresh(self) -> None:
        """Ask how far the log of events goes now, and wait until all of it is applied here."""


class RefreshedCover:
    """A `Covering` that asks first how far the events go: `RefreshedCover(ManagedPartition(…))`."""

    def __init__(self, partition: KnownPartition) -> None:
        self._partition = partition

    async def __call__(self, first_lsn: int, end_lsn: int) -> Sequence[CoverPiece]:
        """The cover of [first_lsn, end_lsn); `NotReady` if it is not known how far events go."""
        await self._partition.refresh()
        return [piece async for piece in walk_cover(self._partition, first_lsn, end_lsn)]
