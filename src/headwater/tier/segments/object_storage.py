"""Segments in object storage: one Parquet object each, written once and never changed.

streams/<stream>/<partition>/segments/<stream id>/<segment id>.parquet
streams/<stream>/<partition>/segments/<stream id>/clock        written to read the store's time
"""

from __future__ import annotations

import re
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Final, Protocol, TypeAlias

import pyarrow as pa
import xxhash

from headwater.buffer.layout import check_stream_name, segments_prefix
from headwater.core import limits, runtime
from headwater.core.errors import Corrupt, HeadwaterError, Refused, Unavailable
from headwater.log.record.group import Group
from headwater.store import ObjectMeta, Store
from headwater.store.objects import Buffer
from headwater.tier.errors import NotOneSegment, SourceUnreadable
from headwater.tier.events import SegmentId, SegmentMetadata, TopicIdPartition
from headwater.tier.segments.columns import ColumnUnion
from headwater.tier.segments.encoder import (
    SegmentConfig,
    SegmentPlan,
    encode_segment,
    new_segment_id,
)
from headwater.tier.segments.footer import SegmentIndex
from headwater.tier.segments.reading import (
    ObjectCache,
    ObjectRanges,
    RowGroupSplitter,
    decode_row_group,
    lost_groups,
    open_index,
    row_group_bytes,
)
from headwater.tier.segments.seal import UNKNOWN_XXH3, Receipt, receipt_of

Sequences: TypeAlias = tuple[int, int]
"""The first and last queue entry of records."""


class PreparedSegment(Protocol):
    """An encoded segment, under an id that no other attempt uses."""

    @property
    def metadata(self) -> SegmentMetadata:
        """The event that its copy starts, before it has a publisher."""

    @property
    def data(self) -> Buffer:
        """The bytes of the object."""


CLOCK: Final = "clock"
"""Written to read the clock that gives objects their times."""
_NAME: Final = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.parquet")


def segment_key(segment_id: SegmentId) -> str:
    """The key of a segment's object."""
    return f"{_prefix(segment_id.partition)}/{segment_id.id}.parquet"


def segment_id_of(partition: TopicIdPartition, key: str) -> SegmentId | None:
    """The segment of a partition with this key; None if the key is not one of its segments."""
    match = _NAME.fullmatch(key.removeprefix(f"{_prefix(partition)}/"))
    return None if match is None else SegmentId(partition, uuid.UUID(match[1]))


class ObjectStorage:
    """Segments of any partition in a store."""

    def __init__(self, store: Store, cache: ObjectCache | None = None) -> None:
        """`cache` keeps parts that were read."""
        self._store = store
        self._cache = cache

    async def copy(self, segment: PreparedSegment) -> None:
        """Store a segment under its id.

        `OutcomeUnknown`: it may be stored, now or later; `Unavailable`, `Refused`: it is not. In
        each case the next attempt uses another id, and this one is deleted. `AlreadyExists`: the id
        was used before.
        """
        identity = segment.metadata.segment_id
        # No other object has the id in the seal: it settles a lost response.
        await self._store.put_if_absent(
            segment_key(identity), segment.data, token=identity.id.bytes
        )

    async def fetch(
        self, segment: SegmentMetadata, first_lsn: int, end_lsn: int
    ) -> AsyncGenerator[Group, None]:
        """The groups of [first_lsn, end_lsn) in a segment, in order and without gaps.

        Nothing if it has none of these LSNs. Uses memory for a few row groups.
        """
        ranges, index = await self._open(segment)
        lost = deque(lost_groups(index, first_lsn, end_lsn))
        numbers = index.row_groups(first_lsn, end_lsn)
        async with aclosing(row_group_bytes(ranges, index, numbers)) as stored:
            async for number, data in stored:
                for group in await self._decoded(index, number, data, first_lsn, end_lsn):
                    while lost and lost[0].first_lsn < group.first_lsn:
                        yield lost.popleft()
                    yield group
        for group in lost:
            yield group

    async def fetch_index(self, segment: SegmentMetadata) -> SegmentIndex:
        _, index = await self._open(segment)
        return index

    async def delete(self, segment_id: SegmentId) -> None:
        await self._store.delete(segment_key(segment_id))

    async def verify(self, segment: SegmentMetadata) -> SegmentIndex:
        """Read all of a segment, check every checksum, and decode the rows.

        Unchanged bytes may still contain records that cannot be decoded.
        """
        key = segment_key(segment.segment_id)
        receipt = receipt_of(segment)
        # Not from the cache: the object must exist.
        _, index = await open_index(self._store, key, receipt)
        _check_identity(segment, index, receipt)
        whole, body, left = xxhash.xxh3_128(), xxhash.xxh3_128(), index.seal.body_bytes
        parts, end_lsn = RowGroupSplitter(index.description.row_groups), segment.end_offset + 1
        async for chunk in self._store.get_stream(key):
            whole.update(chunk)
            body.update(chunk[:left])
            left -= min(left, len(chunk))
            for number, data in parts.take(chunk):
                await self._decoded(index, number, data, segment.start_offset, end_lsn)
        if body.digest() != index.seal.body_xxh3:
            raise Corrupt(f"{key} was changed: the checksum of its body is different")
        expected = UNKNOWN_XXH3 if receipt is None else receipt.xxh3
        if expected not in (UNKNOWN_XXH3, whole.digest()):
            raise Corrupt(f"{key} is not what its events say: its checksum is different")
        return index

    async def list(
        self, partition: TopicIdPartition
    ) -> AsyncIterator[tuple[SegmentId | None, ObjectMeta]]:
        """The objects of a partition with their segments, whatever the events say.

        None: the object belongs to no segment, by its name or folder.
        """
        folder = _prefix(partition)
        async for meta in self._store.list(folder):
            segment_id = segment_id_of(partition, meta.key)
            if segment_id is not None or meta.key != f"{folder}/{CLOCK}":
                yield segment_id, meta

    async def _decoded(
        self, index: SegmentIndex, number: int, data: memoryview, first_lsn: int, end_lsn: int
    ) -> Sequence[Group]:
        arguments = (index, number, data, first_lsn, end_lsn)
        try:
            if len(data) <= limits.DECODE_INLINE_BYTES:
                return decode_row_group(*arguments)
            return await runtime.run_blocking(decode_row_group, *arguments)
        except Corrupt:
            # Perhaps only the response was damaged: the next caller reads the object again.
            if self._cache is not None:
                self._cache.forget(self._cache_key(segment_key(index.description.identity)))
            raise

    def _cache_key(self, key: str) -> tuple[str, str]:
        """The beginning of the cache keys of an object."""
        return self._store.url, key

    async def _open(self, segment: SegmentMetadata) -> tuple[ObjectRanges, SegmentIndex]:
        receipt, key = receipt_of(segment), segment_key(segment.segment_id)

        async def load() -> tuple[ObjectRanges, SegmentIndex]:
            return await open_index(self._store, key, receipt, self._cache)

        if self._cache is None:
            ranges, index = await load()
        else:
            ranges, index = await self._cache.get(self._cache_key(key), load, _size_of)
        _check_identity(segment, index, receipt)
        return ranges, index


