"""Whose turn it is to append, as far as the entries tell.

Only a courtesy: nothing depends on it but how often writers meet.
"""

from __future__ import annotations

from typing import Final

from headwater.buffer.queue.native.chunk import Chunk
from headwater.core import runtime

SLOT_LEAST_S: Final = 0.0005
# A write that took longer says nothing of the store: the machine stood still, or a retry waited.
SLOT_MOST_S: Final = 1.0
# Who appended nothing among the last so many batches is not waited for.
RECENT_SEQUENCES: Final = 512
# The time of one turn, in units of one write.
PATIENCE: Final = 2.0
# How far writers that met move apart, in turns.
APART: Final = 2.0


class Turns:
    """The order in which writers appended last, as one of them knows it."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._slot_s = SLOT_LEAST_S
        self._last: dict[str, int] = {}
        self._appended_s = runtime.monotonic_s()

    def see(self, chunk: Chunk) -> None:
        """Take in who appended."""
        for offset, entry in enumerate(chunk.entries):
            producer = chunk.owners[entry.owner].producer
            sequence = chunk.first_sequence + offset
            if sequence > self._last.get(producer, -1):
                self._last[producer] = sequence
        oldest = chunk.next_sequence - RECENT_SEQUENCES
        self._last = {name: at for name, at in self._last.items() if at >= oldest}

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
        return max(0.0, self._appended_s + len(self._last) * slot_s - runtime.monotonic_s())
