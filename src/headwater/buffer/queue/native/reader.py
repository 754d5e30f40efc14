"""Reads a native queue from a sequence on, chunk by chunk.

An idle reader requests one object: the last chunk while it is open, the one after it once it is
closed. It lists nothing: only a search for the end does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final, NamedTuple, NoReturn

import msgspec

from headwater.buffer.queue.contract import (
    BatchTrimmed,
    Descriptor,
    QueuePosition,
    QueueReader,
    QueueState,
    TimeBy,
    batch_trimmed,
)
from headwater.buffer.queue.native.chunk import Chunk, ChunkBlock
from headwater.buffer.queue.native.chunk_log import (
    READ_AHEAD,
    ChunkLog,
    ConsumerRecord,
    QueueFloors,
    StoredChunk,
)
from headwater.core.errors import Refused, RolledBack
from headwater.store import Store

# Among so many polls that find nothing, one asks whether the floor has passed where it looks (over
# chunks without entries, say), and one makes sure that the chunk before is still there.
FLOOR_POLLS: Final = 4
LAST_POLLS: Final = 16


class ChunkPosition(NamedTuple):
    """A place between two batches: everything before it in numbers."""

    sequence: int
    lsn: int
    bytes: int
    chunk: int


def acknowledge_to(consumer: ConsumerRecord, to: ChunkPosition) -> ConsumerRecord:
    """The consumer's record with everything before a place acknowledged."""
    return msgspec.structs.replace(
        consumer, sequence=to.sequence, lsn=to.lsn, bytes=to.bytes, chunk=to.chunk
    )


class ChunkReader:
    """A cursor over the chunks of a queue."""

    def __init__(self, chunks: ChunkLog) -> None:
        self._chunks = chunks
        self._next: tuple[int, int] | None = None
        self._idle = 0
        self._recent: dict[int, Chunk] = {}
        self.lowest_chunk = 0
        """The lowest chunk that the last call read."""
        self.end_sequence = 0
        """The sequence after the last batch seen."""
        self._least_end = 0
        """The same when the end was last searched for: never from a dead chunk."""

    async def from_sequence(self, sequence: int, limit: int) -> list[Descriptor]:
        """Up to `limit` batches from `sequence` on; `BatchTrimmed` if that one is gone."""
        while True:
            try:
                return await self._from_sequence(sequence, limit)
            except BatchTrimmed as trimmed:
                self.reset()
                if sequence < trimmed.floor_sequence:
                    raise
            # The chunk that it was in is gone; the batch may be in a later one.

    def reset(self) -> None:
        """Forget the position: the next call searches for it."""
        self._next = None
        self._recent.clear()

    async def _from_sequence(self, sequence: int, limit: int) -> list[Descriptor]:
        self._check_kept(sequence)
        if self._next is not None and self._next[0] == sequence:
            number = self._next[1]
        else:
            number = (await self.locate(sequence)).number
        self.lowest_chunk = number
        batches: list[Descriptor] = []
        window = 1
        while len(batches) < limit:
            run = await self._chunks.run(number, window)
            for stored in run:
                self._remember(stored.chunk)
                batches += descriptors(self._chunks, stored.chunk, from_sequence=sequence)
            if len(run) < window or not run[-1].chunk.closed:
                await self._check_end(number, run, sequence)
                break
            number, window = number + window, min(READ_AHEAD, window * 2)
        self._idle = 0 if batches else self._idle + 1
        ends = (sequence, sequence + len(batches) - 1)
        if batches and (batches[0].sequence, batches[-1].sequence) != ends:
            await self._raise_hole(sequence)
        if len(batches) < limit and sequence + len(batches) < self._least_end:
            # More is there than was read: what would come next must be, too.
            await self._chunks.require(self._chunk_from(sequence + len(batches), number))
        batches = batches[:limit]
        after = batches[-1].sequence + 1 if batches else sequence
        self._next = (after, self._chunk_from(after, number))
        return batches

    async def locate(self, sequence: int) -> Chunk:
        """The chunk with this sequence, or the last one if it is the next to come."""
        for chunk in self._recent.values():
            if chunk.first_sequence <= sequence < chunk.next_sequence:
                return chunk
        while True:
            queue = await self._chunks.floors()
            self._check_kept(sequence)
            # Chunks before it may be deleted while it is searched for.
            with contextlib.suppress(BatchTrimmed):
                return await self._search(sequence, queue)

    def _check_kept(self, sequence: int) -> None:
        """`BatchTrimmed` if the floor, as it was last read, has passed a batch.

        Its entry may still be there to be read: in a chunk of which some is kept.
        """
        if sequence < self._chunks.floor.sequence:
            raise batch_trimmed(f"{self._chunks.prefix}: batch {sequence}", self._chunks.floor)

    async def _search(self, sequence: int, queue: QueueFloors) -> Chunk:
        last = (await self._chunks.last_alive(queue.chunk_floor)).chunk
        self._least_end = last.next_sequence
        if sequence > last.next_sequence:
            raise Refused(
                f"sequence {sequence} lies ahead: the next one to be appended is "
                f"{last.next_sequence}"
            )
        stored = await self._chunks.search(
            queue.chunk_floor, last.number, lambda chunk: chunk.first_sequence <= sequence
        )
        return stored.chunk

    async def position_after(self, sequence: int) -> ChunkPosition:
        """The position after this batch; `Refused` if it was not appended yet."""
        chunk = await self.locate(sequence)
        if not chunk.first_sequence <= sequence < chunk.next_sequence:
            raise Refused(
                f"there is no batch {sequence} yet: the next one to be appended is "
                f"{chunk.next_sequence}"
            )
        through = chunk.entries[: sequence - chunk.first_sequence + 1]
        return ChunkPosition(
            sequence + 1,
            chunk.first_lsn + sum(entry.rows for entry in through),
            chunk.bytes_before + sum(entry.size_bytes for entry in through),
            chunk.number,
        )

    async def position_before(self, sequence: int) -> ChunkPosition:
        """The position before this batch, which may be the next one to come."""
        chunk = await self.locate(sequence)
        before = chunk.entries[: sequence - chunk.first_sequence]
        return ChunkPosition(
            sequence,
            chunk.first_lsn + sum(entry.rows for entry in before),
            chunk.bytes_before + sum(entry.size_bytes for entry in before),
            chunk.number,
        )

    async def _check_end(self, number: int, run: list[StoredChunk], sequence: int) -> None:
        """The end was reached; now and then see that it is one, and no queue that went back."""
        if run:
            if run[-1].chunk.next_sequence < sequence:
                await self._raise_hole(sequence)
            return
        if number in self._recent:
            await self._chunks.require(number)
        is_floor_due = self._idle % FLOOR_POLLS == FLOOR_POLLS - 1
        if is_floor_due and number < (await self._chunks.floors()).chunk_floor:
            raise self._chunks.trimmed(number)
        if number > 0 and self._idle % LAST_POLLS == LAST_POLLS - 1:
            await self._chunks.require(number - 1)
            if await self._chunks.exists(number + 1):
                await self._chunks.require(number)

    async def _raise_hole(self, sequence: int) -> NoReturn:
        """What was read does not go on where it should: it is dead, or the queue is damaged."""
        await self._chunks.check_alive(self.lowest_chunk)
        raise RolledBack(
            f"{self._chunks.prefix} does not continue with batch {sequence}, which existed: the "
            "queue went back"
        )

    def _chunk_from(self, sequence: int, number: int) -> int:
        for chunk in self._recent.values():
            if chunk.first_sequence <= sequence < chunk.next_sequence:
                return chunk.number
            if chunk.next_sequence == sequence:
                number = max(number, chunk.number + 1 if chunk.closed else chunk.number)
        return number

    def _remember(self, chunk: Chunk) -> None:
        self.end_sequence = max(self.end_sequence, chunk.next_sequence)
        self._recent.pop(chunk.number, None)
        self._recent[chunk.number] = chunk
        while len(self._recent) > 2 * READ_AHEAD:
            del self._recent[next(iter(self._recent))]


