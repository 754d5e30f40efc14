"""The end of a queue, as one writer knows it: add to the last chunk, or create the next.

Chunks are created by whoever gets there first, and only on top of a closed one, so the entries
before it are settled, and its first sequence and LSN with them.

What is known and what is not:

- an addition (put-if-unchanged) that succeeded has landed: the object was there, unchanged, so
  it was not deleted;
- a creation that succeeded has landed only if a floor read after it is at or below its number. A
  writer that stalled before its create may find its number free because the real chunk was read
  by the consumer and deleted;
- a clean refusal says that this one request did not land. After an attempt with unknown outcome
  only a look under a floor read later says so.

Writers that meet at the end take turns without speaking to each other: the entries say who
appended last, and a writer lets pass those who have waited longer, one write's time for each. Who
has waited finds more to append, and groups grow. A writer that is alone never waits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from headwater.buffer.queue.contract import Counters
from headwater.buffer.queue.native.chunk import Chunk, encode_chunk
from headwater.buffer.queue.native.chunks import Chunks, Held
from headwater.buffer.queue.native.turns import Turns
from headwater.core import runtime
from headwater.core.backoff import Budget
from headwater.core.errors import (
    Bug,
    Conflict,
    Contended,
    HeadwaterError,
    OutcomeUnknown,
    Refused,
    Unavailable,
)

# A writer that saw somebody else's write within this time looks before it writes.
COMPANY_S: Final = 10.0


class Lost(Exception):
    """Somebody else's write stands where this one was to stand; the tail knows it."""

    def __init__(self, *, in_doubt: bool) -> None:
        super().__init__()
        self.in_doubt = in_doubt


class Dead(Exception):
    """The number lies below the floor: what was created there does not count."""


class Tail:
    """The last chunk that one writer knows."""

    def __init__(self, chunks: Chunks, counters: Counters, producer: str = "") -> None:
        self.chunks = chunks
        self.counters = counters
        self.turns = Turns(producer)
        self._held: Held | None = None
        self._company_s: float | None = None

    @property
    def chunk(self) -> Chunk:
        """The last chunk known."""
        if self._held is None:
            raise Bug("the end of the queue was not looked for")
        return self._held.chunk

    @property
    def is_alone(self) -> bool:
        """Whether nobody else has been seen lately."""
        since = self._company_s
        return since is None or runtime.monotonic_s() - since > COMPANY_S

    async def find(self) -> Chunk:
        """Look for the end: the chunk that was last, and if it is closed, beyond it."""
        if self._held is not None and not self.chunk.closed:
            held = await self.chunks.get(self.chunk.number)
            if held is not None and not held.chunk.closed:
                self.adopt(held)
                return held.chunk
        known = 0 if self._held is None else self.chunk.number
        self.adopt(await self.chunks.last(known))
        return self.chunk

    def adopt(self, held: Held) -> None:
        """Go on from this chunk."""
        if self._held is not None and held.version != self._held.version:
            self._company_s = runtime.monotonic_s()
        self.turns.see(held.chunk)
        self._held = held

    async def write(self, chunk: Chunk) -> None:
        """Write the last chunk grown, or the one after it.

        `Lost`: another write is there, which the tail knows; `Dead`: the number does not count
        any more; `OutcomeUnknown`: it may have landed or may still land.
        """
        held = self._held
        if held is None:
            raise Bug("the end of the queue was not looked for")
        started_s = runtime.monotonic_s()
        self.counters.writes += 1
        key, data = self.chunks.key(chunk.number), encode_chunk(chunk)
        try:
            if chunk.number == held.chunk.number:
                version = await self.chunks.store.put_if_unchanged(
                    key, data, held.version, token=chunk.token
                )
            else:
                version = await self.chunks.store.put_if_absent(key, data, token=chunk.token)
        except Conflict as conflict:
            self.counters.conflicts += 1
            await self._adopt_current(chunk.number, conflict)
            raise Lost(in_doubt=conflict.after_doubt or conflict.current is None) from None
        if chunk.number > held.chunk.number and await self.is_dead(chunk.number):
            await self._discard(chunk.number)
            raise Dead
        self._held = Held(chunk, version)
        self.turns.see(chunk)
        self.turns.took(runtime.monotonic_s() - started_s)

    async def is_dead(self, number: int) -> bool:
        """Whether this number lies below the floor by now. Not knowing leaves the outcome open."""
        try:
            return number < (await self.chunks.floors()).chunk_floor
        except (Unavailable, Refused) as error:
            raise OutcomeUnknown(
                f"{self.chunks.key(number)} may have landed, and the floor that would tell cannot "
                f"be read: {error}"
            ) from error

    async def _adopt_current(self, number: int, conflict: Conflict) -> None:
        """Take what is there instead; look for the end if nothing is."""
        if conflict.current is not None:
            self.adopt(self.chunks.held(number, conflict.current))
        else:
            self.adopt(await self.chunks.last(number))

    async def _discard(self, number: int) -> None:
        """Remove what was created below the floor; the collector would, too."""
        with contextlib.suppress(HeadwaterError):
            await self.chunks.store.delete(self.chunks.key(number))


async def write_note(tail: Tail, make: Callable[[Chunk], Chunk], budget: Budget) -> Chunk:
    """Write something that is no entry, made from the last chunk; returns the chunk it is in.

    An unknown outcome is met by another try: what is no entry may be said twice.
    """
    while True:
        try:
            await tail.write(make(tail.chunk))
            return tail.chunk
        except Lost:
            if await budget.pause():
                continue
            raise Contended(f"{tail.chunks.prefix}: others kept winning") from None
        except Dead:
            if not await budget.pause():
                raise Contended(f"{tail.chunks.prefix}: others kept winning") from None
        except OutcomeUnknown:
            if not await budget.pause():
                raise
        await tail.find()
