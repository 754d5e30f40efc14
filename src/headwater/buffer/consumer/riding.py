"""Batches that ride in a chunk of the queue, fetched by descriptors without their bytes.

A descriptor that goes far (from a planner to executors) leaves the batch behind: `shipped` makes
it small, and whoever fetches reads the chunk, once for all the batches that ride in it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

import msgspec

from headwater.buffer.queue.contract import Descriptor
from headwater.buffer.queue.native.chunk import decode_chunk
from headwater.core import runtime
from headwater.core.errors import NotFound
from headwater.store import Store

IN_ITS_CHUNK: Final = b""
"""Stands in a descriptor for a batch that rides in the chunk at its location; none is empty."""
CHUNKS_KEPT: Final = 4

Riders = dict[str, bytes]


def shipped(descriptor: Descriptor) -> Descriptor:
    """The same batch in as few bytes as it takes to fetch it."""
    inline = None if descriptor.inline is None else IN_ITS_CHUNK
    return msgspec.structs.replace(
        descriptor, inline=inline, metadata=None, producer="", producer_sequence=0
    )


class Riding:
    """The last chunks that were read, each asked for once however many want it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._chunks: OrderedDict[str, asyncio.Task[Riders]] = OrderedDict()

    async def batch(self, descriptor: Descriptor) -> bytes:
        """The bytes of one batch; `NotFound` if it is not there, or not any more."""
        riders = await self._riders(descriptor.location)
        if descriptor.batch_id not in riders:
            # The chunk may have been read before the batch was added to it.
            self._chunks.pop(descriptor.location, None)
            riders = await self._riders(descriptor.location)
        found = riders.get(descriptor.batch_id)
        if found is None:
            raise NotFound(f"batch {descriptor.batch_id} is not in {descriptor.location}")
        return found

    async def _riders(self, key: str) -> Riders:
        task = self._chunks.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = runtime.spawn(self._read(key), name=f"read {key}")
            self._chunks[key] = task
            while len(self._chunks) > CHUNKS_KEPT:
                self._chunks.popitem(last=False)
        # Shielded: whoever is called off must not take the chunk from the others.
        return await asyncio.shield(task)

    async def _read(self, key: str) -> Riders:
        data = (await self._store.get(key)).data
        entries = decode_chunk(data, queue_id=None, number=None).entries
        return {entry.batch_id: entry.inline for entry in entries if entry.inline is not None}
