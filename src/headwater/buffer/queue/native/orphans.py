"""Finds batches that were uploaded and never appended, and deletes them behind a floor.

Passes go forward: uploads below the floor of an earlier pass are not listed again, and the ids
above it that chunks refer to are remembered. Uploads that arrive below that floor later are refused
by every appender; only a full pass finds them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import xxhash

from headwater.buffer.queue.contract import Collected, Counters
from headwater.buffer.queue.native.chunk import last_batch_id
from headwater.buffer.queue.native.chunk_log import ChunkLog, CollectorRecord, QueueFloors
from headwater.buffer.queue.native.tail import QueueTail, write_note
from headwater.buffer.queue.retention import Retention
from headwater.core import limits, runtime
from headwater.core.errors import Denied, HeadwaterError
from headwater.core.runtime import decode_ulid, encode_ulid, is_ulid
from headwater.store import Register, Store


@dataclass
class ScanProgress:
    """What a pass has read of the queue."""

    chunk: int
    """Chunks below it were read."""
    referenced: ReferencedIds
    marked: str = ""
    """Nothing up to this id is appended any more, and all that was is in `referenced`."""


class OrphanPass:
    """One pass over the uploads of a queue."""

    def __init__(
        self,
        chunks: ChunkLog,
        register: Register[CollectorRecord],
        retention: Retention,
        *,
        now_ms: int,
    ) -> None:
        """`now_ms` is the store's time."""
        self._chunks = chunks
        self._now_ms = now_ms
        self._register = register
        self._retention = retention
        self._tail = QueueTail(chunks, Counters())

    async def collect(self, report: Collected, *, full: bool) -> None:
        """Delete uploads that were not appended and cannot be appended any more, some at a time."""
        before = await self._register.find() or CollectorRecord()
        # Also if the last one was in the future: then the clock was set back.
        full = full or abs(self._now_ms - before.full_ms) > limits.GC_FULL_EVERY_MS
        start = CollectorRecord() if full else before
        seen = ScanProgress(start.chunk, ReferencedIds(start.referenced))
        await self._scan(seen, start.batch_floor)
        # Found once: what is uploaded while a pass runs is left to the next, or it never ends.
        ceiling = self._ceiling(seen.referenced)
        floor, has_more = start.batch_floor, True
        while has_more:
            listed = await self._list(floor, ceiling)
            has_more = len(listed) >= limits.GC_LISTED
            orphans = [batch_id for batch_id in listed if batch_id not in seen.referenced]
            if orphans and max(orphans) > seen.marked:
                # Once for all that may follow: a note is a write on the chunk to which producers
                # append, and one after another would keep them from it.
                seen.marked = ceiling if has_more else max(orphans)
                marker = await self._raise_batch_floor(seen.marked)
                # Between the two readings some were appended, and none can be from here on.
                await self._scan(seen, floor, through=marker)
                orphans = [batch_id for batch_id in orphans if batch_id not in seen.referenced]
            keys = [self._chunks.batch_key(batch_id) for batch_id in orphans]
            report.batches_orphaned += await delete_all(self._chunks.store, keys, report)
            report.bytes_orphaned += sum(listed[batch_id] for batch_id in orphans)
            floor = max(listed, default=floor)
            await self._save(before, seen, floor, full=full and not has_more)

    async def _scan(self, seen: ScanProgress, above: str, *, through: int | None = None) -> None:
        """Read on from where the last one stopped: which batches do closed chunks refer to?

        Also those of the open chunk, which is read again next time.
        """
        while True:
            queue = await self._chunks.floors()
            number = start = max(seen.chunk, queue.chunk_floor)
            while run := await self._chunks.run(number, limits.GC_PARALLEL):
                for stored in run:
                    first = max(0, queue.floor_sequence - stored.chunk.first_sequence)
                    seen.referenced.add(
                        entry.batch_id
                        for entry in stored.chunk.entries[first:]
                        if entry.inline is None and entry.batch_id > above
                    )
                last = run[-1].chunk
                number = last.number + 1 if last.closed else last.number
                # An open chunk before `through` was read before it was closed: it is read again.
                if (not last.closed) if through is None else last.number >= through:
                    break
            # Chunks that were deleted meanwhile end the run early, or are not what they seem.
            if (await self._chunks.floors()).chunk_floor <= start:
                if through is not None and number < through:
                    raise self._chunks.missing(number)
                seen.chunk = number
                return

    def _ceiling(self, referenced: ReferencedIds) -> str:
        """The id up to which uploads are checked: old ones by their ids, or as many as memory
        takes, and never those that a transaction holds."""
        ceiling = last_batch_id(runtime.wall_ms() - self._retention.grace_ms)
        newest = referenced.newest()
        if len(newest) > limits.GC_REFERENCED:
            ceiling = max(ceiling, newest[-limits.GC_REFERENCED])
        stored = self._retention.hold_below
        if stored is not None:
            ceiling = min(ceiling, encode_ulid(max(0, decode_ulid(stored) - 1)))
        return ceiling

    async def _list(self, after: str, ceiling: str) -> dict[str, int]:
        folder = f"{self._chunks.prefix}/batches"
        listed: dict[str, int] = {}
        async for meta in self._chunks.store.list(folder, start_after=f"{folder}/{after}"):
            batch_id = meta.key.removeprefix(f"{folder}/")
            if batch_id > ceiling or len(listed) >= limits.GC_LISTED:
                break
            if is_ulid(batch_id):
                listed[batch_id] = meta.size_bytes
        return listed

    async def _raise_batch_floor(self, to: str) -> int:
        """No batch at or below `to` is appended any more; returns the chunk that says so."""

        def change(now: QueueFloors | None) -> QueueFloors:
            if now is None:
                raise self._chunks.missing_queue()
            return msgspec.structs.replace(now, batch_floor=max(now.batch_floor, to))

        await self._chunks.register.update(change)
        await self._tail.find()
        return (await write_note(self._tail, batch_floor=to)).number

    async def _save(
        self, before: CollectorRecord, seen: ScanProgress, floor: str, *, full: bool
    ) -> None:
        """Save how far this pass came, unless that is more than memory takes.

        That is so while a transaction holds the floor; the next pass reads the same chunks again.
        """
        above = tuple(batch_id for batch_id in seen.referenced.newest() if batch_id > floor)
        if floor < seen.referenced.blurred_through or len(above) > 2 * limits.GC_REFERENCED:
            return

        def change(now: CollectorRecord | None) -> CollectorRecord:
            now = now or CollectorRecord()
            if full:
                now = msgspec.structs.replace(now, full_ms=self._now_ms)
            # Another collector, or an earlier pass that looked at less, may have come further.
            if now.batch_floor > floor:
                return now
            return msgspec.structs.replace(
                now, batch_floor=floor, chunk=seen.chunk, referenced=above
            )

        if (floor, seen.chunk) != (before.batch_floor, before.chunk) or full:
            await self._register.update(change)


