"""What the jobs need: the metadata of a partition, a segment storage, a local log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import pyarrow as pa

from headwater.log.record.group import Group
from headwater.log.wal import SealedRange, Wal
from headwater.store import ObjectMeta
from headwater.tier.cache import EventOutcome
from headwater.tier.events import (
    MetadataEvent,
    PartitionDeleteState,
    SegmentId,
    SegmentMetadata,
)
from headwater.tier.segment_cover import CoverPiece
from headwater.tier.segments import PreparedSegment


class PartitionMetadata(Protocol):
    """What is known of one partition. Answers are those of all events applied so far, or
    `NotReady`."""

    async def refresh(self) -> None:
        """Ask how far the log of events goes now, and wait until all of it is applied here."""

    async def publish(self, event: MetadataEvent, *, publisher_epoch: int) -> EventOutcome:
        """Append an event, wait until it is applied here, and say what became of it.

        `Fenced`: a newer leader has published. `EventRejected`: it does not follow. `Unavailable`:
        it has not landed. `OutcomeUnknown`: it may have landed, or may yet, but never behind an
        event published afterwards.
        """

    def segments_part(
        self, first_lsn: int, most_segments: int
    ) -> tuple[list[SegmentMetadata], int | None]:
        """About so many of those that are listed and start at an LSN or after it, in order of
        their start offsets, and the LSN at which it goes on; None if it does not."""

    def find(self, segment_id: SegmentId) -> SegmentMetadata | None:
        """What is known of one segment, if it is listed."""

    def segments_in(self, first_lsn: int, end_lsn: int) -> list[SegmentMetadata]:
        """Those that are listed with LSNs of [first_lsn, end_lsn), by their start offsets."""

    def unfinished(self) -> list[SegmentMetadata]:
        """Those that are being copied or deleted; it costs as much as there are of them."""

    def cover(self, first_lsn: int, end_lsn: int) -> list[CoverPiece]:
        """What to read for [first_lsn, end_lsn)."""

    def cover_part(
        self, first_lsn: int, end_lsn: int, most_segments: int
    ) -> tuple[list[CoverPiece], int]:
        """The first pieces of a cover, from about so many segments, and the LSN at which it goes
        on, which is `end_lsn` if it does not."""

    def delete_state(self) -> PartitionDeleteState | None:
        """How far the deletion of the whole partition has come."""


class SegmentStorage(Protocol):
    """Segments of one partition, wherever they are kept."""

    async def prepare(
        self,
        first_lsn: int,
        last_lsn: int,
        groups: AsyncIterator[Group],
        *,
        merged_from: Sequence[SegmentMetadata] = (),
        columns: pa.Schema | None = None,
    ) -> PreparedSegment:
        """Make one segment of these groups; `Refused` if they cannot stand in one.

        Nothing is stored yet. `merged_from` are the segments that the groups come from. `columns`
        are given to all groups: those that they lack, as nulls.
        """

    async def copy(self, prepared: PreparedSegment) -> None:
        """Store it. Whatever is raised: the next attempt takes another id, and this one goes."""

    def fetch(self, segment: SegmentMetadata, first_lsn: int, end_lsn: int) -> AsyncIterator[Group]:
        """The groups of [first_lsn, end_lsn) that a segment holds, in order and without gaps."""

    def schema_version(self, segment: SegmentMetadata) -> int:
        """Of the records of a segment; only those of one version are merged."""

    async def lost_in(self, segment: SegmentMetadata, lsns: range) -> list[range]:
        """Which of these LSNs of a segment hold no records, because those are lost, in order."""

    async def verify(self, segment: SegmentMetadata) -> object:
        """Read all of it; `NotFound` if it is gone, `Corrupt` if it is not what was written."""

    async def delete(self, segment_id: SegmentId) -> None:
        """Remove it; removing one that is not there succeeds."""

    def objects(self) -> AsyncIterator[tuple[SegmentId | None, ObjectMeta]]:
        """Every object of the partition, and which segment it is of, whatever the events say.

        None: something that somebody else put there."""

    async def lsns_of(self, segment_id: SegmentId) -> range:
        """Which LSNs an object says it holds, whatever the events say; `Corrupt` if it does not."""

    async def now_ms(self) -> int:
        """The time by the clock that the objects' times come from; asking may take a write."""


class LocalLog(Wal, Protocol):
    """The log on the local disk, in parts that are sealed one after the other."""

    def sealed(self) -> Sequence[SealedRange]:
        """Those that are sealed and still there, oldest first.

        The last records of each have all of its columns: those before them may have fewer."""
