"""What the jobs need: the metadata of a partition, a segment storage, a local log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import pyarrow as pa

from headwater.log.record.group import Group
from headwater.log.wal import SealedRange, Wal
from headwater.store import ObjectMeta
from headwater.tier.events import (
    SegmentId,
    SegmentMetadata,
)
from headwater.tier.segments import PreparedSegment


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
