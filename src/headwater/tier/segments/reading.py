"""Reads segments: parts of objects, through a cache, and row groups decoded to groups of the log.

Segment objects never change, so nothing in the cache is ever stale. Concurrent requests for the
same part share one request to the store. Decoding is CPU-bound: run it on a thread.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from headwater.core import limits, runtime
from headwater.core.errors import Corrupt, Refused
from headwater.core.in_order import in_order
from headwater.log.record.group import NO_RECORDS, Group
from headwater.store import ByteRange, Store
from headwater.store.objects import Buffer
from headwater.tier.segments.columns import LSN, restore_records
from headwater.tier.segments.footer import RowGroup, SegmentIndex, SegmentRun, read_index
from headwater.tier.segments.seal import SEAL_BYTES, Receipt, footer_bytes

T = TypeVar("T")
FETCHES_AT_ONCE: Final = 2
"""The next row groups are fetched while one is used."""
CacheKey: TypeAlias = tuple[str | int, ...]
"""The object, then the part of it."""


class ObjectCache:
    """An LRU cache for parts of objects."""

    def __init__(self, max_bytes: int = limits.TIER_CACHE_BYTES) -> None:
        if max_bytes < 0:
            raise Refused(f"max_bytes is {max_bytes}: it must be 0 or more")
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.hits = 0
        self.misses = 0
        self._held: OrderedDict[CacheKey, tuple[Any, int]] = OrderedDict()
        self._loading: dict[CacheKey, asyncio.Task[Any]] = {}

    async def get(
        self, key: CacheKey, load: Callable[[], Awaitable[T]], size_of: Callable[[T], int]
    ) -> T:
        """The cached value, or the result of `load`. Errors are not cached."""
        if key in self._held:
            self.hits += 1
            self._held.move_to_end(key)
            cached: T = self._held[key][0]
            return cached
        task = self._loading.get(key)
        if task is None:
            self.misses += 1
            task = runtime.spawn(self._load(key, load, size_of), name=f"load {key}")
            # If all callers were cancelled, none of them retrieves its error.
            task.add_done_callback(runtime.retrieve_error)
            self._loading[key] = task
        else:
            self.hits += 1
        # A cancelled caller must not cancel it for the others.
        loaded: T = await asyncio.shield(task)
        return loaded

    def forget(self, beginning: CacheKey) -> None:
        for key in [key for key in self._held if key[: len(beginning)] == beginning]:
            _, freed_bytes = self._held.pop(key)
            self.held_bytes -= freed_bytes

    async def _load(
        self, key: CacheKey, load: Callable[[], Awaitable[T]], size_of: Callable[[T], int]
    ) -> T:
        try:
            loaded = await load()
        finally:
            del self._loading[key]
        size_bytes = size_of(loaded)
        if size_bytes <= self.max_bytes:
            self._held[key] = (loaded, size_bytes)
            self.held_bytes += size_bytes
            while self.held_bytes > self.max_bytes:
                _, (_, freed_bytes) = self._held.popitem(last=False)
                self.held_bytes -= freed_bytes
        return loaded


class ObjectRanges:
    """Reads ranges of an object whose end is in memory."""

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
        return len(self._end)

    async def read(self, start: int, end: int) -> memoryview:
        held_from = self.size_bytes - len(self._end)
        if start >= held_from:
            return self._end[start - held_from : end - held_from]
        if self._cache is None:
            return await self._get(start, end)
        key = (self._store.url, self.key, start, end)
        return await self._cache.get(key, lambda: self._get(start, end), len)

    async def _get(self, start: int, end: int) -> memoryview:
        part = await self._store.get(self.key, ByteRange(start, end))
        if part.meta.size_bytes != self.size_bytes:
            raise Corrupt(f"{self.key} has {part.meta.size_bytes} bytes, not {self.size_bytes}")
        return memoryview(part.data)


class RowGroupSplitter:
    """Splits an object that is read in chunks into the bytes of its row groups."""

    def __init__(self, row_groups: Sequence[RowGroup]) -> None:
        self._left = deque(enumerate(row_groups))
        self._held = bytearray()
        self._at = 0

    def take(self, chunk: Buffer) -> Iterator[tuple[int, memoryview]]:
        """The row groups that end in the next chunk, each with its index."""
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
    """Read the end of a segment's object, or all of a small one."""
    wanted = limits.TIER_FOOTER_GUESS_BYTES
    if receipt is not None:
        small = receipt.size_bytes <= limits.TIER_WHOLE_BYTES
        wanted = receipt.size_bytes if small else receipt.footer_bytes + SEAL_BYTES
    part = await store.get(key, ByteRange(-wanted))
    size_bytes, end = part.meta.size_bytes, memoryview(part.data)
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
    """The bytes of these row groups in order; the next request runs meanwhile."""
    groups = index.description.row_groups

    async def fetch(batch: Sequence[int]) -> tuple[Sequence[int], memoryview]:
        end = groups[batch[-1]].offset + groups[batch[-1]].size_bytes
        return batch, await ranges.read(groups[batch[0]].offset, end)

    batches = index.batches(numbers)
    fetched = in_order(batches, fetch, parallel=FETCHES_AT_ONCE, name=f"fetch {ranges.key}")
    async with aclosing(fetched) as parts:
        async for batch, data in parts:
            for number in batch:
                start = groups[number].offset - groups[batch[0]].offset
                yield number, data[start : start + groups[number].size_bytes]


