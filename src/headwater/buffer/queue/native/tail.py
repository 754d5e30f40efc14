"""The end of a queue, as one writer knows it: adds to the last chunk, or creates the next.

A chunk is created by the first writer that gets there, and only after a closed one, so the entries
before it are final, and so are its first sequence and LSN.

- A write that succeeded counts only if the floor is at or below its number afterwards. A writer
  that stalled before its create may find its number free because the real chunk was read and
  deleted; and other writers may add to the chunk that it then creates.
- A refusal alone decides nothing: an earlier attempt may have landed, and a 412 may be caused by
  the writer's own write. The content decides, under a floor that is read later: once it differs
  from the content that the attempt was made from, the attempt can no longer land on it.

Writers that meet at the end take turns (turns.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from headwater.buffer.queue.contract import Counters
from headwater.buffer.queue.native.chunk import (
    NO_BATCH_FLOOR,
    Chunk,
    ProducerIncarnation,
    encode_chunk,
)
from headwater.buffer.queue.native.chunk_log import ChunkLog, StoredChunk
from headwater.buffer.queue.native.turns import AppendTurns
from headwater.core import limits, runtime
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
from headwater.core.retry import RetryPolicy

# A writer that saw another one's write within this time reads the chunk before it writes.
COMPANY_S: Final = 10.0


class LostRace(Exception):
    """The object has another content, which the tail now knows.

    Most likely another writer's; it may also have grown from this writer's own.
    """


class DeadNumber(Exception):
    """The number is below the floor: what was created there does not count."""


class QueueTail:
    """The last chunk that one writer knows."""

    def __init__(self, chunks: ChunkLog, counters: Counters, producer: str = "") -> None:
        self.chunks = chunks
        self.counters = counters
        self.turns = AppendTurns(producer)
        self._stored: StoredChunk | None = None
        self._company_s: float | None = None
        self._met = Lease()
        """When the last chunk was first known here."""
        self.changed_s = runtime.monotonic_s()
        """When the last chunk was written, at the latest."""

    @property
    def chunk(self) -> Chunk:
        return self.stored.chunk

    @property
    def stored(self) -> StoredChunk:
        """The last chunk known, and its version."""
        if self._stored is None:
            raise Bug("the end of the queue was not looked for")
        return self._stored

    @property
    def is_alone(self) -> bool:
        """Whether no other writer has been seen lately."""
        since = self._company_s
        return since is None or runtime.monotonic_s() - since > COMPANY_S

    async def find(self) -> Chunk:
        """Search for the end: begin at the last known chunk, and continue if it is closed."""
        number = 0 if self._stored is None else self.chunk.number
        if self._stored is not None and not self.chunk.closed and number >= self.chunks.chunk_floor:
            stored = await self.chunks.load(number)
            if stored is not None and not stored.chunk.closed:
                await self.go_on(stored)
                return stored.chunk
        await self.go_on(await self.chunks.last(max(number, self.chunks.chunk_floor)))
        return self.chunk

    async def go_on(self, stored: StoredChunk) -> None:
        """Continue from this chunk; `RolledBack` if it is behind the last known one."""
        before = 0 if self._stored is None else self.chunk.next_sequence
        behind = stored.chunk.next_sequence < before
        # Below the floor it is what a stalled writer left, with batches that are in no queue;
        # anywhere else the queue went back.
        numbers = (stored.chunk.number, self.chunk.number) if behind else ()
        if behind and not any([await self.is_dead(number) for number in numbers]):
            raise RolledBack(
                f"{self.chunks.prefix} had {before} batches and has {stored.chunk.next_sequence}: "
                "it went back"
            )
        self.adopt(stored)

    def adopt(self, stored: StoredChunk) -> None:
        if self._stored is None or stored.version != self._stored.version:
            self.changed_s = runtime.monotonic_s()
            if self._stored is not None:
                self._company_s = self.changed_s
        self.turns.see(stored.chunk)
        self._hold(stored)

    def _hold(self, stored: StoredChunk) -> None:
        if self._stored is None or stored.chunk.number != self.chunk.number:
            self._met = Lease()
        self._stored = stored

    async def write(self, chunk: Chunk) -> None:
        """Write the last chunk grown, or the one after it.

        `LostRace`: another write is there, which the tail now knows. `DeadNumber`: the number does
        not count any more. `OutcomeUnknown`: it may have landed or may still land. `Unavailable`,
        `Refused`: it has not landed and will not.
        """
        stored = self.stored
        began, began_s = Lease(), runtime.monotonic_s()
        self.counters.writes += 1
        key, data = self.chunks.key(chunk.number), encode_chunk(chunk)
        try:
            if chunk.number == stored.chunk.number:
                version = await self.chunks.store.put_if_unchanged(
                    key, data, stored.version, token=chunk.token
                )
            else:
                version = await self.chunks.store.put_if_absent(key, data, token=chunk.token)
        except Conflict as conflict:
            self.counters.conflicts += 1
            await self._adopt_current(chunk.number, conflict)
            raise LostRace from None
        if chunk.number == stored.chunk.number:
            self.chunks.grown(chunk.number, met=self._met, began=began)
        if await self.is_dead(chunk.number):
            raise DeadNumber  # and left to the collector, who knows for how long it has been
        if chunk.number != stored.chunk.number:
            self.chunks.ends.note_created(chunk, self.counters)
        self._hold(StoredChunk(chunk, version))
        self.changed_s = runtime.monotonic_s()
        self.turns.see(chunk)
        self.turns.took(runtime.monotonic_s() - began_s)

    async def is_dead(self, number: int) -> bool:
        """Whether this number is below the floor by now; `OutcomeUnknown` if that is not known."""
        try:
            return await self.chunks.is_dead(number)
        except (Unavailable, Refused) as error:
            raise OutcomeUnknown(
                f"{self.chunks.key(number)} may have landed, and the floor that shows it cannot "
                f"be read: {error}"
            ) from error

    async def _adopt_current(self, number: int, conflict: Conflict) -> None:
        if conflict.current is not None:
            await self.go_on(self.chunks.decode(number, conflict.current))
            return
        try:
            last = await self.chunks.last(number)
        except (Unavailable, Refused) as error:
            raise OutcomeUnknown(
                f"{self.chunks.key(number)} may have landed and be gone, and the end that "
                f"shows it cannot be read: {error}"
            ) from error
        await self.go_on(last)


async def write_note(
    tail: QueueTail,
    *,
    opened: Sequence[ProducerIncarnation] = (),
    batch_floor: str = NO_BATCH_FLOOR,
    schema_floor: int = 0,
    check: Callable[[int], Awaitable[None]] | None = None,
) -> Chunk:
    """Write something that is not an entry on top of the last chunk; returns the chunk it is in.

    After an unknown outcome it is written again: a note means the same if it is there twice.
    `check` gets the sequence after the last batch, and raises if one before it must not be there.
    It is called until nothing was appended between a check and the write that follows it: that
    write is made on top of the content that was checked.
    """
    budget = RetryPolicy().start(attempts=limits.APPEND_ATTEMPTS)
    unknown: OutcomeUnknown | None = None
    while True:
        if check is not None:
            with staying_unknown(unknown):
                await check(tail.chunk.next_sequence)
        note = tail.chunk.written(
            runtime.new_token(), opened=opened, batch_floor=batch_floor, schema_floor=schema_floor
        )
        try:
            with staying_unknown(unknown):
                await tail.write(note)
            return tail.chunk
        except (LostRace, DeadNumber):
            pass
        except OutcomeUnknown as error:
            unknown = error
        if not await budget.pause():
            raise unknown or Contended(f"{tail.chunks.prefix}: others kept winning")
        # What was there before the wait is out of date: writing on top of it would lose again.
        with staying_unknown(unknown):
            await tail.find()
