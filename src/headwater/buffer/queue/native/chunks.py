"""The chunks of a native queue: reading them by number, and finding the last one.

Always holds:

- chunks from the floor to the last are all there, or the queue is damaged, and whoever looks for
  the end says so; the last is never deleted;
- what is read or written at a number counts only at or above the floor, as it stands afterwards:
  below it a stalled writer may have created a number again, long after the real chunk was deleted,
  and others may have added to it;
- a chunk is deleted only when collectors have seen FLOOR_SETTLE_S pass since the floor passed it
  (`core.elapsed`). So a floor counts as read afterwards, too, if it was asked for less than
  FLOOR_LEASE_S ago.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from headwater.buffer.queue.native.chunk import Chunk, decode_chunk, encode_chunk, first_chunk
from headwater.buffer.queue.native.ends import Ends
from headwater.buffer.queue.native.records import (
    ConsumerRecord,
    End,
    Queue,
    consumer_register,
    no_queue,
)
from headwater.core import limits
from headwater.core.errors import Corrupt, NotFound, NotSupported, RolledBack, Trimmed
from headwater.core.lease import Lease
from headwater.store import Object, Register, Store, Version

_NUMBER: Final = re.compile(r"[0-9]{20}")
# How many chunks are asked for at once.
READ_AHEAD: Final = 16
# How many keys of a listing are looked at before the end is searched for by halving.
LISTED_MAX: Final = 1000


class Held(NamedTuple):
    """A chunk and the version of the object it was read from."""

    chunk: Chunk
    version: Version
    modified_ms: int = 0
    """When the store wrote it, by its own clock; 0 for what was not read but written."""


class Chunks:
    """One queue's chunks and its floors."""

    def __init__(self, store: Store, prefix: str, queue_id: str) -> None:
        self.store = store
        self.prefix = prefix
        self.queue_id = queue_id
        self.register = Register(store, f"{prefix}/queue.json", Queue)
        self.ends = Ends(store, prefix)
        self.known_floor = 0
        """No number from here on was dead when that was last known."""
        self._looked: Lease | None = None
        """When the floor was last read."""
        self.known_floor_sequence = 0
        """No batch below it is kept, as of the last look."""
        self._asked: Lease | None = None
        """As of when `known_floor` is known."""

    def key(self, number: int) -> str:
        """Where a chunk stands."""
        return f"{self.prefix}/chunks/{number:020d}"

    def number_of(self, key: str) -> int | None:
        """The number of the chunk at a key; None if it is no chunk's key."""
        name = key.removeprefix(f"{self.prefix}/chunks/")
        return int(name) if _NUMBER.fullmatch(name) else None

    def batch_key(self, batch_id: str) -> str:
        """Where a batch stands."""
        return f"{self.prefix}/batches/{batch_id}"

    async def is_made(self) -> bool:
        """Whether there is a queue, which must be this one."""
        try:
            self._checked((await self.register.read()).value)
        except NotFound:
            return False
        return True

    async def floors(self) -> Queue:
        """What is dead by now."""
        asked = Lease()
        try:
            queue = (await self.register.read()).value
        except NotFound as error:
            raise no_queue(self.prefix) from error
        self._checked(queue)
        if self._asked is None or asked.at_s > self._asked.at_s:
            self.known_floor, self._asked = queue.chunk_floor, asked
        if self._looked is None or asked.at_s > self._looked.at_s:
            self._looked = asked
        self.known_floor_sequence = max(self.known_floor_sequence, queue.floor_sequence)
        return queue

    def _checked(self, queue: Queue) -> None:
        if queue.id != self.queue_id:
            raise Corrupt(f"{self.prefix} holds queue {queue.id}, not {self.queue_id}")

    async def is_dead(self, number: int) -> bool:
        """Whether what was just read or written at this number does not count."""
        if self._is_leased(number):
            return False
        return number < (await self.floors()).chunk_floor

    def grown(self, number: int, *, met: Lease, began: Lease) -> None:
        """A write that began at this time was added to an open chunk, first met then.

        If no chunk can have been deleted since the floor was last known, this was the real one and
        not one that a stalled writer left there. It was open, and the floor passes closed chunks
        alone: so at that moment it had not passed this one, as if it had been read then.

        A chunk may also have been made after its whole stream was deleted, and only queue.json
        tells. So one look after the chunk was met comes first, and one now and then.
        """
        looked = self._looked
        if looked is None or looked.at_s <= met.at_s or not looked.is_within(limits.FLOOR_LOOK_S):
            return
        if self._is_leased(number):
            self.known_floor, self._asked = number, began

    def _is_leased(self, number: int) -> bool:
        if self._asked is None or number < self.known_floor:
            return False
        return self._asked.is_within(limits.FLOOR_LEASE_S)

    def held(self, number: int, found: Object) -> Held:
        """A chunk from its object."""
        try:
            chunk = decode_chunk(found.data, queue_id=self.queue_id, number=number)
        except (Corrupt, NotSupported) as error:
            raise type(error)(f"{self.key(number)}: {error}") from error
        return Held(chunk, found.version, found.meta.modified_ms)

    async def get(self, number: int) -> Held | None:
        """The chunk with this number; None if there is none."""
        try:
            return self.held(number, await self.store.get(self.key(number)))
        except NotFound:
            return None

    async def run(self, first: int, count: int) -> list[Held]:
        """Chunks from `first` on, until one is missing or open, at most `count`.

        What was read together was not read at one instant: an open chunk may have grown and been
        closed before the one after it was read.
        """
        found: list[Held] = []
        while len(found) < count:
            start = first + len(found)
            wanted = range(start, start + min(READ_AHEAD, count - len(found)))
            for held in await asyncio.gather(*(self.get(number) for number in wanted)):
                if held is None:
                    return found
                found.append(held)
                if not held.chunk.closed:
                    return found
        return found

    async def exists(self, number: int) -> bool:
        """Whether there is an object with this number."""
        try:
            await self.store.head(self.key(number))
        except NotFound:
            return False
        return True

    async def last(self, known: int = 0) -> Held:
        """The last chunk. `known` is one that was there once: the search begins at it.

        The floor is read first: below it chunks may be missing, from it on none is. And before
        the search, how far the queue has come: it ends there or beyond.
        """
        end = await self._least_end()
        while True:
            low = max(known, end.chunk)
            if not self.store.is_local:
                low, ended = await self._listed(low)
                if not ended:
                    low = await self._searched(low)
            else:
                low = await self._searched(low)
            held = await self.get(low)
            if held is not None and held.chunk.first_sequence >= end.first_sequence:
                return held
            floor = (await self.floors()).chunk_floor
            if floor <= low:
                raise self.gone(low)
            known = floor

    async def _least_end(self) -> End:
        try:
            return await self.ends.read()
        except NotFound as error:
            await self.floors()  # which says so if there is nothing at all
            raise RolledBack(
                f"{self.ends.register.key} is gone, which stands from the queue's creation on and "
                "says how far the queue has come. Restore it from a backup."
            ) from error

    async def end(self, known: int = 0) -> Held:
        """The last chunk, for whoever reads: a writer finds out by writing whether it was.

        What is found may lie below a floor that rose meanwhile. Then chunks after it may be
        deleted already, and it may be one that a stalled writer created.
        """
        while True:
            held = await self.last(known)
            if not await self.is_dead(held.chunk.number):
                return held
            known = self.known_floor

    async def _listed(self, known: int) -> tuple[int, bool]:
        """The highest number that one listing shows, and whether that is all there is.

        Cheaper than asking for number after number where every question costs a round trip.
        """
        last, seen, gap = known, 0, -1
        async for meta in self.store.list(f"{self.prefix}/chunks", start_after=self.key(known)):
            number = self.number_of(meta.key)
            if number is not None:
                gap = gap if number == last + 1 else number - 1
                last = number
            seen += 1
            if seen >= LISTED_MAX:
                break
        await self._check_gap(gap)
        return last, seen < LISTED_MAX

    async def _searched(self, low: int) -> int:
        """The last number, by halving; then a listing shows that nothing lies beyond.

        Halving takes a chunk that is missing for the end. One that was created after the halving
        is beyond it and no sign of damage: then the search goes on.
        """
        while True:
            low = await self._halved(max(low, (await self.floors()).chunk_floor))
            beyond = await self._first_after(low)
            if beyond is None:
                return low
            if beyond > low + 1:
                await self._check_gap(beyond - 1)
            low = beyond

    async def _first_after(self, number: int) -> int | None:
        """The lowest number above this one that a listing shows."""
        async for meta in self.store.list(f"{self.prefix}/chunks", start_after=self.key(number)):
            found = self.number_of(meta.key)
            if found is not None:
                return found
        return None

    async def _check_gap(self, number: int) -> None:
        """`RolledBack` if this number, above which there are others, is missing and not dead.

        A listing is no picture of one instant: it may lack what was created while it was made.
        """
        if number < self.known_floor or await self.exists(number):
            return
        if number >= (await self.floors()).chunk_floor:
            raise self.gone(number)

    async def _halved(self, low: int) -> int:
        """The last number, found in steps that double and then halve; `low` is there."""
        step = 1
        while await self.exists(low + step):
            low, step = low + step, step * 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            if await self.exists(middle):
                low = middle
            else:
                high = middle
        return low

    async def search(self, low: int, high: int, is_before: Callable[[Chunk], bool]) -> Held:
        """The last chunk from `low` to `high` for which `is_before` holds; `low` if none.

        `is_before` holds for all chunks up to some number and for none after. `Trimmed` if a
        chunk on the way is deleted.
        """
        best = await self.require(low)
        low += 1
        while low <= high:
            middle = (low + high) // 2
            held = await self.require(middle)
            if is_before(held.chunk):
                best, low = held, middle + 1
            else:
                high = middle - 1
        return best

    async def require(self, number: int) -> Held:
        """A chunk that must be there: `Trimmed` below the floor, `RolledBack` otherwise."""
        held = await self.get(number)
        if held is not None:
            return held
        queue = await self.floors()
        if number < queue.chunk_floor:
            raise Trimmed(
                f"{self.prefix}: chunk {number} is gone; the oldest batch still there is "
                f"{queue.floor_sequence}",
                floor=queue.floor_sequence,
            )
        raise self.gone(number)

    def gone(self, number: int) -> RolledBack:
        """What is said of a chunk that should be there."""
        return RolledBack(
            f"chunk {number} of {self.prefix}, or what was in it, is gone though nobody deleted "
            f"it: the queue went back. Restore {self.key(number)} from a backup, and let nobody "
            "write before."
        )


async def create_native_queue(store: Store, prefix: str, queue_id: str) -> None:
    """Make a queue, if nobody has. Whoever finds `queue.json` finds all of it."""
    chunks = Chunks(store, prefix, queue_id)
    if await chunks.is_made():
        return
    data = encode_chunk(first_chunk(queue_id))
    # Whoever else writes it writes the same bytes, and they are recognised.
    await store.put_if_absent(chunks.key(0), data, token=queue_id.encode())
    await chunks.ends.register.update(lambda end: end or End())
    await consumer_register(store, prefix).update(lambda consumer: consumer or ConsumerRecord())
    await chunks.register.update(lambda queue: queue or Queue(queue_id))
