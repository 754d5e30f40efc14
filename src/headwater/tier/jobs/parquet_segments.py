"""The segment storage of the jobs, and its implementation: Parquet objects in a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Protocol

import pyarrow as pa

from headwater.buffer.layout import segments_prefix
from headwater.core import limits, runtime
from headwater.core.errors import HeadwaterError, Refused, Unavailable
from headwater.log.record.group import Group
from headwater.store import ObjectMeta, Store
from headwater.tier.errors import NotOneSegment, SourceUnreadable
from headwater.tier.events import SegmentId, SegmentMetadata, TopicIdPartition
from headwater.tier.segments import (
    EncodedSegment,
    ObjectStorage,
    PreparedSegment,
    SegmentConfig,
    SegmentPlan,
    encode_segment,
    new_segment_id,
    receipt_of,
)
from headwater.tier.segments.columns import ColumnUnion
from headwater.tier.segments.object_storage import CLOCK, segment_key
from headwater.tier.segments.reading import lost_groups, open_index

Sequences = tuple[int, int]


class SegmentStorage(Protocol):
    """Stores the segments of one partition."""

    async def prepare(
        self,
        first_lsn: int,
        last_lsn: int,
        groups: AsyncIterator[Group],
        *,
        merged_from: Sequence[SegmentMetadata] = (),
        columns: pa.Schema | None = None,
    ) -> PreparedSegment:
        """Encode these groups as one segment; `Refused` if they cannot be in one.

        Nothing is stored yet. `merged_from` are the segments that the groups come from. All groups
        get these `columns`; missing ones are null.
        """

    async def copy(self, prepared: PreparedSegment) -> None:
        """Store it. After any error, the next attempt uses another id, and this one is removed."""

    def fetch(self, segment: SegmentMetadata, first_lsn: int, end_lsn: int) -> AsyncIterator[Group]:
        """The groups of [first_lsn, end_lsn) in a segment, in order and without gaps."""

    def schema_version(self, segment: SegmentMetadata) -> int:
        """The schema version of a segment's records; only segments of one version are merged."""

    async def lost_in(self, segment: SegmentMetadata, lsns: range) -> list[range]:
        """The LSNs of these whose records are lost in a segment, in order."""

    async def verify(self, segment: SegmentMetadata) -> object:
        """Read all of it; `NotFound` if there is no object, `Corrupt` if it was changed."""

    async def delete(self, segment_id: SegmentId) -> None:
        """Remove the object of a segment, if there is one."""

    def objects(self) -> AsyncIterator[tuple[SegmentId | None, ObjectMeta]]:
        """All objects of the partition with their segments, whatever the events say.

        None: an object of no segment."""

    async def lsns_of(self, segment_id: SegmentId) -> range:
        """The LSNs in an object by its own description; `Corrupt` if that cannot be read."""

    async def now_ms(self) -> int:
        """The time of the clock that gives objects their times; reading it may take a write."""


