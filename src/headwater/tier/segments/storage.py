"""What the tier asks of whatever stores its segments."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from headwater.log.record.group import Group
from headwater.store.objects import Buffer
from headwater.tier.events import SegmentMetadata, SegmentUpdate
from headwater.tier.identity import SegmentId
from headwater.tier.segments.index import SegmentIndex


class PreparedSegment(Protocol):
    """A segment that is ready to be stored, under an id that no other attempt has."""

    @property
    def segment_id(self) -> SegmentId:
        """Which."""

    @property
    def size_bytes(self) -> int:
        """Of the object."""

    @property
    def data(self) -> Buffer:
        """The object."""

    def started(
        self, *, broker_id: int, event_timestamp_ms: int, publisher_epoch: int
    ) -> SegmentMetadata:
        """The event that its copy begins."""

    def finished(
        self, *, broker_id: int, event_timestamp_ms: int, publisher_epoch: int
    ) -> SegmentUpdate:
        """The event that its copy is there."""


class RemoteStorage(Protocol):
    """Stores segments. Every attempt to copy has a segment id of its own."""

    async def copy(self, segment: PreparedSegment) -> None:
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
