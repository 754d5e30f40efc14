"""Walks what is known of many segments, and lets others work meanwhile.

A million of them at once would hold up everybody else on the event loop for seconds.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Final, Protocol, TypeVar

from headwater.core import runtime
from headwater.tier.events import SegmentMetadata
from headwater.tier.segment_cover import CoverPiece

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


async def bit_by_bit(items: Iterable[T]) -> AsyncGenerator[T, None]:
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
