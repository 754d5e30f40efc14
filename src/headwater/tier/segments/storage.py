"""What the tier asks of whatever stores its segments."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from headwater.log.record.group import Group
from headwater.tier.events import SegmentMetadata
from headwater.tier.identity import SegmentId
from headwater.tier.segments.encoder import EncodedSegment
from headwater.tier.segments.index import SegmentIndex


class RemoteStorage(Protocol):
    """Stores segments. Every attempt to copy has a segment id of its own."""

    async def copy(self, segment: EncodedSegment) -> None:
        """Store a segment under its id.

        `OutcomeUnknown`: it may be there or come yet; `Unavailable`, `Refused`: it is not. In each
        case the next attempt takes another id, and this one is deleted. `AlreadyExists`: the id was
        used before.
        """

    def fetch(self, segment: SegmentMetadata, first_lsn: int, end_lsn: int) -> AsyncIterator[Group]:
        """The groups of [first_lsn, end_lsn) that a segment holds, in order and without gaps.

        A range of which it holds nothing gives nothing. Memory is bounded by a few row groups.
        """

    async def fetch_index(self, segment: SegmentMetadata) -> SegmentIndex:
        """Where the records of a segment stand, its terms, its schemas and what is lost in it."""

    async def delete(self, segment_id: SegmentId) -> None:
        """Remove a segment; removing one that is not there succeeds."""
