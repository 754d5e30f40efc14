"""The end of a queue, as one writer knows it: close the last chunk, add to it, create the next.

Chunks are created by whoever gets there first. A chunk is created only on top of a closed one, so
the entries before it are settled, and its first sequence and LSN with them. An open chunk is
closed by its owner with its last addition, or by anybody else who wants to go on.

What is known and what is not:

- an addition (put-if-unchanged) that succeeded has landed: the object was there, unchanged, so
  it was not deleted;
- a creation that succeeded has landed only if a floor read after it is at or below its number. A
  writer that stalled before its create may find its number free because the real chunk was read
  by the consumer and deleted;
- a clean refusal says that this one request did not land. After an attempt with unknown outcome
  only a look under a floor read later says so.

Writers that meet at the end wait for a random time in proportion to how many chunks others
created since one's own last: the more of them, the longer, so that about one comes at a time. Who
has waited finds more to append, and groups grow. A writer that is alone never waits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from headwater.buffer.queue.contract import Counters
from headwater.buffer.queue.native.chunk import Chunk, encode_chunk
from headwater.buffer.queue.native.chunks import Chunks, Held
from headwater.core import runtime
from headwater.core.backoff import Budget
from headwater.core.errors import (
    AlreadyExists,
    Bug,
    Conflict,
    Contended,
    HeadwaterError,
    OutcomeUnknown,
    Refused,
    Unavailable,
)

# How much of the time between others' chunks a writer lets pass, in units of one write each.
SPREAD: Final = 2.0
# Below this share of time taken by others' writes nobody is in the way.
BUSY: Final = 0.2
SLOT_LEAST_S: Final = 0.001
OTHERS_MAX: Final = 256
# A writer that saw another's chunk within this time creates its own closed: it will not be alone.
COMPANY_S: Final = 10.0


class Lost(Exception):
    """Somebody else's chunk stands where this one was to stand; the tail knows it."""

    def __init__(self, *, in_doubt: bool) -> None:
        super().__init__()
        self.in_doubt = in_doubt


class Dead(Exception):
    """The number lies below the floor: what was created there does not count."""


