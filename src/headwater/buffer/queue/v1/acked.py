"""What was acknowledged and is still there: segments in a folder, found by their last sequence.

A segment says what its entries were, and that is true whoever wrote it: sequences, locations and
rows are facts of the queue. So a segment that a crashed or fenced consumer left is no harm, may
overlap others, and need not be removed, unless a batch was given up since. Then it is removed; one
that arrives later still is outranked by what was written since, as `cover` says. What counts as
acknowledged the side object alone says.
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
from headwater.buffer.queue.v1.ledger import Ledger, NumberedEntry, entry_descriptor
from headwater.buffer.queue.v1.manifest_format import (
    Manifest,
    ManifestEntry,
    decode_manifest,
    encode_manifest,
    items_of,
)
from headwater.buffer.queue.v1.manifest_object import StoredManifest
from headwater.buffer.queue.v1.side_object import RANKS, SegmentName, SideState, V1Names
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
        """In the names of what is written here: nobody else's, and no other's after a discard."""
        self._discards = 0

    async def write(
        self, found: StoredManifest, ledger: Ledger, sequences: range, newest_ms: int
    ) -> int:
        """Keep what these pending, counted entries were. Returns the newest time among all."""
        self._writer = self._writer or runtime.new_token().hex()
        for part in _parts(found, sequences):
            counted = [ledger[sequence] for sequence in part]
            newest_ms = max([newest_ms, *(one.max_ms for one in counted if one.rows)])
            token = runtime.new_token()
            entries = found.manifest.entries[part.start - found.front : part.stop - found.front]
            data = encode_segment(token, entries, counted, newest_ms)
            key = self._names.segment(part, found.epoch, self._discards, self._writer)
            await self._put(key, data, token)
        return newest_ms

    async def write_taken(
        self, taken: range, epoch: int, side: SideState, lsn: int, location: str
    ) -> None:
        """Keep of these entries that somebody else took them, and that they have no records here.

        `lsn` is that of the first record after them. Outranks what a consumer of ours wrote of them
        and did not acknowledge.
        """
        writer = runtime.new_token().hex()
        newest_ms = max(side.newest_ms, 0)
        for start in range(taken.start, taken.stop, limits.V1_SEGMENT_ENTRIES):
            part = range(start, min(start + limits.V1_SEGMENT_ENTRIES, taken.stop))
            entries = [ManifestEntry(sequence, location, ()) for sequence in part]
            counted = NumberedEntry(lsn, 0, 0, newest_ms, newest_ms, duplicate=True)
            token = runtime.new_token()
            data = encode_segment(token, entries, [counted] * len(part), side.newest_ms)
            await self._put(self._names.segment(part, epoch, _OUTRANKS, writer), data, token)

    async def read(self, sequences: range) -> list[Descriptor]:
        """What these acknowledged entries were, as far as segments follow one on another."""
        wanted: list[Descriptor] = []
        stretches = await self._cover(sequences)
        for first in range(0, len(stretches), limits.V1_SEGMENTS_AT_ONCE):
            group = stretches[first : first + limits.V1_SEGMENTS_AT_ONCE]
            segments = await asyncio.gather(*(self._get(one.key) for one in group))
            for (_, held), segment in zip(group, segments, strict=True):
                if segment is None or held.start > sequences.start + len(wanted):
                    return wanted
                skipped = held.start - segment.header.first_sequence
                if skipped < 0:
                    return wanted
                wanted += segment.descriptors[skipped : skipped + len(held)]
        return wanted

    async def each(self, sequences: range) -> AsyncGenerator[list[Descriptor], None]:
        """What these entries were, segment by segment, each once, passing over what is gone."""
        start = sequences.start
        while start < sequences.stop:
            stop = min(start + limits.V1_SEGMENT_ENTRIES, sequences.stop)
            stretches = await self._cover(range(start, stop))
            for key, held in stretches:
                segment = await self._get(key)
                if segment is not None:  # another collector was faster
                    yield [one for one in segment.descriptors if one.sequence in held]
            # Of what was left out there may be any number: past it at once.
            start = stop if stretches else await self._next_from(stop, sequences.stop)

    async def _next_from(self, sequence: int, end: int) -> int:
        """Where the next segment begins that holds this sequence or a later one; `end` if none."""
        async with contextlib.aclosing(self._list(sequence)) as names:
            async for name in names:
                return max(sequence, name.first)
        return end

    async def keys_before(self, sequence: int) -> AsyncIterator[str]:
        """The keys of segments whose entries all stand before this one."""
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
        """The first of these for which `holds`.

        `reached` is false of the segments before it, and of no segment after one of which it is
        true: halving finds where to begin.
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
            key = await self._at(middle)
            if key is None:
                return None
            try:
                found = await self._store.get(key, ByteRange(0, HEADER_BYTES))
            except NotFound:
                return None
            header = read_header(key, found.data)
            if reached(header):
                # It begins at or before the middle, so that the search always gets shorter.
                best, high = key, min(header.first_sequence, middle)
            else:
                low = header.next_sequence
        return best

    async def discard_from(self, sequence: int) -> None:
        """Remove what a consumer that crashed wrote of entries it did not acknowledge.

        A delete may be carried out again after it was answered, so no key that is deleted is
        ever written again.
        """
        self._writer = ""
        self._discards += 1
        async for name in self._list(sequence):
            await self.delete(name.key)

    async def delete(self, key: str) -> None:
        """Remove a segment, whose batches are gone."""
        self._cache.pop(key, None)
        await self._store.delete(key)

    async def _put(self, key: str, data: bytes, token: bytes) -> None:
        try:
            await self._store.put_if_absent(key, data, token=token)
        except AlreadyExists:
            return  # of an earlier attempt
        except OutcomeUnknown as unknown:
            with staying_unknown(unknown):
                found = await self._get(key)
            if found is None:
                raise

    async def _cover(self, sequences: range) -> list[SegmentRange]:
        """Which segment tells of each of these."""
        if not sequences:
            return []
        found: list[SegmentName] = []
        async with contextlib.aclosing(self._list(sequences.start)) as names:
            async for name in names:
                if name.last >= sequences.stop + limits.V1_SEGMENT_ENTRIES:
                    break  # too long for a segment to reach back to these
                found.append(name)
        return cover(found, sequences)

    async def _at(self, sequence: int) -> str | None:
        """The segment that tells of this sequence; the next one if there is none."""
        for key, _ in await self._cover(range(sequence, sequence + limits.V1_SEGMENT_ENTRIES)):
            return key
        return None

    async def _list(self, sequence: int) -> AsyncGenerator[SegmentName, None]:
        """The segments that end with this sequence or later, by their ends."""
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
            found = await self._store.get(key)
        except NotFound:
            return None
        segment = decode_segment(self._names, key, found.data)
        self._cache[key] = segment
        while len(self._cache) > _CACHED:
            self._cache.popitem(last=False)
        return segment


