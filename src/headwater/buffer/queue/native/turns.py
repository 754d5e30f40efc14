"""Whose turn it is to append, as far as the entries tell.

Only a courtesy: nothing depends on it but how often writers meet.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headwater.buffer.queue.native.chunk import Chunk
from headwater.core import runtime

SLOT_LEAST_S: Final = 0.0005
# A write that took longer says nothing of the store: the machine stood still, or a retry waited.
SLOT_MOST_S: Final = 1.0
# Who appended nothing among the last so many batches is forgotten.
RECENT_SEQUENCES: Final = 512
# Who appended nothing for so many rounds is not waited for; who came only once, for fewer.
ROUNDS_ABSENT: Final = 6.0
ROUNDS_ABSENT_AFTER_ONE: Final = 3.0
# Of those who came only once, no more than so many are waited for.
CAME_ONCE_MOST: Final = 32
# Nobody waits longer than this: a producer gives its records up after some time.
WAIT_MOST_S: Final = 20.0
# The time of one turn, in units of one write.
PATIENCE: Final = 2.0
# How far writers that met move apart, in turns.
APART: Final = 2.0


class Seen(NamedTuple):
    """The last append of a writer."""

    sequence: int
    at_s: float
    again: bool
    """Whether it was not the first."""

    def turns(self, now_s: float, slot_s: float) -> float:
        """How many turns a round must have for this one to be among them."""
        absent = ROUNDS_ABSENT if self.again else ROUNDS_ABSENT_AFTER_ONE
        return (now_s - self.at_s) / (absent * slot_s)


class Turns:
    """The order in which writers appended last, as one of them knows it."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._slot_s = SLOT_LEAST_S
        self._seen: dict[str, Seen] = {}
        self._has_looked = False
        self._appended_s = runtime.monotonic_s()

    def see(self, chunk: Chunk) -> None:
        """Take in who appended."""
        now_s, now_ms = runtime.monotonic_s(), runtime.wall_ms()
        for offset, entry in enumerate(chunk.entries):
            producer = chunk.owners[entry.owner].producer
            sequence, seen = chunk.first_sequence + offset, self._seen.get(producer)
            if seen is None or sequence > seen.sequence:
                # What is there at the first look may be from long ago, and its writer gone.
                age_s = 0.0 if self._has_looked else max(0.0, (now_ms - entry.max_ms) / 1000)
                again = seen is not None and (sequence > seen.sequence + 1 or seen.again)
                self._seen[producer] = Seen(sequence, now_s - age_s, again)
        self._has_looked = True
        oldest = chunk.next_sequence - RECENT_SEQUENCES
        self._seen = {name: one for name, one in self._seen.items() if one.sequence >= oldest}

    def took(self, seconds: float) -> None:
        """An append of one's own landed, and its write took so long."""
        slot_s = min(SLOT_MOST_S, max(SLOT_LEAST_S, seconds))
        self._slot_s += (slot_s - self._slot_s) / 4
        self._appended_s = runtime.monotonic_s()

    def wait_s(self, lost: int) -> float:
        """How long to let others pass: not at all while there is room for everybody.

        Each has one turn in a round, and keeps its place in the round from append to append.
        Those who met move apart by chance.
        """
        slot_s = PATIENCE * self._slot_s
        if lost:
            return runtime.random().uniform(0, APART * slot_s)
        round_s = min(WAIT_MOST_S, (1 + self._others(slot_s)) * slot_s)
        return max(0.0, self._appended_s + round_s - runtime.monotonic_s())

    def _others(self, slot_s: float) -> int:
        """How many others have a turn: as many as appended within a few rounds of so many.

        Counting whoever appended among the last batches would let those who came once, and left,
        make everybody wait who stays.
        """
        now_s, count = runtime.monotonic_s(), 0
        others = [one for name, one in self._seen.items() if name != self._me]
        once = sorted(one.turns(now_s, slot_s) for one in others if not one.again)
        again = [one.turns(now_s, slot_s) for one in others if one.again]
        for number, turns in enumerate(sorted(again + once[:CAME_ONCE_MOST]), start=1):
            if turns <= 1 + number:
                count = number
        return count