class Tail:
    """The last chunk that one writer knows."""

    def __init__(self, chunks: Chunks, counters: Counters) -> None:
        self.chunks = chunks
        self.counters = counters
        self._held: Held | None = None
        self._slot_s = SLOT_LEAST_S
        self._own = 0
        self._own_s = runtime.monotonic_s()
        self._between = 0
        self._interval_s = 0.0
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
        """Look for the end."""
        known = 0 if self._held is None else self.chunk.number
        self.adopt(await self.chunks.last(known))
        return self.chunk

    def adopt(self, held: Held) -> None:
        """Go on from this chunk."""
        if self._held is None:
            self._own = held.chunk.number
        elif held.chunk.number > self.chunk.number or held.version != self._held.version:
            self._company_s = runtime.monotonic_s()
        self._held = held

    async def wait_for_turn(self) -> None:
        """Let others pass, if they are many."""
        others = min(OTHERS_MAX, max(self._between, self.chunk.number - self._own))
        elapsed_s = max(self._interval_s, runtime.monotonic_s() - self._own_s, self._slot_s)
        if others * self._slot_s < BUSY * elapsed_s:
            return
        await runtime.sleep(runtime.random().uniform(0, SPREAD * others * self._slot_s))

    async def seal(self) -> None:
        """Close the last chunk, whoever's it is; what is known of it is true afterwards."""
        held = self._held
        if held is None or held.chunk.closed:
            return
        closed = held.chunk.replaced(runtime.new_token(), closed=True)
        try:
            await self._extend(held, closed)
        except Conflict as conflict:
            await self._adopt_current(held.chunk.number, conflict)

    async def extend(self, chunk: Chunk) -> None:
        """Add to one's own open chunk. `Lost`: it is another by now, which the tail knows."""
        held = self._held
        if held is None or held.chunk.number != chunk.number:
            raise Bug("only the last chunk can be added to")
        try:
            await self._extend(held, chunk)
        except Conflict as conflict:
            await self._adopt_current(chunk.number, conflict)
            raise Lost(in_doubt=conflict.after_doubt or conflict.current is None) from None
        self._mine(chunk.number)

    async def create(self, chunk: Chunk) -> None:
        """Create the chunk after the last.

        `Lost`: another is there, which the tail knows; `Dead`: the number does not count any
        more; `OutcomeUnknown`: it may have landed or may still land.
        """
        if self._held is None or not self.chunk.closed or chunk.number != self.chunk.number + 1:
            raise Bug("a chunk is created on top of a closed one")
        started_s = runtime.monotonic_s()
        self.counters.writes += 1
        try:
            version = await self.chunks.store.put_if_absent(
                self.chunks.key(chunk.number), encode_chunk(chunk), token=chunk.token
            )
        except AlreadyExists as conflict:
            self.counters.conflicts += 1
            in_doubt = conflict.after_doubt
            self.adopt(self.chunks.held(chunk.number, conflict.current))
            raise Lost(in_doubt=in_doubt) from None
        self._time(started_s)
        if await self.is_dead(chunk.number):
            await self._discard(chunk.number)
            raise Dead
        self._held = Held(chunk, version)
        self._mine(chunk.number)

    async def is_dead(self, number: int) -> bool:
        """Whether this number lies below the floor by now. Not knowing leaves the outcome open."""
        try:
            return number < (await self.chunks.floors()).chunk_floor
        except (Unavailable, Refused) as error:
            raise OutcomeUnknown(
                f"{self.chunks.key(number)} may have landed, and the floor that would tell cannot "
                f"be read: {error}"
            ) from error

    async def _extend(self, held: Held, chunk: Chunk) -> None:
        started_s = runtime.monotonic_s()
        self.counters.writes += 1
        try:
            version = await self.chunks.store.put_if_unchanged(
                self.chunks.key(chunk.number),
                encode_chunk(chunk),
                held.version,
                token=chunk.token,
            )
        except Conflict:
            self.counters.conflicts += 1
            raise
        self._time(started_s)
        self._held = Held(chunk, version)

    async def _adopt_current(self, number: int, conflict: Conflict) -> None:
        """Take what is there instead; look for the end if nothing is."""
        if conflict.current is not None:
            self.adopt(self.chunks.held(number, conflict.current))
        else:
            self.adopt(await self.chunks.last(number))

    def _mine(self, number: int) -> None:
        at_s = runtime.monotonic_s()
        self._between, self._interval_s = max(0, number - self._own - 1), at_s - self._own_s
        self._own, self._own_s = number, at_s

    def _time(self, started_s: float) -> None:
        taken_s = max(SLOT_LEAST_S, runtime.monotonic_s() - started_s)
        self._slot_s += (taken_s - self._slot_s) / 4

    async def _discard(self, number: int) -> None:
        """Remove what was created below the floor; the collector would, too."""
        with contextlib.suppress(HeadwaterError):
            await self.chunks.store.delete(self.chunks.key(number))


async def append_empty(tail: Tail, make: Callable[[Chunk], Chunk], budget: Budget) -> Chunk:
    """Append a chunk without entries, made from the one before it.

    An unknown outcome is met by another try: what has no entries may be there twice.
    """
    while True:
        try:
            await tail.seal()
            if tail.chunk.closed:
                await tail.create(make(tail.chunk))
                return tail.chunk
        except Lost:
            pass
        except (Dead, OutcomeUnknown) as error:
            if not await budget.pause():
                if isinstance(error, OutcomeUnknown):
                    raise
                raise Contended(f"{tail.chunks.prefix}: others kept winning") from None
            await tail.find()
        else:
            continue
        if not await budget.pause():
            raise Contended(f"{tail.chunks.prefix}: others kept winning")
        await tail.find()
