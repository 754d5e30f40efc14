"""Reads parts of a segment's object, few requests at a time and one ahead."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence

from headwater.core import limits, runtime
from headwater.core.errors import Corrupt
from headwater.store import ByteRange, Store
from headwater.store.objects import Buffer
from headwater.tier.segments.description import RowGroup
from headwater.tier.segments.index import SegmentIndex, read_index
from headwater.tier.segments.object_cache import ObjectCache
from headwater.tier.segments.receipt import Receipt
from headwater.tier.segments.seal import SEAL_BYTES, footer_bytes


class ObjectRanges:
    """An object, of which the end is at hand."""

    def __init__(
        self, store: Store, key: str, size_bytes: int, end: memoryview, cache: ObjectCache | None
    ) -> None:
        self.key = key
        self.size_bytes = size_bytes
        self._store = store
        self._end = end
        self._cache = cache

    @property
    def held_bytes(self) -> int:
        """How much of it is at hand."""
        return len(self._end)

    async def read(self, start: int, end: int) -> memoryview:
        """The bytes [start, end)."""
        held_from = self.size_bytes - len(self._end)
        if start >= held_from:
            return self._end[start - held_from : end - held_from]
        if self._cache is None:
            return await self._get(start, end)
        place = (self._store.url, self.key, start, end)
        return await self._cache.get(place, lambda: self._get(start, end), len)

    async def _get(self, start: int, end: int) -> memoryview:
        found = await self._store.get(self.key, ByteRange(start, end))
        if found.meta.size_bytes != self.size_bytes:
            raise Corrupt(f"{self.key} has {found.meta.size_bytes} bytes, not {self.size_bytes}")
        return memoryview(found.data)


class RowGroupParts:
    """Cuts an object that comes in chunks into the bytes of its row groups."""

    def __init__(self, row_groups: Sequence[RowGroup]) -> None:
        self._left = deque(enumerate(row_groups))
        self._held = bytearray()
        self._at = 0

    def take(self, chunk: Buffer) -> Iterator[tuple[int, memoryview]]:
        """The row groups that end in the next chunk, each with its number."""
        begin, view = self._at, memoryview(chunk)
        self._at += len(view)
        while self._left:
            number, group = self._left[0]
            end = group.offset + group.size_bytes
            self._held += view[max(0, group.offset - begin) : max(0, end - begin)]
            if self._at < end:
                return
            self._left.popleft()
            whole, self._held = memoryview(self._held), bytearray()
            yield number, whole


async def open_index(
    store: Store, key: str, receipt: Receipt | None, cache: ObjectCache | None = None
) -> tuple[ObjectRanges, SegmentIndex]:
    """Read the end of a segment's object, and with it all of a small one."""
    wanted = limits.TIER_FOOTER_GUESS_BYTES
    if receipt is not None:
        small = receipt.size_bytes <= limits.TIER_WHOLE_BYTES
        wanted = receipt.size_bytes if small else receipt.footer_bytes + SEAL_BYTES
    found = await store.get(key, ByteRange(-wanted))
    size_bytes, end = found.meta.size_bytes, memoryview(found.data)
    if receipt is not None and size_bytes != receipt.size_bytes:
        raise Corrupt(f"{key} has {size_bytes} bytes, and its events say {receipt.size_bytes}")
    try:
        needed = min(footer_bytes(end) + SEAL_BYTES, size_bytes)
        if needed > len(end):
            end = memoryview((await store.get(key, ByteRange(-needed))).data)
        index = await runtime.run_blocking(read_index, end, size_bytes)
    except Corrupt as error:
        raise Corrupt(f"{key}: {error}") from error
    return ObjectRanges(store, key, size_bytes, end, cache), index


async def row_group_bytes(
    ranges: ObjectRanges, index: SegmentIndex, numbers: Sequence[int]
) -> AsyncGenerator[tuple[int, memoryview], None]:
    """The bytes of these row groups in order, the next request under way meanwhile."""
    batches = index.side_by_side(numbers)
    if not batches:
        return
    following = runtime.spawn(_read(ranges, index, batches[0]), name=f"fetch {ranges.key}")
    try:
        for batch, later in itertools.zip_longest(batches, batches[1:]):
            data = await following
            if later is not None:
                following = runtime.spawn(_read(ranges, index, later), name=f"fetch {ranges.key}")
            begin = index.description.row_groups[batch[0]].offset
            for number in batch:
                group = index.description.row_groups[number]
                start = group.offset - begin
                yield number, data[start : start + group.size_bytes]
    finally:
        if not following.done():
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def _read(ranges: ObjectRanges, index: SegmentIndex, batch: Sequence[int]) -> memoryview:
    groups = index.description.row_groups
    last = groups[batch[-1]]
    return await ranges.read(groups[batch[0]].offset, last.offset + last.size_bytes)
