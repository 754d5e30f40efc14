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
from headwater.tier.segments.footer import UNKNOWN_XXH3, Receipt, SegmentIndex, receipt_of
from headwater.tier.segments.reading import (
    ObjectCache,
    ObjectRanges,
    RowGroupSplitter,
    decode_row_group,
    lost_groups,
    open_index,
    row_group_bytes,
)


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


CLOCK: Final = "clock"
"""Written to learn the time by the clock that the objects' times come from."""
_NAME: Final = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.parquet")


def segment_key(segment_id: SegmentId) -> str:
    """Where the object of a segment stands."""
    return f"{_prefix(segment_id.partition)}/{segment_id.id}.parquet"


class ObjectStorage:
    """`RemoteStorage` in a store."""

    def __init__(self, store: Store, cache: ObjectCache | None = None) -> None:
        """`cache` keeps what was read, for whoever reads it again."""
        self._store = store
        self._cache = cache

    async def copy(self, segment: PreparedSegment) -> None:
        """See `RemoteStorage`."""
        identity = segment.segment_id
        # The id in the seal is nobody else's: an answer that was lost is settled by looking.
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
        """Read all of a segment, compare every byte with what was said of it, and decode the rows.

        Bytes that are what was written may still be records that nobody can read.
        """
        key = segment_key(segment.segment_id)
        receipt = receipt_of(segment)
        # Not from the cache: what is asked is whether it is there.
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
            raise Corrupt(f"{key} is not what was written: the checksum of its body is another")
        said = UNKNOWN_XXH3 if receipt is None else receipt.xxh3
        if said not in (UNKNOWN_XXH3, whole.digest()):
            raise Corrupt(f"{key} is not what its events say: its checksum is another")
        return index

    async def list(
        self, partition: TopicIdPartition
    ) -> AsyncIterator[tuple[SegmentId | None, ObjectMeta]]:
        """The objects of a partition with the segments that they are of, whatever the events say.

        None: one of no segment, by its name or for the folder that it stands in.
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
            # Perhaps only what arrived was damaged: the next one who asks looks at the object.
            if self._cache is not None:
                self._cache.forget(self._place(segment_key(index.description.identity)))
            raise

    def _place(self, key: str) -> tuple[str, str]:
        """How what is kept of an object begins."""
        return self._store.url, key

    async def _open(self, segment: SegmentMetadata) -> tuple[ObjectRanges, SegmentIndex]:
        receipt, key = receipt_of(segment), segment_key(segment.segment_id)

        async def load() -> tuple[ObjectRanges, SegmentIndex]:
            return await open_index(self._store, key, receipt, self._cache)

        if self._cache is None:
            ranges, index = await load()
        else:
            ranges, index = await self._cache.get(self._place(key), load, _size_of)
        _check_identity(segment, index, receipt)
        return ranges, index


def _size_of(opened: tuple[ObjectRanges, SegmentIndex]) -> int:
    """Parsed, a footer takes a few times what it has in bytes."""
    ranges, index = opened
    return ranges.held_bytes + 4 * len(index.seal.footer)


def _prefix(partition: TopicIdPartition) -> str:
    name = check_stream_name(partition.name)
    return segments_prefix(name, partition.partition, str(partition.topic_id))


def _check_identity(segment: SegmentMetadata, index: SegmentIndex, receipt: Receipt | None) -> None:
    said = index.description
    if said.identity != segment.segment_id:
        raise Corrupt(f"the object of {segment.segment_id} holds {said.identity}")
    if (said.first_lsn, said.last_lsn) != (segment.start_offset, segment.end_offset):
        raise Corrupt(
            f"{segment.segment_id} holds LSNs {said.first_lsn} to {said.last_lsn}, and its events "
            f"say {segment.start_offset} to {segment.end_offset}"
        )
    if receipt is not None and said.rows != receipt.rows:
        raise Corrupt(
            f"{segment.segment_id} holds {said.rows} records, and its events say {receipt.rows}"
        )
