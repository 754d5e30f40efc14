"""What a stream really holds, and what was said of every record that anybody produced.

The log is filled as the store applies appends, by the truth of the stream's format. Every value is
given once, so a value names the call that gave it. Checked at the instant of an append:

- no value lands twice, none lands that was told to be dropped, and those of one producer land in
  the order of its calls;
- a source that resumes lands each of its positions once, in order, whatever its lives were told.

Checked when a reader is handed a batch: that it is the batch of its sequence, byte for byte, under
its LSNs, each record with the metadata of its call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headwater.buffer.consumer import ConsumedBatch, LostRecords
from headwater.buffer.producer import Handle
from headwater.buffer.queue.v1.appender import UNKNOWN_LSN
from headwater.core.errors import Unavailable
from headwater.testing import Simulation
from tests.torture.surroundings import require


@dataclass(frozen=True)
class Attempt:
    """One call of `produce`: whose, its number among all of that life, and what it gave."""

    producer: str
    life: int
    number: int
    values: tuple[bytes, ...]
    metadata: bytes | None
    position: int | None = None
    """Of a source that resumes: which of its positions this is."""


@dataclass(frozen=True)
class Landed:
    """A batch of the queue."""

    sequence: int
    first_lsn: int
    values: tuple[bytes, ...]

    @property
    def next_lsn(self) -> int:
        """The LSN after the last record."""
        return self.first_lsn + len(self.values)


class Log:
    """Every batch by its sequence, every record by its LSN."""

    def __init__(self, simulation: Simulation, *, is_v1: bool) -> None:
        self._simulation = simulation
        self._is_v1 = is_v1
        self.batches: list[Landed] = []
        self.values: list[bytes] = []
        """By LSN, from 1 on."""
        self.lsn_of: dict[bytes, int] = {}
        self.on_landed: Callable[[int], None] | None = None
        """Hears of every batch, by its sequence."""
        self.damaged: set[int] = set()
        """Sequences whose objects were damaged behind everybody's back."""
        self.lost: set[int] = set()
        """Sequences that somebody was told are lost."""
        self._given: dict[bytes, tuple[Attempt, int]] = {}
        self._barred: dict[bytes, str] = {}
        """What may not land, and why."""
        self._last: dict[tuple[str, int], tuple[int, int]] = {}
        """By producer and life: call and record that landed last."""
        self._reached: dict[str, tuple[int, int, int]] = {}
        """By source: position, how many of its records, and of how many, landed last."""

    def check(self, holds: bool, message: str) -> None:
        """End the history if a promise is broken."""
        require(self._simulation, holds, message)

    @property
    def next_lsn(self) -> int:
        """The LSN that the next record gets."""
        return len(self.values) + 1

    def position_after(self, source: str) -> int:
        """The position that a source has to go on with."""
        return self._reached.get(source, (-1, 0, 0))[0] + 1

    # What producers gave and were told

    def give(self, attempt: Attempt) -> None:
        """A call is about to be made."""
        for index, value in enumerate(attempt.values):
            self._given[value] = (attempt, index)

    def refused(self, attempt: Attempt) -> None:
        """The call raised or was cancelled: nothing of it was kept."""
        self._bar(attempt.values, "its call was not kept")

    def told(self, attempt: Attempt, handle: Handle) -> bool:
        """The handle has been told; says whether all of it is accepted."""
        first, whole = 0, True
        for batch, _, rows in handle._ranges():
            values = attempt.values[first : first + rows]
            first += rows
            if batch.error is None:
                self.check(batch.placed is not None, "neither accepted nor failed")
            elif batch.placed is None and isinstance(batch.error, Unavailable):
                self._bar(values, f"it was told {batch.error!r}")
            whole = whole and batch.error is None
        self.check(first == len(attempt.values), f"{first} of {len(attempt.values)} were answered")
        for part in handle.accepted():
            landed = self.batches[part.sequence] if part.sequence < len(self.batches) else None
            self.check(landed is not None, f"told batch {part.sequence}, which is not there")
            assert landed is not None
            if part.first_lsn == UNKNOWN_LSN and self._is_v1:
                continue
            there = self.values[part.first_lsn - 1 : part.last_lsn]
            ours = [value for value in landed.values if value in attempt.values]
            self.check(there == ours, f"told LSN {part.first_lsn} of {ours}, and there is {there}")
        return whole

    def _bar(self, values: Sequence[bytes], why: str) -> None:
        for value in values:
            self.check(value not in self.lsn_of, f"{value!r} has landed, and yet {why}")
            self._barred[value] = why

    # What the store applied

    def land(self, sequence: int, first_lsn: int, values: Sequence[bytes]) -> None:
        """A batch was appended."""
        self.check(sequence == len(self.batches), f"{sequence} follows {len(self.batches) - 1}")
        self.check(first_lsn == self.next_lsn, f"LSN {first_lsn} follows {self.next_lsn - 1}")
        self.batches.append(Landed(sequence, first_lsn, tuple(values)))
        for value in values:
            self._land_value(value)
        if self.on_landed is not None:
            self.on_landed(sequence)

    def _land_value(self, value: bytes) -> None:
        self.check(value in self._given, f"{value!r} was never produced")
        self.check(value not in self.lsn_of, f"{value!r} landed twice")
        barred = self._barred.get(value)
        self.check(barred is None, f"{value!r} landed, and {barred}")
        attempt, index = self._given[value]
        life = (attempt.producer, attempt.life)
        before = self._last.get(life, (-1, 0))
        self.check(before < (attempt.number, index), f"{value!r} landed after {before}")
        self._last[life] = (attempt.number, index)
        if attempt.position is not None:
            self._land_position(attempt, attempt.position, index)
        self.lsn_of[value] = self.next_lsn
        self.values.append(value)

    def _land_position(self, attempt: Attempt, position: int, index: int) -> None:
        reached, done, count = self._reached.get(attempt.producer, (-1, 0, 0))
        right = (
            (position, index) == (reached + 1, 0)
            if done == count
            else (position, index) == (reached, done)
        )
        self.check(
            right,
            f"{attempt.producer}: position {position}.{index} landed after {done} of {count} "
            f"records of position {reached}",
        )
        self._reached[attempt.producer] = (position, index + 1, len(attempt.values))

    # What readers are handed

    def check_delivered(self, batch: ConsumedBatch) -> None:
        """A reader was handed the batch that has this sequence, or was told that it is lost."""
        self.check(batch.sequence < len(self.batches), f"{batch} does not exist")
        real = self.batches[batch.sequence]
        if batch.lost is not None:
            self.lost.add(batch.sequence)
            self.check_lost(batch.lost)
            return
        delivered = tuple(batch.entries)
        self.check(delivered == real.values, f"{batch} holds {delivered}, not {real.values}")
        self.check(batch.first_lsn == real.first_lsn, f"{batch} begins at {real.first_lsn}")
        if delivered:
            starts = [call.start_index for call in batch.metadata] + [len(delivered)]
            payloads = [
                call.payload
                for call, end in zip(batch.metadata, starts[1:], strict=True)
                for _ in range(call.start_index, end)
            ]
            self.check(payloads == self.payloads(real.values), f"{batch} has other metadata")

    def check_lost(self, lost: LostRecords) -> None:
        """Only what was damaged is lost, and it keeps its LSNs."""
        lsns = (lost.first_lsn, lost.last_lsn + 1)
        damaged = {(self.batches[s].first_lsn, self.batches[s].next_lsn) for s in self.damaged}
        self.check(lsns in damaged, f"{lost} is lost, and damaged are {damaged}")

    def payloads(self, values: Sequence[bytes]) -> list[bytes | None]:
        """The metadata that each of these records came with, as a reader sees them."""
        found = [self._given[value][0].metadata for value in values]
        return [one or b"" for one in found] if self._is_v1 else list(found)
