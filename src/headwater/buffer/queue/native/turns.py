"""Turns of the writers that append to one queue.

Writers that meet at the end take turns without messages: the entries show which writers appended
last, and a writer lets those pass that have waited longer, one write's time for each. A writer that
waited has more to append, so groups grow. A lone writer never waits. Turns only reduce collisions:
correctness does not depend on them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headwater.buffer.queue.native.chunk import Chunk
from headwater.core import runtime

WRITE_LEAST_S: Final = 0.0005
# A write that took longer says nothing of the store: the machine stood still, or a retry waited.
WRITE_MOST_S: Final = 1.0
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

    def turns(self, now_s: float, turn_s: float) -> float:
        """How many turns a round must have for this one to be among them."""
        absent = ROUNDS_ABSENT if self.again else ROUNDS_ABSENT_AFTER_ONE
        return (now_s - self.at_s) / (absent * turn_s)


class AppendTurns:
    """The order in which writers appended last, as one of them knows it."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._write_s = WRITE_LEAST_S
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
        """Count an append of this writer that landed, and how long its write took."""
        write_s = min(WRITE_MOST_S, max(WRITE_LEAST_S, seconds))
        self._write_s += (write_s - self._write_s) / 4
        self._appended_s = runtime.monotonic_s()

    def wait_s(self, lost: int) -> float:
        """How long to let other writers append first; 0 while there is time for all.

        Each writer has one turn in a round, and keeps its place in the round from append to
        append. Writers that met move apart at random.
        """
        turn_s = PATIENCE * self._write_s
        if lost:
            return runtime.random().uniform(0, APART * turn_s)
        round_s = min(WAIT_MOST_S, (1 + self._others(turn_s)) * turn_s)
        return max(0.0, self._appended_s + round_s - runtime.monotonic_s())

    def _others(self, turn_s: float) -> int:
        """How many others have a turn: as many as appended within a few rounds of so many.

        To count all writers of the last batches would make those that stay wait for those that
        came once and left.
        """
        now_s, count = runtime.monotonic_s(), 0
        others = [one for name, one in self._seen.items() if name != self._me]
        once = sorted(one.turns(now_s, turn_s) for one in others if not one.again)
        again = [one.turns(now_s, turn_s) for one in others if one.again]
        for number, turns in enumerate(sorted(again + once[:CAME_ONCE_MOST]), start=1):
            if turns <= 1 + number:
                count = number
        return count
