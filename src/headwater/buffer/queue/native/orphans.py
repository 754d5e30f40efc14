"""Batches that were uploaded and never appended: found, and deleted behind a floor.

The looking goes forward: what lies below the floor of an earlier pass is not listed again, and
what the chunks read so far refer to above it is remembered. Uploads that arrive below that floor
later are refused by every appender; only a full pass finds them.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from headwater.buffer.queue.contract import Collected, Counters, Retention
from headwater.buffer.queue.native.chunks import Chunks
from headwater.buffer.queue.native.deleting import delete_all
from headwater.buffer.queue.native.records import Queue, Scanned, no_queue
from headwater.buffer.queue.native.referenced import Referenced
from headwater.buffer.queue.native.tail import Tail, write_note
from headwater.core import limits, runtime
from headwater.core.errors import NotFound, Refused
from headwater.core.retry import RetryPolicy
from headwater.core.runtime import decode_ulid, encode_ulid
from headwater.store import Register


@dataclass
class Seen:
    """What a pass has read of the queue."""

    chunk: int
    """Chunks below it were read."""
    referenced: Referenced
    marked: str = ""
    """Nothing up to this id is appended any more, and all that was is in `referenced`."""


class Orphans:
    """One pass over the uploads of a queue."""

    def __init__(
        self, chunks: Chunks, register: Register[Scanned], retention: Retention, *, now_ms: int
    ) -> None:
        """`now_ms` is the store's time."""
        self._chunks = chunks
        self._now_ms = now_ms
        self._register = register
        self._retention = retention
        self._tail = Tail(chunks, Counters())

    async def collect(self, report: Collected, *, full: bool) -> None:
        """Delete what nobody appended and nobody can append any more, some at a time."""
        try:
            before = (await self._register.read()).value
        except NotFound:
            before = Scanned()
        # Also if the last one lies in what is the future by now: the clock was set back.
        full = full or abs(self._now_ms - before.full_ms) > limits.GC_FULL_EVERY_MS
        start = Scanned() if full else before
        seen = Seen(start.chunk, Referenced(start.referenced))
        await self._scan(seen, start.batch_floor)
        # Found once: what is uploaded while a pass runs is left to the next, or it never ends.
        ceiling = self._ceiling(seen.referenced)
        floor, has_more = start.batch_floor, True
        while has_more:
            listed = await self._list(floor, ceiling)
            has_more = len(listed) >= limits.GC_LISTED
            orphans = [batch_id for batch_id in listed if batch_id not in seen.referenced]
            if orphans and max(orphans) > seen.marked:
                # Once for all that may follow: a note is a write on the chunk to which everybody
                # appends, and one after another would let nobody else come to it.
                seen.marked = ceiling if has_more else max(orphans)
                marker = await self._raise_batch_floor(seen.marked)
                # Between the two readings some were appended, and none can be from here on.
                await self._scan(seen, floor, through=marker)
            if orphans:
                await self._delete_orphans(listed, seen, report)
            floor = max(listed, default=floor)
            await self._save(before, seen, floor, full=full and not has_more)

    async def _delete_orphans(self, listed: dict[str, int], seen: Seen, report: Collected) -> None:
        """Delete those of these uploads to which nobody refers."""
        orphans = sorted(batch_id for batch_id in listed if batch_id not in seen.referenced)
        keys = [self._chunks.batch_key(batch_id) for batch_id in orphans]
        report.batches_orphaned += await delete_all(self._chunks.store, keys, report)
        report.bytes_orphaned += sum(listed[batch_id] for batch_id in orphans)

    async def _scan(self, seen: Seen, above: str, *, through: int | None = None) -> None:
        """Read on from where the last one stopped: which batches do closed chunks refer to?

        Also those of the open chunk, which is read again next time.
        """
        while True:
            queue = await self._chunks.floors()
            number = start = max(seen.chunk, queue.chunk_floor)
            while run := await self._chunks.run(number, limits.GC_PARALLEL):
                for held in run:
                    kept = max(0, queue.floor_sequence - held.chunk.first_sequence)
                    seen.referenced.add(
                        entry.batch_id
                        for entry in held.chunk.entries[kept:]
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
                    raise self._chunks.gone(number)
                seen.chunk = number
                return

    def _ceiling(self, referenced: Referenced) -> str:
        """Up to which id uploads are looked at: old ones by their ids, or beyond what is kept in
        mind, and never what somebody holds."""
        ceiling = _ulid_at(runtime.wall_ms() - self._retention.grace_ms)
        newest = referenced.newest()
        if len(newest) > limits.GC_REFERENCED:
            ceiling = max(ceiling, newest[-limits.GC_REFERENCED])
        held = self._retention.hold_below
        if held is not None:
            ceiling = min(ceiling, encode_ulid(max(0, decode_ulid(held) - 1)))
        return ceiling

    async def _list(self, after: str, ceiling: str) -> dict[str, int]:
        """The next GC_LISTED uploads above `after`, up to the ceiling, with their sizes."""
        folder = f"{self._chunks.prefix}/batches"
        listed: dict[str, int] = {}
        async for meta in self._chunks.store.list(folder, start_after=f"{folder}/{after}"):
            batch_id = meta.key.removeprefix(f"{folder}/")
            if batch_id > ceiling or len(listed) >= limits.GC_LISTED:
                break
            if _is_ulid(batch_id):
                listed[batch_id] = meta.size_bytes
        return listed

    async def _raise_batch_floor(self, to: str) -> int:
        """No batch at or below `to` is appended any more; returns the chunk that says so."""

        def change(now: Queue | None) -> Queue:
            if now is None:
                raise no_queue(self._chunks.prefix)
            return msgspec.structs.replace(now, batch_floor=max(now.batch_floor, to))

        await self._chunks.register.update(change)
        await self._tail.find()
        marker = await write_note(
            self._tail,
            lambda last: last.written(runtime.new_token(), batch_floor=to),
            RetryPolicy().start(attempts=limits.APPEND_ATTEMPTS),
        )
        return marker.number

    async def _save(self, before: Scanned, seen: Seen, floor: str, *, full: bool) -> None:
        """Keep how far this pass came, unless that is more than can be kept in mind.

        That is so while somebody holds the floor; the next pass reads the same chunks again.
        """
        above = tuple(batch_id for batch_id in seen.referenced.newest() if batch_id > floor)
        if floor < seen.referenced.blurred_through or len(above) > 2 * limits.GC_REFERENCED:
            return

        def change(now: Scanned | None) -> Scanned:
            now = now or Scanned()
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


def _ulid_at(time_ms: int) -> str:
    """The highest ULID of this time."""
    return encode_ulid(max(0, time_ms) << 80 | (1 << 80) - 1)


def _is_ulid(text: str) -> bool:
    try:
        decode_ulid(text)
    except Refused:
        return False
    return True
