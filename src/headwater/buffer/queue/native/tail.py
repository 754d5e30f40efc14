"""The end of a queue, as one writer knows it: add to the last chunk, or create the next.

Chunks are created by whoever gets there first, and only on top of a closed one, so the entries
before it are settled, and its first sequence and LSN with them.

What is known and what is not:

- a write that succeeded has landed only if the floor is at or below its number afterwards. A
  writer that stalled before its create may find its number free because the real chunk was read
  by the consumer and deleted; and what such a writer left there, others may add to;
- a refusal says nothing: an attempt before it may have landed, and a 412 may be one's own write.
  What is there instead tells, under a floor read later: content that differs from what the attempt
  was made from, because the attempt cannot land on it any more.

Writers that meet at the end take turns without speaking to each other: the entries say who
appended last, and a writer lets pass those who have waited longer, one write's time for each. Who
has waited finds more to append, and groups grow. A writer that is alone never waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from headwater.buffer.queue.contract import Counters
from headwater.buffer.queue.native.chunk import Chunk, encode_chunk
from headwater.buffer.queue.native.chunks import Chunks, Held
from headwater.buffer.queue.native.turns import Turns
from headwater.core import runtime
from headwater.core.errors import (
    Bug,
    Conflict,
    Contended,
    OutcomeUnknown,
    Refused,
    RolledBack,
    Unavailable,
    staying_unknown,
)
from headwater.core.lease import Lease
from headwater.core.retry import Budget

# A writer that saw somebody else's write within this time looks before it writes.
COMPANY_S: Final = 10.0


class LostRace(Exception):
    """Another content stands where this one was to stand, and the tail knows it.

    It is somebody else's, most likely; it may also have grown from one's own.
    """


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
        self._met = Lease()
        """When the last chunk was first known here."""
        self.changed_s = runtime.monotonic_s()
        """When the last chunk was written, at the latest."""

    @property
    def chunk(self) -> Chunk:
        """The last chunk known."""
        return self.held.chunk

    @property
    def held(self) -> Held:
        """The last chunk known, and its version."""
        if self._held is None:
            raise Bug("the end of the queue was not looked for")
        return self._held

    @property
    def is_alone(self) -> bool:
        """Whether nobody else has been seen lately."""
        since = self._company_s
        return since is None or runtime.monotonic_s() - since > COMPANY_S

    async def find(self) -> Chunk:
        """Look for the end: the chunk that was last, and if it is closed, beyond it."""
        known = 0 if self._held is None else self.chunk.number
        if self._held is not None and not self.chunk.closed and known >= self.chunks.known_floor:
            held = await self.chunks.get(known)
            if held is not None and not held.chunk.closed:
                await self.go_on(held)
                return held.chunk
        await self.go_on(await self.chunks.last(max(known, self.chunks.known_floor)))
        return self.chunk

    async def go_on(self, held: Held) -> None:
        """Go on from what was found, if that is not behind what was there before."""
        before = 0 if self._held is None else self.chunk.next_sequence
        behind = held.chunk.next_sequence < before
        # Below the floor stands what a stalled writer left, with batches that are in no queue;
        # anywhere else the queue went back.
        numbers = (held.chunk.number, self.chunk.number) if behind else ()
        if behind and not any([await self.is_dead(number) for number in numbers]):
            raise RolledBack(
                f"{self.chunks.prefix} had {before} batches and has {held.chunk.next_sequence}: "
                "it went back"
            )
        self.adopt(held)

    def adopt(self, held: Held) -> None:
        """Go on from this chunk."""
        if self._held is None or held.version != self._held.version:
            self.changed_s = runtime.monotonic_s()
            if self._held is not None:
                self._company_s = self.changed_s
        self.turns.see(held.chunk)
        self._hold(held)

    def _hold(self, held: Held) -> None:
        if self._held is None or held.chunk.number != self.chunk.number:
            self._met = Lease()
        self._held = held

    async def write(self, chunk: Chunk) -> None:
        """Write the last chunk grown, or the one after it.

        `LostRace`: another write is there, which the tail knows; `Dead`: the number does not count
        any more; `OutcomeUnknown`: it may have landed or may still land; `Unavailable`, `Refused`:
        it has not and will not.
        """
        held = self.held
        began, began_s = Lease(), runtime.monotonic_s()
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
            raise LostRace from None
        if chunk.number == held.chunk.number:
            self.chunks.grown(chunk.number, met=self._met, began=began)
        if await self.is_dead(chunk.number):
            raise Dead  # and left to the collector, who knows for how long it has been
        if chunk.number != held.chunk.number:
            self.chunks.ends.created(chunk, self.counters)
        self._hold(Held(chunk, version))
        self.changed_s = runtime.monotonic_s()
        self.turns.see(chunk)
        self.turns.took(runtime.monotonic_s() - began_s)

    async def is_dead(self, number: int) -> bool:
        """Whether this number lies below the floor by now. Not knowing leaves the outcome open."""
        try:
            return await self.chunks.is_dead(number)
        except (Unavailable, Refused) as error:
            raise OutcomeUnknown(
                f"{self.chunks.key(number)} may have landed, and the floor that would tell cannot "
                f"be read: {error}"
            ) from error

    async def _adopt_current(self, number: int, conflict: Conflict) -> None:
        """Take what is there instead; look for the end if nothing is."""
        if conflict.current is not None:
            await self.go_on(self.chunks.held(number, conflict.current))
            return
        try:
            last = await self.chunks.last(number)
        except (Unavailable, Refused) as error:
            raise OutcomeUnknown(
                f"{self.chunks.key(number)} may have landed and be gone, and the end that would "
                f"tell cannot be read: {error}"
            ) from error
        await self.go_on(last)


async def write_note(tail: Tail, make: Callable[[Chunk], Chunk], budget: Budget) -> Chunk:
    """Write something that is no entry, made from the last chunk; returns the chunk it is in.

    An unknown outcome is met by another try: what is no entry may be said twice.
    """
    unknown: OutcomeUnknown | None = None
    while True:
        try:
            with staying_unknown(unknown):
                await tail.write(make(tail.chunk))
            return tail.chunk
        except (LostRace, Dead):
            pass
        except OutcomeUnknown as error:
            unknown = error
        if not await budget.pause():
            raise unknown or Contended(f"{tail.chunks.prefix}: others kept winning")
        # What was there before the wait is out of date: writing on top of it would lose again.
        with staying_unknown(unknown):
            await tail.find()


async def raise_schema_floor(
    tail: Tail, floor: int, check: Callable[[int], Awaitable[None]], budget: Budget
) -> None:
    """Let nothing be appended any more that was fitted to a schema older than `floor`.

    `check` is given the sequence after the last batch, and raises if one before it must not be
    there. It is called until nothing was appended between a check and the write that follows it:
    that write is made on top of the content that was checked.
    """
    unknown: OutcomeUnknown | None = None
    while True:
        with staying_unknown(unknown):
            last = await tail.find()
            await check(last.next_sequence)
            if last.schema_floor >= floor:
                return
        try:
            with staying_unknown(unknown):
                await tail.write(last.written(runtime.new_token(), schema_floor=floor))
            return
        except (LostRace, Dead):
            pass
        except OutcomeUnknown as error:
            # Said twice, it means the same; and what was appended on top of it has been checked.
            unknown = error
        if not await budget.pause():
            raise unknown or Contended(f"{tail.chunks.prefix}: others kept winning")
