"""The segments of one partition as Parquet objects in a store, for the jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence

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


class ParquetSegments(ObjectStorage):
    """`SegmentStorage` in a store: those of one partition, and how they are made."""

    def __init__(
        self,
        store: Store,
        partition: TopicIdPartition,
        *,
        declared: Callable[[], Sequence[pa.Schema]] = tuple,
        sequences: Callable[[int, int], Sequences | None] = lambda first_lsn, last_lsn: None,
        config: SegmentConfig | None = None,
    ) -> None:
        """`declared`: every version of the stream's schema. `sequences`: the entries of the queue
        that the records from one LSN to another come from."""
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
            sequences=(
                _joined(merged_from) if merged_from else self._sequences(first_lsn, last_lsn)
            ),
            # As old as their first copy: merging makes none younger.
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
        """See `SegmentStorage`; where its events count as many records as LSNs, none is asked."""
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
        """See `SegmentStorage`: the time of an object that is written for it."""
        place = self._partition
        folder = segments_prefix(place.name, place.partition, str(place.topic_id))
        await self._store.put(f"{folder}/{CLOCK}", b"")
        return await self._store.now_ms(f"{folder}/{CLOCK}")

    async def _schemas(self, segments: Sequence[SegmentMetadata]) -> list[pa.Schema]:
        """All that records of these segments have; they stand in their footers."""
        schemas: dict[str, pa.Schema] = {}
        union = ColumnUnion()
        for segment in segments:
            try:
                index = await self.fetch_index(segment)
            except Unavailable:
                raise
            except HeadwaterError as error:
                raise SourceUnreadable(str(error), segment_id=segment.segment_id) from error
            said = zip(index.description.schemas, index.schemas, strict=True)
            new = {text: schema for text, schema in said if text not in schemas}
            try:
                await runtime.run_blocking(_add, union, new.values(), bool(schemas))
            except Refused as error:
                raise NotOneSegment(
                    f"the columns of {segment.segment_id} do not go together with those before "
                    f"it: {error}",
                    at_lsn=segment.start_offset,
                ) from error
            schemas |= new
        return list(schemas.values())


def _add(union: ColumnUnion, schemas: Iterable[pa.Schema], is_merged: bool) -> None:
    before = len(union.kinds)
    for schema in schemas:
        union.add(schema)
    # Every record has a place in each column: different ones side by side cost far more than two
    # objects do. What has the same columns is merged however many they are.
    if is_merged and before < len(union.kinds) > limits.TIER_MERGE_COLUMNS:
        raise NotOneSegment(
            f"{len(union.kinds):,} columns in all, and at most {limits.TIER_MERGE_COLUMNS:,} are "
            "put together by merging (TIER_MERGE_COLUMNS)"
        )


def _joined(segments: Sequence[SegmentMetadata]) -> Sequences | None:
    """The entries that all of these come from; None if one does not say."""
    found: list[Sequences] = []
    for segment in segments:
        receipt = receipt_of(segment)
        if receipt is None or receipt.sequences is None:
            return None
        found.append(receipt.sequences)
    return min(first for first, _ in found), max(last for _, last in found)
