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
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Final

from headwater.buffer.queue.contract import Descriptor
from headwater.buffer.queue.v1.cover import Stretch, cover
from headwater.buffer.queue.v1.items import items_of
from headwater.buffer.queue.v1.ledger import Counted, Ledger
from headwater.buffer.queue.v1.manifest_object import Found
from headwater.buffer.queue.v1.names import Names, SegmentName
from headwater.buffer.queue.v1.segment import (
    HEADER_BYTES,
    Header,
    Segment,
    decode_segment,
    encode_segment,
    read_header,
)
from headwater.buffer.queue.v1.side import Side
from headwater.buffer.v1_manifest import Entry
from headwater.core import limits, runtime
from headwater.core.errors import AlreadyExists, NotFound, OutcomeUnknown, staying_unknown
from headwater.store import ByteRange, Store

_CACHED: Final = 4
_OUTRANKS: Final = 0xFFFF_FFFF
"""More than any consumer discards under one epoch."""


class Acked:
    """The segments of one queue."""

    def __init__(self, store: Store, names: Names) -> None:
        self._store = store
        self._names = names
        self._cache: OrderedDict[str, Segment] = OrderedDict()
        self._writer = ""
        """In the names of what is written here: nobody else's, and no other's after a discard."""
        self._discards = 0

    async def write(self, found: Found, ledger: Ledger, sequences: range, newest_ms: int) -> int:
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
        self, taken: range, epoch: int, side: Side, lsn: int, location: str
    ) -> None:
        """Keep of these entries that somebody else took them, and that they have no records here.

        `lsn` is that of the first record after them. Outranks what a consumer of ours wrote of them
        and did not acknowledge.
        """
        writer = runtime.new_token().hex()
        newest_ms = max(side.newest_ms, 0)
        for start in range(taken.start, taken.stop, limits.V1_SEGMENT_ENTRIES):
            part = range(start, min(start + limits.V1_SEGMENT_ENTRIES, taken.stop))
            entries = [Entry(sequence, location, ()) for sequence in part]
            counted = Counted(lsn, 0, 0, newest_ms, newest_ms, duplicate=True)
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
        reached: Callable[[Header], bool],
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

    async def _first(self, sequences: range, reached: Callable[[Header], bool]) -> str | None:
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

    async def _cover(self, sequences: range) -> list[Stretch]:
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

    async def _get(self, key: str) -> Segment | None:
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


def _parts(found: Found, sequences: range) -> Sequence[range]:
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
