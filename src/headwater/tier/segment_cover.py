"""A cover: which segment each LSN is read from, so that none is read twice.

Several finished segments may hold the same LSN: a leader that took over copies again what its
predecessor had copied, and small segments are merged. Of those, the one that holds the LSN under
the newest epoch is right, because an older leader may have gone on without knowing that it was
over; within an epoch all are the same, and the one that finished last is the one that stays.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headwater.tier.events.event import SegmentMetadata


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
