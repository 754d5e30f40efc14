"""Walks long covers, and lets others work meanwhile."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from headwater.core import runtime
from headwater.tier.cover import CoverPiece
from headwater.tier.jobs.contract import PartitionMetadata

END_LSN: Final = (1 << 63) - 1
SEGMENTS_AT_ONCE: Final = 1_000
"""About ten milliseconds' worth."""


async def walk_cover(
    metadata: PartitionMetadata, first_lsn: int, end_lsn: int
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
