"""Everybody's door to a native queue: looks, and changes nothing.

What is read counts under a floor read after it.
"""

from __future__ import annotations

import contextlib

from headwater.buffer.queue.contract import Descriptor, QueueReader, QueueState, TimeBy
from headwater.buffer.queue.native.chunks import Chunks
from headwater.buffer.queue.native.reading import Reading
from headwater.buffer.queue.native.records import Queue, consumer_register, read_consumer
from headwater.buffer.queue.native.time_search import TimeSearch
from headwater.core.errors import RolledBack, Trimmed
from headwater.store import Store


class NativeLooker(QueueReader):
    """Reads a partition's queue."""

    def __init__(self, store: Store, prefix: str, queue_id: str) -> None:
        self._prefix = prefix
        self._chunks = Chunks(store, prefix, queue_id)
        self._reading = Reading(self._chunks)
        self._register = consumer_register(store, prefix)

    async def state(self) -> QueueState:
        while True:
            # What the consumer's position names may be acknowledged and deleted meanwhile.
            with contextlib.suppress(Trimmed):
                return await self._state()

    async def _state(self) -> QueueState:
        # In this order none is behind the one before: all three only go forward.
        queue = await self._chunks.floors()
        consumer = await read_consumer(self._register)
        if consumer.sequence < queue.floor_sequence:
            raise RolledBack(
                f"{self._prefix}: batches up to {queue.floor_sequence} were acknowledged and "
                f"deleted, and the consumer's record knows only of {consumer.sequence}"
            )
        last = (await self._chunks.end(consumer.chunk)).chunk
        oldest_ms = None
        if consumer.sequence < last.next_sequence:
            chunk = last
            if consumer.sequence < last.first_sequence:
                # Its position is known to be there or later, and the end is known already.
                held = await self._chunks.search(
                    max(consumer.chunk, queue.chunk_floor),
                    last.number,
                    lambda chunk: chunk.first_sequence <= consumer.sequence,
                )
                chunk = held.chunk
            await self._check_floor(chunk.number)
            if not chunk.first_sequence <= consumer.sequence < chunk.next_sequence:
                raise self._chunks.gone(chunk.number)
            oldest_ms = chunk.entries[consumer.sequence - chunk.first_sequence].min_ms
        return QueueState(
            epoch=consumer.epoch,
            group=consumer.group,
            floor_sequence=queue.floor_sequence,
            floor_lsn=queue.floor_lsn,
            acked_sequence=consumer.sequence,
            acked_lsn=consumer.lsn,
            next_sequence=last.next_sequence,
            next_lsn=last.next_lsn,
            pending_bytes=last.bytes_through - consumer.bytes,
            oldest_pending_ms=oldest_ms,
            opened_ms=consumer.opened_ms,
            truncated_sequence=consumer.truncated,
        )

    async def floor(self) -> int:
        return (await self._chunks.floors()).floor_sequence

    async def after(self, sequence: int | None, limit: int) -> list[Descriptor]:
        if limit < 1:
            return []
        while True:
            if sequence is None:
                start = (await self._chunks.floors()).floor_sequence
            else:
                start = sequence + 1
            try:
                found = await self._reading.after(start, limit)
                await self._check_floor(self._reading.lowest_chunk)
                return found
            except Trimmed as trimmed:
                self._reading.reset()
                if start < trimmed.floor and sequence is not None:
                    raise

    async def sequence_at_lsn(self, lsn: int) -> int | None:
        while True:
            queue = await self._chunks.floors()
            if lsn < queue.floor_lsn:
                raise Trimmed(
                    f"LSN {lsn} of {self._prefix} is not kept any more; the oldest is "
                    f"{queue.floor_lsn}",
                    floor=queue.floor_sequence,
                )
            # What lies before it may be deleted while it is searched for.
            with contextlib.suppress(Trimmed):
                return await self._at_lsn(lsn, queue)

    async def _at_lsn(self, lsn: int, queue: Queue) -> int | None:
        last = (await self._chunks.end(queue.chunk_floor)).chunk
        if lsn >= last.next_lsn:
            return None
        held = await self._chunks.search(
            queue.chunk_floor, last.number, lambda chunk: chunk.first_lsn <= lsn
        )
        await self._check_floor(held.chunk.number)
        places = held.chunk.places()
        return [place.sequence for place in places if place.first_lsn <= lsn][-1]

    async def batch_at_time(self, time_us: int, by: TimeBy) -> Descriptor | None:
        while True:
            # What is looked at may be deleted while it is searched for.
            with contextlib.suppress(Trimmed):
                return await self._at_time(time_us, by)

    async def _at_time(self, time_us: int, by: TimeBy) -> Descriptor | None:
        queue = await self._chunks.floors()
        last = (await self._chunks.end(queue.chunk_floor)).chunk
        search = TimeSearch(self._chunks, queue, time_us, by)
        found = await search.up_to(last)
        if found is not None:
            await self._check_floor(search.chunk)
        return found

    async def _check_floor(self, number: int) -> None:
        if await self._chunks.is_dead(number):
            queue = await self._chunks.floors()
            raise Trimmed(
                f"{self._prefix} is kept from batch {queue.floor_sequence} on",
                floor=queue.floor_sequence,
            )