class ParquetSegments(ObjectStorage):
    """`SegmentStorage` in a store."""

    def __init__(
        self,
        store: Store,
        partition: TopicIdPartition,
        *,
        declared: Callable[[], Sequence[pa.Schema]] = tuple,
        sequences: Callable[[int, int], Sequences | None] = lambda first_lsn, last_lsn: None,
        config: SegmentConfig | None = None,
    ) -> None:
        """`declared` returns all versions of the stream's schema, `sequences` the queue entries of
        the records from one LSN to another."""
        super().__init__(store)
        self._partition = partition
        self._declared = declared
        self._sequences = sequences
        self._config = config

    async def prepare(
        self,
        first_lsn: int,
        last_lsn: int,
        groups: AsyncIterator[Group],
        *,
        merged_from: Sequence[SegmentMetadata] = (),
        columns: pa.Schema | None = None,
    ) -> EncodedSegment:
        """See `SegmentStorage`."""
        plan = SegmentPlan(
            new_segment_id(self._partition),
            first_lsn,
            last_lsn,
            schemas=await self._schemas(merged_from),
            columns=columns,
            declared=self._declared(),
            sequences=(_join(merged_from) if merged_from else self._sequences(first_lsn, last_lsn)),
            # As old as their first copy: merging does not make records newer.
            undated_ms=max(
                (one.max_timestamp_ms for one in merged_from), default=runtime.wall_ms()
            ),
        )
        return await encode_segment(plan, groups, self._config)

    def schema_version(self, segment: SegmentMetadata) -> int:
        """See `SegmentStorage`."""
        receipt = receipt_of(segment)
        return 0 if receipt is None else receipt.schema_version

    async def lost_in(self, segment: SegmentMetadata, lsns: range) -> list[range]:
        """See `SegmentStorage`; no request if the receipt has as many records as LSNs."""
        receipt = receipt_of(segment)
        if receipt is not None and receipt.rows == segment.end_offset - segment.start_offset + 1:
            return []
        index = await self.fetch_index(segment)
        lost = lost_groups(index, lsns.start, lsns.stop)
        return [range(group.first_lsn, group.last_lsn + 1) for group in lost]

    def objects(self) -> AsyncIterator[tuple[SegmentId | None, ObjectMeta]]:
        """See `SegmentStorage`."""
        return self.list(self._partition)

    async def lsns_of(self, segment_id: SegmentId) -> range:
        """See `SegmentStorage`."""
        _, index = await open_index(self._store, segment_key(segment_id), None)
        return range(index.description.first_lsn, index.description.last_lsn + 1)

    async def now_ms(self) -> int:
        """See `SegmentStorage`: the time of an object that this writes."""
        partition = self._partition
        folder = segments_prefix(partition.name, partition.partition, str(partition.topic_id))
        await self._store.put(f"{folder}/{CLOCK}", b"")
        return await self._store.now_ms(f"{folder}/{CLOCK}")

    async def _schemas(self, segments: Sequence[SegmentMetadata]) -> list[pa.Schema]:
        """All schemas of the records of these segments, from their footers."""
        schemas: dict[str, pa.Schema] = {}
        union = ColumnUnion()
        for segment in segments:
            try:
                index = await self.fetch_index(segment)
            except Unavailable:
                raise
            except HeadwaterError as error:
                raise SourceUnreadable(str(error), segment_id=segment.segment_id) from error
            stored = zip(index.description.schemas, index.schemas, strict=True)
            new = {text: schema for text, schema in stored if text not in schemas}
            try:
                await runtime.run_blocking(_add, union, new.values(), bool(schemas))
            except Refused as error:
                raise NotOneSegment(
                    f"the columns of {segment.segment_id} do not fit those before it: {error}",
                    at_lsn=segment.start_offset,
                ) from error
            schemas |= new
        return list(schemas.values())


def _add(union: ColumnUnion, schemas: Iterable[pa.Schema], is_merged: bool) -> None:
    before = len(union.kinds)
    for schema in schemas:
        union.add(schema)
    # Every record takes space in each column, so merging different columns costs far more than two
    # objects. Segments with the same columns are merged however many columns they have.
    if is_merged and before < len(union.kinds) > limits.TIER_MERGE_COLUMNS:
        raise NotOneSegment(
            f"{len(union.kinds):,} columns in all, and at most {limits.TIER_MERGE_COLUMNS:,} are "
            "merged (TIER_MERGE_COLUMNS)"
        )


def _join(segments: Sequence[SegmentMetadata]) -> Sequences | None:
    """The queue entries that all of these come from; None if one is unknown."""
    ranges: list[Sequences] = []
    for segment in segments:
        receipt = receipt_of(segment)
        if receipt is None or receipt.sequences is None:
            return None
        ranges.append(receipt.sequences)
    return min(first for first, _ in ranges), max(last for _, last in ranges)