def decode_row_group(
    index: SegmentIndex, number: int, data: memoryview, first_lsn: int, end_lsn: int
) -> list[Group]:
    """The groups of [first_lsn, end_lsn) that one row group holds, from its bytes."""
    stored = index.description.row_groups[number]
    if len(data) != stored.size_bytes or xxhash.xxh3_64_hexdigest(data) != stored.xxh3:
        raise Corrupt(
            f"row group {number} of {index.description.identity}, LSNs {stored.first_lsn} to "
            f"{stored.last_lsn} at offset {stored.offset}, was changed: its checksum is "
            "different"
        )
    rows = _rows(index, number, stored, data)
    begins = index.first_row(number)
    first, end = max(first_lsn, stored.first_lsn), min(end_lsn, stored.last_lsn + 1)
    return [
        _group(index, run, rows, run_row - begins, range(first, end))
        for run, run_row in index.runs(first, end)
        if run.schema is not None
    ]


def lost_groups(index: SegmentIndex, first_lsn: int, end_lsn: int) -> Iterator[Group]:
    for run, _ in index.runs(first_lsn, end_lsn):
        if run.schema is None:
            whole = Group(run.term, run.first_lsn, run.last_lsn, NO_RECORDS, lost=run.lost or "")
            part = whole.between(first_lsn, end_lsn - 1)
            if part is not None:
                yield part


def _group(
    index: SegmentIndex, run: SegmentRun, rows: pa.RecordBatch, run_row: int, lsns: range
) -> Group:
    """The part of a run in these LSNs; the run starts at row `run_row` of `rows`."""
    first, last = max(run.first_lsn, lsns.start), min(run.last_lsn, lsns.stop - 1)
    part = rows.slice(run_row + first - run.first_lsn, last - first + 1)
    if _ends(part) != (first, last) or part.num_rows != last - first + 1:
        raise Corrupt(f"{index.description.identity} has no records of LSNs {first} to {last}")
    schema = index.schemas[run.schema or 0]
    return Group(run.term, first, last, restore_records(part, schema))


def _rows(index: SegmentIndex, number: int, stored: RowGroup, data: memoryview) -> pa.RecordBatch:
    window = pa.PythonFile(_Window(data, stored.offset, index.size_bytes), mode="r")
    try:
        file = pq.ParquetFile(window, metadata=index.parquet, pre_buffer=False)
        table = file.read_row_group(number).combine_chunks()
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"row group {number} cannot be read: {error}") from error
    [rows] = table.to_batches()
    if _ends(rows) != (stored.first_lsn, stored.last_lsn):
        raise Corrupt(f"row group {number} has other LSNs than the description")
    return rows


def _ends(rows: pa.RecordBatch) -> tuple[int, int] | None:
    """The first and last LSN of rows; None if there are none."""
    lsns = rows.column(LSN)
    return (lsns[0].as_py(), lsns[-1].as_py()) if len(lsns) else None


class _Window:
    """A file object with only the bytes of a row group: Parquet reads nothing else for it."""

    closed = False

    def __init__(self, data: memoryview, offset: int, size_bytes: int) -> None:
        self._data = pa.py_buffer(data)
        self._offset = offset
        self._size_bytes = size_bytes
        self._at = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size_bytes)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read_buffer(self, size: int) -> pa.Buffer:
        begin = self._at - self._offset
        if begin < 0 or begin + size > len(self._data):
            raise OSError(f"bytes {self._at} to {self._at + size} are not in the row group")
        self._at += size
        return self._data.slice(begin, size)

    def read(self, size: int = -1) -> bytes:
        return bytes(self.read_buffer(size).to_pybytes())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