class ReferencedIds:
    """Batch ids that chunks refer to, in bounded memory: 2 × GC_REFERENCED ids and a filter.

    The newest ids are kept as they are. Older ones are only marked in a filter of GC_FILTER_BYTES,
    which may take another id for one of them. Then an upload that was never appended stays until
    a pass on another day, whose filter has another salt. The filter never misses an id, so no
    batch is deleted because of it.

    A set of all ids is the obvious alternative: some hundred bytes for each retained batch are
    gigabytes for a busy week.
    """

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._newest = set(ids)
        self._filter = bytearray()
        self._salt = 0
        self.blurred_through = ""
        """Up to this id, some are only in the filter."""

    def add(self, ids: Iterable[str]) -> None:
        self._newest.update(ids)
        if len(self._newest) > 2 * limits.GC_REFERENCED:
            older = sorted(self._newest)[: -limits.GC_REFERENCED]
            self._newest.difference_update(older)
            self._blur(older)

    def __contains__(self, batch_id: str) -> bool:
        if batch_id in self._newest:
            return True
        if batch_id > self.blurred_through:
            return False
        return all(self._filter[place] & bit for place, bit in self._bits(batch_id))

    def newest(self) -> list[str]:
        """Those above `blurred_through`, and perhaps some below, in order."""
        return sorted(self._newest)

    def _blur(self, ids: list[str]) -> None:
        if not self._filter:
            self._filter = bytearray(limits.GC_FILTER_BYTES)
            self._salt = int.from_bytes(runtime.new_token()[:8], "big")
        for batch_id in ids:
            for place, bit in self._bits(batch_id):
                self._filter[place] |= bit
        self.blurred_through = max(self.blurred_through, ids[-1])

    def _bits(self, batch_id: str) -> list[tuple[int, int]]:
        """Four places in the filter: with ten bits for each id, one in eighty is taken wrongly."""
        digest = xxhash.xxh3_128_intdigest(batch_id.encode(), seed=self._salt)
        size = 8 * len(self._filter)
        places = [(digest >> shift & 0xFFFFFFFF) % size for shift in (0, 32, 64, 96)]
        return [(place // 8, 1 << place % 8) for place in places]


async def delete_all(store: Store, keys: list[str], report: Collected) -> int:
    """Delete objects, some at a time; how many went. The next pass repeats what failed."""
    gone = 0
    for first in range(0, len(keys), limits.GC_PARALLEL):
        group = keys[first : first + limits.GC_PARALLEL]
        for outcome in await asyncio.gather(
            *(store.delete(key) for key in group), return_exceptions=True
        ):
            if isinstance(outcome, HeadwaterError):
                report.failed += 1
                report.is_denied |= isinstance(outcome, Denied)
            elif outcome is not None:
                raise outcome
            else:
                gone += 1
    return gone