def _parts(found: StoredManifest, sequences: range) -> Sequence[range]:
    """Runs of entries that fit into one segment each."""
    parts, start, size_bytes = [], sequences.start, 0
    for sequence in sequences:
        # The items make the size: location and frame are small and bounded beside them.
        entry = found.entry(sequence)
        added = len(entry.location) + len(items_of(entry))
        full = sequence - start >= limits.V1_SEGMENT_ENTRIES
        if sequence > start and (full or size_bytes + added > limits.V1_SEGMENT_BYTES):
            parts.append(range(start, sequence))
            start, size_bytes = sequence, 0
        size_bytes += added
    return [*parts, range(start, sequences.stop)]


# A segment: what some acknowledged entries were, written once, before they leave the manifest.
#
#     "HWA1" | u32 crc | token 16 | u64 first sequence | u64 first LSN | u64 next LSN
#            | i64 newest ms | u32 entries | row* | manifest
#
#     row = u32 rows | u64 size bytes | i64 min ms | i64 max ms | u8 duplicate
#
# `manifest` is a published v1 manifest of the entries. `newest ms` is the latest ingestion time
# of any record up to the end of this segment, those of earlier segments included: it never falls
# from one segment to the next, so a time can be searched for by halving. The checksum (CRC-32)
# covers everything after it.


MAGIC: Final = b"HWA1"
_SEAL: Final = struct.Struct("<4sI")
_HEAD: Final = struct.Struct("<16sQQQqI")
_ROW: Final = struct.Struct("<IQqqB")
HEADER_BYTES: Final = _SEAL.size + _HEAD.size


class SegmentHeader(NamedTuple):
    """What the beginning of a segment tells without the rest."""

    token: bytes
    first_sequence: int
    first_lsn: int
    next_lsn: int
    newest_ms: int
    entries: int

    @property
    def next_sequence(self) -> int:
        """The sequence after the last entry."""
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
    """The header from the first HEADER_BYTES of a segment. Its checksum is the whole segment's."""
    if len(data) < HEADER_BYTES:
        raise Corrupt(f"{key}: {len(data)} bytes, shorter than the header of a segment")
    magic, _ = _SEAL.unpack_from(data)
    if magic != MAGIC:
        if magic[:3] == MAGIC[:3]:
            raise NotSupported(f"{key} is a segment of format {magic!r}. Upgrade Headwater.")
        raise Corrupt(f"{key} is no segment of acknowledged entries: it begins with {magic!r}")
    return SegmentHeader._make(_HEAD.unpack_from(data, _SEAL.size))


def decode_segment(names: V1Names, key: str, data: bytes | memoryview) -> AckedSegment:
    """Read a segment, trusting nothing in it."""
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


# Which segment tells of each acknowledged entry, where several do.
#
# The one of the highest rank: of the consumer that opened last. Whoever acknowledged an entry
# wrote it into a segment, and after that nobody writes of it any more; so of all who ever did, it
# opened last. What a fenced one wrote before, or what arrives of it late, may have counted a
# batch that was given up since.
#
# Epochs wrap. Of segments that are compared, none is older by more than a small part of all
# epochs.


class SegmentRange(NamedTuple):
    """Entries that one segment tells of."""

    key: str
    sequences: range


def cover(segments: Iterable[SegmentName], sequences: range) -> list[SegmentRange]:
    """The segment for each of these sequences, in order; those that none holds are left out."""
    waiting = sorted(_unwrapped(list(segments)), key=lambda one: one.first)
    taken, at = 0, sequences.start
    at_hand: list[tuple[int, int, str]] = []
    found: list[SegmentRange] = []
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
            start = found.pop().sequences.start if found and found[-1].key == key else at
            found.append(SegmentRange(key, range(start, end)))
            at = end
        elif taken < len(waiting):
            at = waiting[taken].first
        else:
            break
    return found


def _unwrapped(segments: list[SegmentName]) -> list[SegmentName]:
    """The segments with ranks that rise also where the epoch wrapped between two of them."""
    part = RANKS // 4
    if not any(one.rank >= RANKS - part for one in segments):
        return segments
    return [
        one._replace(rank=one.rank + RANKS) if 0 <= one.rank < part else one for one in segments
    ]
