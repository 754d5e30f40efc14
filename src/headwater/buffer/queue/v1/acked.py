"""The segments of acknowledged entries that are retained: objects, found by their last sequence.

A segment has the sequences, locations and rows of its entries. These are facts of the queue, so a
segment of a crashed or fenced consumer does no harm, may overlap others, and need not be removed,
unless a batch was given up since. Then it is removed; if it lands later still, segments that were
written since have a higher rank (`cover`). Which entries are acknowledged, only the side object
says.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import struct
import zlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from typing import Final, NamedTuple

from headwater.buffer.queue.contract import Descriptor
from headwater.buffer.queue.v1.manifest_format import (
    Manifest,
    ManifestEntry,
    decode_manifest,
    encode_manifest,
    items_of,
)
from headwater.buffer.queue.v1.manifest_object import RANKS, SegmentName, StoredManifest, V1Names
from headwater.core import limits, runtime
from headwater.core.errors import (
    AlreadyExists,
    Corrupt,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    staying_unknown,
)
from headwater.store import ByteRange, Store


class NumberedEntry(NamedTuple):
    """What was counted for an entry."""

    first_lsn: int
    rows: int
    size_bytes: int
    min_ms: int
    max_ms: int
    duplicate: bool = False


def entry_descriptor(names: V1Names, entry: ManifestEntry, counted: NumberedEntry) -> Descriptor:
    """The descriptor of a counted entry."""
    last = entry.metadata[-1].payload if len(entry.metadata) else b""
    return Descriptor(
        sequence=entry.sequence,
        location=entry.location,
        first_lsn=counted.first_lsn,
        rows=counted.rows,
        size_bytes=counted.size_bytes,
        min_ms=counted.min_ms,
        max_ms=counted.max_ms,
        batch_id=names.batch_id(entry.location),
        metadata=last or None,
        format="v1",
        calls=bytes(items_of(entry)),
        duplicate=counted.duplicate,
    )


_CACHED: Final = 4
_OUTRANKS: Final = 0xFFFF_FFFF
"""More than any consumer discards under one epoch."""


class AckedSegments:
    """The segments of one queue."""

    def __init__(self, store: Store, names: V1Names) -> None:
        self._store = store
        self._names = names
        self._cache: OrderedDict[str, AckedSegment] = OrderedDict()
        self._writer = ""
        """Part of the names of written segments: unique, and a new one after each discard."""
        self._discards = 0

    async def write(
        self, stored: StoredManifest, start: int, counted: Sequence[NumberedEntry], newest_ms: int
    ) -> int:
        """Write segments of the counted entries from `start` on. Returns the newest time of all."""
        self._writer = self._writer or runtime.new_token().hex()
        for part in _parts(stored, range(start, start + len(counted))):
            numbered = counted[part.start - start : part.stop - start]
            newest_ms = max([newest_ms, *(one.max_ms for one in numbered if one.rows)])
            token = runtime.new_token()
            entries = stored.manifest.entries[part.start - stored.front : part.stop - stored.front]
            data = encode_segment(token, entries, numbered, newest_ms)
            key = self._names.segment(part, stored.epoch, self._discards, self._writer)
            await self._put(key, data, token)
        return newest_ms

    async def write_taken(
        self, taken: range, epoch: int, newest_ms: int, lsn: int, location: str
    ) -> None:
        """Write segments without records for entries that another implementation took.

        `lsn` is the LSN of the first record after them. Outranks segments that a consumer of
        Headwater wrote and did not acknowledge.
        """
        writer = runtime.new_token().hex()
        time_ms = max(newest_ms, 0)
        for start in range(taken.start, taken.stop, limits.V1_SEGMENT_ENTRIES):
            part = range(start, min(start + limits.V1_SEGMENT_ENTRIES, taken.stop))
            entries = [ManifestEntry(sequence, location, ()) for sequence in part]
            counted = NumberedEntry(lsn, 0, 0, time_ms, time_ms, duplicate=True)
            token = runtime.new_token()
            data = encode_segment(token, entries, [counted] * len(part), newest_ms)
            await self._put(self._names.segment(part, epoch, _OUTRANKS, writer), data, token)

    async def read(self, sequences: range) -> list[Descriptor]:
        """The descriptors of these acknowledged entries, up to the first gap."""
        wanted: list[Descriptor] = []
        ranges = await self._cover(sequences)
        for first in range(0, len(ranges), limits.V1_SEGMENTS_AT_ONCE):
            group = ranges[first : first + limits.V1_SEGMENTS_AT_ONCE]
            segments = await asyncio.gather(*(self._get(one.key) for one in group))
            for (_, covered), segment in zip(group, segments, strict=True):
                if segment is None or covered.start > sequences.start + len(wanted):
                    return wanted
                skipped = covered.start - segment.header.first_sequence
                if skipped < 0:
                    return wanted
                wanted += segment.descriptors[skipped : skipped + len(covered)]
        return wanted

    async def each(self, sequences: range) -> AsyncGenerator[list[Descriptor], None]:
        """The descriptors of these entries, segment by segment, skipping gaps."""
        start = sequences.start
        while start < sequences.stop:
            stop = min(start + limits.V1_SEGMENT_ENTRIES, sequences.stop)
            ranges = await self._cover(range(start, stop))
            for key, covered in ranges:
                segment = await self._get(key)
                if segment is not None:  # another collector was faster
                    yield [one for one in segment.descriptors if one.sequence in covered]
            # A gap may have any length.
            start = stop if ranges else await self._next_from(stop, sequences.stop)

    async def _next_from(self, sequence: int, end: int) -> int:
        """The start of the next segment with this sequence or a later one; `end` if none."""
        async with contextlib.aclosing(self._list(sequence)) as names:
            async for name in names:
                return max(sequence, name.first)
        return end

    async def keys_before(self, sequence: int) -> AsyncIterator[str]:
        """The keys of segments whose entries all precede this one."""
        async with contextlib.aclosing(self._list(0)) as names:
            async for name in names:
                if name.last >= sequence:
                    return
                yield name.key

    async def search(
        self,
        sequences: range,
        reached: Callable[[SegmentHeader], bool],
        holds: Callable[[Descriptor], bool],
    ) -> int | None:
        """The first of these entries for which `holds` is true.

        `reached` must be monotonic: false for the segments before the entry, then true. So binary
        search finds where to begin.
        """
        key = await self._first(sequences, reached)
        segment = None if key is None else await self._get(key)
        if segment is None:
            return None
        start = max(sequences.start, segment.header.first_sequence)
        async with contextlib.aclosing(self.each(range(start, sequences.stop))) as segments:
            async for batches in segments:
                for batch in batches:
                    if holds(batch):
                        return batch.sequence
        return None

    async def _first(
        self, sequences: range, reached: Callable[[SegmentHeader], bool]
    ) -> str | None:
        low, high = sequences.start, sequences.stop
        best: str | None = None
        while low < high:
            middle = (low + high) // 2
            ranges = await self._cover(range(middle, middle + limits.V1_SEGMENT_ENTRIES))
            if not ranges:
                return None
            key = ranges[0].key
            try:
                stored = await self._store.get(key, ByteRange(0, HEADER_BYTES))
            except NotFound:
                return None
            header = read_header(key, stored.data)
            if reached(header):
                # At or before the middle, so that the search range always shrinks.
                best, high = key, min(header.first_sequence, middle)
            else:
                low = header.next_sequence
        return best

    async def discard_from(self, sequence: int) -> None:
        """Delete segments that a crashed consumer wrote and did not acknowledge.

        A store may execute a delete again after it was answered, so deleted keys are never reused.
        """
        self._writer = ""
        self._discards += 1
        async for name in self._list(sequence):
            await self.delete(name.key)

    async def delete(self, key: str) -> None:
        """Delete a segment whose batches are gone."""
        self._cache.pop(key, None)
        await self._store.delete(key)

    async def _put(self, key: str, data: bytes, token: bytes) -> None:
        try:
            await self._store.put_if_absent(key, data, token=token)
        except AlreadyExists:
            return  # of an earlier attempt
        except OutcomeUnknown as unknown:
            with staying_unknown(unknown):
                stored = await self._get(key)
            if stored is None:
                raise

    async def _cover(self, sequences: range) -> list[SegmentRange]:
        if not sequences:
            return []
        segments: list[SegmentName] = []
        async with contextlib.aclosing(self._list(sequences.start)) as names:
            async for name in names:
                if name.last >= sequences.stop + limits.V1_SEGMENT_ENTRIES:
                    break  # too long for a segment to reach back to these
                segments.append(name)
        return cover(segments, sequences)

    async def _list(self, sequence: int) -> AsyncGenerator[SegmentName, None]:
        """The segments that end at this sequence or later, ordered by their ends."""
        after = self._names.segments_through(sequence - 1) if sequence else ""
        async for meta in self._store.list(self._names.acked, start_after=after):
            name = self._names.segment_name(meta.key)
            if name is not None:
                yield name

    async def _get(self, key: str) -> AckedSegment | None:
        cached = self._cache.get(key)
        if cached is not None:
            self._cache.move_to_end(key)
            return cached
        try:
            stored = await self._store.get(key)
        except NotFound:
            return None
        segment = decode_segment(self._names, key, stored.data)
        self._cache[key] = segment
        while len(self._cache) > _CACHED:
            self._cache.popitem(last=False)
        return segment


def _parts(stored: StoredManifest, sequences: range) -> Sequence[range]:
    parts, start, size_bytes = [], sequences.start, 0
    for sequence in sequences:
        # Locations and frames are small beside the items, and bounded.
        entry = stored.entry(sequence)
        added = len(entry.location) + len(items_of(entry))
        full = sequence - start >= limits.V1_SEGMENT_ENTRIES
        if sequence > start and (full or size_bytes + added > limits.V1_SEGMENT_BYTES):
            parts.append(range(start, sequence))
            start, size_bytes = sequence, 0
        size_bytes += added
    return [*parts, range(start, sequences.stop)]


# The bytes of a segment:
#
#     "HWA1" | u32 crc | token 16 | u64 first sequence | u64 first LSN | u64 next LSN
#            | i64 newest ms | u32 entries | row* | manifest
#
#     row = u32 rows | u64 size bytes | i64 min ms | i64 max ms | u8 duplicate
#
# `manifest` is a published v1 manifest of the entries. `newest ms` is the latest ingestion time of
# all records up to the end of this segment, including earlier segments: it never falls from one
# segment to the next, which allows binary search. The checksum (CRC-32) covers everything after it.

MAGIC: Final = b"HWA1"
_SEAL: Final = struct.Struct("<4sI")
_HEAD: Final = struct.Struct("<16sQQQqI")
_ROW: Final = struct.Struct("<IQqqB")
HEADER_BYTES: Final = _SEAL.size + _HEAD.size


class SegmentHeader(NamedTuple):
    """The header of a segment."""

    token: bytes
    first_sequence: int
    first_lsn: int
    next_lsn: int
    newest_ms: int
    entries: int

    @property
    def next_sequence(self) -> int:
        return self.first_sequence + self.entries


class AckedSegment(NamedTuple):
    """A decoded segment."""

    header: SegmentHeader
    descriptors: list[Descriptor]


def encode_segment(
    token: bytes, entries: Sequence[ManifestEntry], counted: Sequence[NumberedEntry], newest_ms: int
) -> bytes:
    """The bytes of a segment of one or more adjacent entries."""
    first, last = entries[0].sequence, entries[-1].sequence
    next_lsn = counted[-1].first_lsn + counted[-1].rows
    head = _HEAD.pack(token, first, counted[0].first_lsn, next_lsn, newest_ms, len(entries))
    rows = b"".join(
        _ROW.pack(one.rows, one.size_bytes, one.min_ms, one.max_ms, one.duplicate)
        for one in counted
    )
    body = b"".join((head, rows, encode_manifest(Manifest(entries, last + 1))))
    return _SEAL.pack(MAGIC, zlib.crc32(body)) + body


def read_header(key: str, data: bytes | memoryview) -> SegmentHeader:
    """The header from the first HEADER_BYTES of a segment, without verifying the checksum."""
    if len(data) < HEADER_BYTES:
        raise Corrupt(f"{key}: {len(data)} bytes, shorter than the header of a segment")
    magic, _ = _SEAL.unpack_from(data)
    if magic != MAGIC:
        if magic[:3] == MAGIC[:3]:
            raise NotSupported(f"{key} is a segment of format {magic!r}. Upgrade Headwater.")
        raise Corrupt(f"{key} is not a segment of acknowledged entries: it begins with {magic!r}")
    return SegmentHeader._make(_HEAD.unpack_from(data, _SEAL.size))


def decode_segment(names: V1Names, key: str, data: bytes | memoryview) -> AckedSegment:
    """Decode and verify a segment from untrusted bytes."""
    header = read_header(key, data)
    _, crc = _SEAL.unpack_from(data)
    if zlib.crc32(data[_SEAL.size :]) != crc:
        raise Corrupt(f"{key}: the checksum does not match")
    end = HEADER_BYTES + header.entries * _ROW.size
    try:
        manifest = decode_manifest(data[end:])
    except Corrupt as error:
        raise Corrupt(f"{key}: {error}") from error
    if len(manifest.entries) != header.entries:
        raise Corrupt(f"{key}: {len(manifest.entries)} entries, not {header.entries}")
    lsn, descriptors = header.first_lsn, []
    rows = _ROW.iter_unpack(data[HEADER_BYTES:end])
    for entry, (count, size_bytes, min_ms, max_ms, duplicate) in zip(
        manifest.entries, rows, strict=True
    ):
        counted = NumberedEntry(lsn, count, size_bytes, min_ms, max_ms, bool(duplicate))
        descriptors.append(entry_descriptor(names, entry, counted))
        lsn += count
    return AckedSegment(header, descriptors)


class SegmentRange(NamedTuple):
    """The entries for which one segment is used."""

    key: str
    sequences: range


def cover(segments: Iterable[SegmentName], sequences: range) -> list[SegmentRange]:
    """The segment to use for each of these sequences, in order; gaps are left out.

    Of several segments, the one with the highest rank counts: that of the consumer that opened
    last. The consumer that acknowledges an entry writes it into a segment, and no later consumer
    writes it, so of all that wrote the entry it opened last. A segment of a fenced consumer, which
    may land late, may count a batch that was given up since.
    """
    waiting = sorted(_unwrapped(list(segments)), key=lambda one: one.first)
    taken, at = 0, sequences.start
    at_hand: list[tuple[int, int, str]] = []
    ranges: list[SegmentRange] = []
    while at < sequences.stop:
        while taken < len(waiting) and waiting[taken].first <= at:
            one = waiting[taken]
            heapq.heappush(at_hand, (-one.rank, one.last, one.key))
            taken += 1
        while at_hand and at_hand[0][1] < at:
            heapq.heappop(at_hand)
        if at_hand:
            _, last, key = at_hand[0]
            end = min(last + 1, sequences.stop)
            if taken < len(waiting):
                end = min(end, waiting[taken].first)  # it may be of a higher rank
            start = ranges.pop().sequences.start if ranges and ranges[-1].key == key else at
            ranges.append(SegmentRange(key, range(start, end)))
            at = end
        elif taken < len(waiting):
            at = waiting[taken].first
        else:
            break
    return ranges


def _unwrapped(segments: list[SegmentName]) -> list[SegmentName]:
    """The segments with monotonic ranks, if the epoch wrapped between two of them.

    The compared segments differ by much less than a quarter of all epochs.
    """
    part = RANKS // 4
    if not any(one.rank >= RANKS - part for one in segments):
        return segments
    return [one._replace(rank=one.rank + RANKS) if one.rank < part else one for one in segments]