class ParquetSegments(ObjectStorage):
    """The segments of one partition in a store, for the jobs of its leader."""

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
    ) -> PreparedSegment:
        """Encode these groups as one segment; `Refused` if they cannot be in one.

        Nothing is stored yet. `merged_from` are the segments that the groups come from. All groups
        get these `columns`; missing ones are null.
        """
        plan = SegmentPlan(
            new_segment_id(self._partition),
            first_lsn,
            last_lsn,
            schemas=await self._schemas(merged_from),
            widen_to=columns,
            declared=self._declared(),
            sequences=(_join(merged_from) if merged_from else self._sequences(first_lsn, last_lsn)),
            # As old as their first copy: merging does not make records newer.
            undated_ms=max(
                (one.max_timestamp_ms for one in merged_from), default=runtime.wall_ms()
            ),
        )
        return await encode_segment(plan, groups, self._config)

    def schema_version(self, segment: SegmentMetadata) -> int:
        """The schema version of a segment's records; only segments of one version are merged."""
        receipt = receipt_of(segment)
        return 0 if receipt is None else receipt.schema_version

    async def lost_in(self, segment: SegmentMetadata, lsns: range) -> list[range]:
        """The LSNs of these whose records are lost in a segment, in order.

        No request if the receipt has as many records as LSNs.
        """
        receipt = receipt_of(segment)
        if receipt is not None and receipt.rows == segment.end_offset - segment.start_offset + 1:
            return []
        index = await self.fetch_index(segment)
        lost = lost_groups(index, lsns.start, lsns.stop)
        return [range(group.first_lsn, group.last_lsn + 1) for group in lost]

    def objects(self) -> AsyncIterator[tuple[SegmentId | None, ObjectMeta]]:
        return self.list(self._partition)

    async def lsns_of(self, segment_id: SegmentId) -> range:
        """The LSNs in an object by its own description; `Corrupt` if that cannot be read."""
        _, index = await open_index(self._store, segment_key(segment_id), None)
        return range(index.description.first_lsn, index.description.last_lsn + 1)

    async def now_ms(self) -> int:
        """The time of the clock that gives objects their times, from an object that this writes."""
        key = f"{_prefix(self._partition)}/{CLOCK}"
        await self._store.put(key, b"")
        return await self._store.now_ms(key)

    async def _schemas(self, segments: Sequence[SegmentMetadata]) -> list[pa.Schema]:
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
                await runtime.run_blocking(_add_all, union, new.values(), bool(schemas))
            except Refused as error:
                raise NotOneSegment(
                    f"the columns of {segment.segment_id} do not fit those before it: {error}",
                    at_lsn=segment.start_offset,
                ) from error
            schemas |= new
        return list(schemas.values())


def _size_of(opened: tuple[ObjectRanges, SegmentIndex]) -> int:
    """A decoded footer takes a few times its size in memory."""
    ranges, index = opened
    return ranges.held_bytes + 4 * len(index.seal.footer)


def _prefix(partition: TopicIdPartition) -> str:
    name = check_stream_name(partition.name)
    return segments_prefix(name, partition.partition, str(partition.topic_id))


def _check_identity(segment: SegmentMetadata, index: SegmentIndex, receipt: Receipt | None) -> None:
    description = index.description
    if description.identity != segment.segment_id:
        raise Corrupt(f"the object of {segment.segment_id} contains {description.identity}")
    if (description.first_lsn, description.last_lsn) != (segment.start_offset, segment.end_offset):
        raise Corrupt(
            f"{segment.segment_id} has LSNs {description.first_lsn} to {description.last_lsn}, and "
            f"its events say {segment.start_offset} to {segment.end_offset}"
        )
    if receipt is not None and description.rows != receipt.rows:
        raise Corrupt(
            f"{segment.segment_id} has {description.rows} records, and its events say "
            f"{receipt.rows}"
        )


def _add_all(union: ColumnUnion, schemas: Iterable[pa.Schema], is_merged: bool) -> None:
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
