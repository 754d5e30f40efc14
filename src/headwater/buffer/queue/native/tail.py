"""The end of a queue, as one writer knows it: adds to the last chunk, or creates the next.

A chunk is created by the first writer that gets there, and only after a closed one, so the entries
before it are final, and so are its first sequence and LSN.

- A write that succeeded counts only if the floor is at or below its number afterwards. A writer
  that stalled before its create may find its number free because the real chunk was read and
  deleted; and other writers may add to the chunk that it then creates.
- A refusal alone decides nothing: an earlier attempt may have landed, and a 412 may be caused by
  the writer's own write. The content decides, under a floor that is read later: once it differs
  from the content that the attempt was made from, the attempt can no longer land on it.

Writers that meet at the end take turns without messages: the entries show which writers appended
last, and a writer lets those pass that have waited longer, one write's time for each. A writer that
waited has more to append, so groups grow. A lone writer never waits. Turns only reduce collisions:
correctness does not depend on them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from headwater.buffer.queue.contract import Counters
from headwater.buffer.queue.native.chunk import (
    NO_BATCH_FLOOR,
    Chunk,
    ProducerIncarnation,
    encode_chunk,
)
from headwater.buffer.queue.native.chunk_log import ChunkLog, StoredChunk
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


SLOT_LEAST_S: Final = 0.0005
# A write that took longer says nothing of the store: the machine stood still, or a retry waited.
SLOT_MOST_S: Final = 1.0
# A writer without a batch among the last so many is forgotten.
RECENT_SEQUENCES: Final = 512
# A writer that appended nothing for so many rounds is not waited for; after one append, for fewer.
ROUNDS_ABSENT: Final = 6.0
ROUNDS_ABSENT_AFTER_ONE: Final = 3.0
# Of the writers that appended once, no more than so many are waited for.
CAME_ONCE_MOST: Final = 32
# No writer waits longer than this: a producer gives its records up after some time.
WAIT_MOST_S: Final = 20.0
# The time of one turn, in units of one write.
PATIENCE: Final = 2.0
# How far writers that met move apart, in turns.
APART: Final = 2.0


class LastAppend(NamedTuple):
    """The last append of a writer."""

    sequence: int
    at_s: float
    again: bool
    """Whether it was not the first."""

    def turns(self, now_s: float, slot_s: float) -> float:
        """How many turns a round must have for this one to be among them."""
        absent = ROUNDS_ABSENT if self.again else ROUNDS_ABSENT_AFTER_ONE
        return (now_s - self.at_s) / (absent * slot_s)


class AppendTurns:
    """The order in which writers appended last, as one of them knows it."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._slot_s = SLOT_LEAST_S
        self._seen: dict[str, LastAppend] = {}
        self._has_looked = False
        self._appended_s = runtime.monotonic_s()

    def see(self, chunk: Chunk) -> None:
        now_s, now_ms = runtime.monotonic_s(), runtime.wall_ms()
        for offset, entry in enumerate(chunk.entries):
            producer = chunk.owners[entry.owner].producer
            sequence, seen = chunk.first_sequence + offset, self._seen.get(producer)
            if seen is None or sequence > seen.sequence:
                # Entries of the first chunk that is read may be old, and their writers closed.
                age_s = 0.0 if self._has_looked else max(0.0, (now_ms - entry.max_ms) / 1000)
                again = seen is not None and (sequence > seen.sequence + 1 or seen.again)
                self._seen[producer] = LastAppend(sequence, now_s - age_s, again)
        self._has_looked = True
        oldest = chunk.next_sequence - RECENT_SEQUENCES
        self._seen = {name: one for name, one in self._seen.items() if one.sequence >= oldest}

    def took(self, seconds: float) -> None:
        """Note that an append of this writer landed, and how long its write took."""
        slot_s = min(SLOT_MOST_S, max(SLOT_LEAST_S, seconds))
        self._slot_s += (slot_s - self._slot_s) / 4
        self._appended_s = runtime.monotonic_s()

    def wait_s(self, lost: int) -> float:
        """How long to let other writers append first; 0 while there is time for all.

        Each writer has one turn in a round, and keeps its place in the round from append to
        append. Writers that met move apart at random.
        """
        slot_s = PATIENCE * self._slot_s
        if lost:
            return runtime.random().uniform(0, APART * slot_s)
        round_s = min(WAIT_MOST_S, (1 + self._others(slot_s)) * slot_s)
        return max(0.0, self._appended_s + round_s - runtime.monotonic_s())

    def _others(self, slot_s: float) -> int:
        """How many others have a turn: as many as appended within a few rounds of so many.

        To count all writers of the last batches would make those that stay wait for those that
        came once and left.
        """
        now_s, count = runtime.monotonic_s(), 0
        others = [one for name, one in self._seen.items() if name != self._me]
        once = sorted(one.turns(now_s, slot_s) for one in others if not one.again)
        again = [one.turns(now_s, slot_s) for one in others if one.again]
        for number, turns in enumerate(sorted(again + once[:CAME_ONCE_MOST]), start=1):
            if turns <= 1 + number:
                count = number
        return count
