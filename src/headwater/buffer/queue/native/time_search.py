"""From a time to the first batch that reaches it, without reading what lies between.

A chunk has the latest times of the blocks of chunks before it. So the last chunk shows in which
block the first one stands that reaches a time; the last chunk of that block shows in which half of
it; and so on. That takes one read for each halving, and as many again where the floor lies within
a block whose latest time is below the floor: the latest of a block counts deleted chunks, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.buffer.queue.contract import Descriptor, TimeBy
from headwater.buffer.queue.native.chunk import Block, Chunk
from headwater.buffer.queue.native.chunks import Chunks
from headwater.buffer.queue.native.reading import descriptors
from headwater.buffer.queue.native.records import Queue


class TimeSearch:
    """One look for the first retained batch with a record of a time or a later one."""

    def __init__(self, chunks: Chunks, queue: Queue, time_us: int, by: TimeBy) -> None:
        self._chunks = chunks
        self._queue = queue
        self._time_us = time_us
        self._by: TimeBy = by
        self.chunk = queue.chunk_floor
        """The chunk of what was found."""

    async def up_to(self, last: Chunk) -> Descriptor | None:
        """The batch; None if no chunk up to this one has it."""
        found = await self._among(last.blocks_before)
        return self._within(last) if found is None else found

    async def _among(self, blocks: Sequence[Block]) -> Descriptor | None:
        for block in blocks:
            if block.first + block.size <= self._queue.chunk_floor:
                continue
            if not block.newest.reaches(self._time_us, self._by):
                continue
            end = (await self._chunks.require(block.first + block.size - 1)).chunk
            inner = [one for one in end.blocks_before if one.first >= block.first]
            found = await self._among(inner)
            found = self._within(end) if found is None else found
            if found is not None:
                return found
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