def descriptors(chunks: ChunkLog, chunk: Chunk, *, from_sequence: int = 0) -> list[Descriptor]:
    """The batches of a chunk from a sequence on."""
    key = chunks.key(chunk.number)
    return [
        Descriptor(
            sequence=place.sequence,
            location=key if entry.inline is not None else chunks.batch_key(entry.batch_id),
            first_lsn=place.first_lsn,
            rows=entry.rows,
            size_bytes=entry.size_bytes,
            min_ms=entry.min_ms,
            max_ms=entry.max_ms,
            min_timestamp_us=entry.min_timestamp_us,
            max_timestamp_us=entry.max_timestamp_us,
            batch_id=entry.batch_id,
            producer=chunk.owners[entry.owner].producer,
            producer_sequence=entry.producer_sequence,
            metadata=entry.metadata,
            schema_version=entry.schema_version,
            inline=entry.inline,
        )
        for entry, place in zip(chunk.entries, chunk.places(), strict=True)
        if place.sequence >= from_sequence
    ]


class TimeSearch:
    """A search for the first retained batch with a record of a time or a later one.

    A chunk has the latest times of the blocks of chunks before it. So the last chunk shows which
    block has the first chunk that reaches a time, the last chunk of that block shows which half of
    it, and so on. That takes one read for each halving, and as many again where the floor is within
    a block whose latest time is below the floor: the latest time counts deleted chunks, too.
    """

    def __init__(self, chunks: ChunkLog, queue: QueueFloors, time_us: int, by: TimeBy) -> None:
        self._chunks = chunks
        self._queue = queue
        self._time_us = time_us
        self._by: TimeBy = by
        self.chunk = queue.chunk_floor
        """The chunk of what was found."""

    async def up_to(self, last: Chunk) -> Descriptor | None:
        """The batch; None if no chunk up to this one has it."""
        batch = await self._among(last.blocks_before)
        return self._within(last) if batch is None else batch

    async def _among(self, blocks: Sequence[ChunkBlock]) -> Descriptor | None:
        for block in blocks:
            if block.first + block.size <= self._queue.chunk_floor:
                continue
            if not block.newest.reaches(self._time_us, self._by):
                continue
            end = (await self._chunks.require(block.first + block.size - 1)).chunk
            inner = [one for one in end.blocks_before if one.first >= block.first]
            batch = await self._among(inner)
            batch = self._within(end) if batch is None else batch
            if batch is not None:
                return batch
        return None

    def _within(self, chunk: Chunk) -> Descriptor | None:
        if not chunk.newest.reaches(self._time_us, self._by):
            return None
        floor = self._queue.floor_sequence
        for one in descriptors(self._chunks, chunk, from_sequence=floor):
            if one.rows and one.range_us(self._by)[1] >= self._time_us:
                self.chunk = chunk.number
                return one
        return None


