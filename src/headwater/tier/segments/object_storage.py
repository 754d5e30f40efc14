"""Segments in object storage: one Parquet object each, written once and never changed.

streams/<stream>/<partition>/segments/<stream id>/<segment id>.parquet
streams/<stream>/<partition>/segments/<stream id>/clock        written to read the store's time
"""

from __future__ import annotations

import re
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Final, Protocol

import xxhash

from headwater.buffer.layout import check_stream_name, segments_prefix
from headwater.core import limits, runtime
from headwater.core.errors import Corrupt
from headwater.log.record.group import Group
from headwater.store import ObjectMeta, Store
from headwater.store.objects import Buffer
from headwater.tier.events import SegmentId, SegmentMetadata, SegmentUpdate, TopicIdPartition
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


class PreparedSegment(Protocol):
    """An encoded segment, under an id that no other attempt uses."""

    @property
    def segment_id(self) -> SegmentId:
        """The id of the segment."""

    @property
    def size_bytes(self) -> int:
        """The size of the object."""

    @property
    def data(self) -> Buffer:
        """The bytes of the object."""

    def started(
        self, *, broker_id: int, event_timestamp_ms: int, publisher_epoch: int
    ) -> SegmentMetadata:
        """The event that its copy starts."""

    def finished(
        self, *, broker_id: int, event_timestamp_ms: int, publisher_epoch: int
    ) -> SegmentUpdate:
        """The event that its copy finished."""


class RemoteStorage(Protocol):
    """Stores segments. Every attempt to copy uses a new segment id."""

    async def copy(self, segment: PreparedSegment) -> None:
        """Store a segment under its id.

        `OutcomeUnknown`: it may be stored, now or later; `Unavailable`, `Refused`: it is not. In
        each case the next attempt uses another id, and this one is deleted. `AlreadyExists`: the id
        was used before.
        """

    def fetch(self, segment: SegmentMetadata, first_lsn: int, end_lsn: int) -> AsyncIterator[Group]:
        """The groups of [first_lsn, end_lsn) in a segment, in order and without gaps.

        Nothing if it has none of these LSNs. Uses memory for a few row groups.
        """

    async def fetch_index(self, segment: SegmentMetadata) -> SegmentIndex:
        """The index of a segment: positions, terms, schemas, lost LSNs."""

    async def delete(self, segment_id: SegmentId) -> None:
        """Delete a segment, if it exists."""


CLOCK: Final = "clock"
"""Written to read the clock that gives objects their times."""
_NAME: Final = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.parquet")


def segment_key(segment_id: SegmentId) -> str:
    """The key of a segment's object."""
    return f"{_prefix(segment_id.partition)}/{segment_id.id}.parquet"


class ObjectStorage:
    """`RemoteStorage` in a store."""

    def __init__(self, store: Store, cache: ObjectCache | None = None) -> None:
        """`cache` keeps parts that were read."""
        self._store = store
        self._cache = cache

    async def copy(self, segment: PreparedSegment) -> None:
        """See `RemoteStorage`."""
        identity = segment.segment_id
        # No other object has the id in the seal: it settles a lost response.
        await self._store.put_if_absent(
            segment_key(identity), segment.data, token=identity.id.bytes
        )

    async def fetch(
        self, segment: SegmentMetadata, first_lsn: int, end_lsn: int
    ) -> AsyncGenerator[Group, None]:
        """See `RemoteStorage`."""
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
        """See `RemoteStorage`."""
        _, index = await self._open(segment)
        return index

    async def delete(self, segment_id: SegmentId) -> None:
        """See `RemoteStorage`."""
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
        folder = f"{_prefix(partition)}/"
        async for meta in self._store.list(_prefix(partition)):
            name = meta.key.removeprefix(folder)
            match = _NAME.fullmatch(name)
            if match is not None:
                yield SegmentId(partition, uuid.UUID(match[1])), meta
            elif name != CLOCK:
                yield None, meta

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