class NativeReader(QueueReader):
    """Reads a partition's queue, and changes nothing."""

    def __init__(self, store: Store, prefix: str, queue_id: str) -> None:
        self._chunks = ChunkLog(store, prefix, queue_id)
        self._reading = ChunkReader(self._chunks)

    async def state(self) -> QueueState:
        while True:
            # What the consumer's position names may be acknowledged and deleted meanwhile.
            with contextlib.suppress(BatchTrimmed):
                return await self._state()

    async def _state(self) -> QueueState:
        # In this order none is behind the one before: each only goes forward.
        queue = await self._chunks.floors()
        consumer = await self._chunks.read_consumer()
        last = (await self._chunks.last_alive(max(consumer.chunk, queue.chunk_floor))).chunk
        # Retention may have passed what the consumer acknowledged.
        first, bytes_before, oldest_ms = consumer.sequence, consumer.bytes, None
        if first < queue.floor_sequence:
            place = await self._reading.position_before(queue.floor_sequence)
            first, bytes_before = place.sequence, place.bytes
        if first < last.next_sequence:
            chunk = last
            if first < last.first_sequence:
                # The end is known already.
                stored = await self._chunks.search(
                    max(consumer.chunk, queue.chunk_floor),
                    last.number,
                    lambda chunk: chunk.first_sequence <= first,
                )
                chunk = stored.chunk
            await self._chunks.check_alive(chunk.number)
            if not chunk.first_sequence <= first < chunk.next_sequence:
                raise self._chunks.missing(chunk.number)
            oldest_ms = chunk.entries[first - chunk.first_sequence].min_ms
        return QueueState(
            epoch=consumer.epoch,
            group=consumer.group,
            floor_sequence=queue.floor_sequence,
            floor_lsn=queue.floor_lsn,
            acked_sequence=consumer.sequence,
            acked_lsn=consumer.lsn,
            next_sequence=last.next_sequence,
            next_lsn=last.next_lsn,
            pending_bytes=last.bytes_through - bytes_before,
            oldest_pending_ms=oldest_ms,
            opened_ms=consumer.opened_ms,
        )

    async def floor(self) -> QueuePosition:
        return (await self._chunks.floors()).floor

    async def after(self, sequence: int | None, limit: int) -> list[Descriptor]:
        if limit < 1:
            return []
        while True:
            if sequence is None:
                start = (await self._chunks.floors()).floor_sequence
            else:
                start = sequence + 1
            try:
                batches = await self._reading.from_sequence(start, limit)
                await self._chunks.check_alive(self._reading.lowest_chunk)
                return batches
            except BatchTrimmed as trimmed:
                self._reading.reset()
                if start < trimmed.floor_sequence and sequence is not None:
                    raise

    async def sequence_at_lsn(self, lsn: int) -> int | None:
        while True:
            queue = await self._chunks.floors()
            if lsn < queue.floor_lsn:
                raise batch_trimmed(f"{self._chunks.prefix}: LSN {lsn}", queue.floor)
            # Chunks before it may be deleted during the search.
            with contextlib.suppress(BatchTrimmed):
                return await self._at_lsn(lsn, queue)

    async def _at_lsn(self, lsn: int, queue: QueueFloors) -> int | None:
        last = (await self._chunks.last_alive(queue.chunk_floor)).chunk
        if lsn >= last.next_lsn:
            return None
        stored = await self._chunks.search(
            queue.chunk_floor, last.number, lambda chunk: chunk.first_lsn <= lsn
        )
        await self._chunks.check_alive(stored.chunk.number)
        places = stored.chunk.places()
        return [place.sequence for place in places if place.first_lsn <= lsn][-1]

    async def batch_at_time(self, time_us: int, by: TimeBy) -> Descriptor | None:
        while True:
            # What is looked at may be deleted while it is searched for.
            with contextlib.suppress(BatchTrimmed):
                return await self._at_time(time_us, by)

    async def _at_time(self, time_us: int, by: TimeBy) -> Descriptor | None:
        queue = await self._chunks.floors()
        last = (await self._chunks.last_alive(queue.chunk_floor)).chunk
        search = TimeSearch(self._chunks, queue, time_us, by)
        batch = await search.up_to(last)
        if batch is not None:
            await self._chunks.check_alive(search.chunk)
        return batch
