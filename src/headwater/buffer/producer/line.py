"""The line before a producer's buffer: calls are kept in the order in which they began.

A call that has to wait for anything (a thread that checks its columns, the stream's register, room
in the buffer) has a place in the line from its beginning. Without it, a small call that began later
would be kept first. A call that waits for nothing needs no place while the line is empty.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from headwater.buffer.producer.accumulator import Accumulator
from headwater.buffer.producer.handle import Handle
from headwater.core.errors import Unavailable


class BufferFull(Unavailable):
    """No room for this call, in the time it was given. Nothing of it was kept."""

    def __init__(self, message: str, *, entries: Any) -> None:
        super().__init__(message)
        self.entries = entries
        """What was refused, as it was given."""


class Place:
    """One call's place in the line."""

    __slots__ = ("_tickets", "turn")

    def __init__(self, tickets: deque[Place]) -> None:
        self._tickets = tickets
        self.turn = asyncio.Event()

    @property
    def is_first(self) -> bool:
        """Whether every earlier call was kept, or will not be."""
        return self._tickets[0] is self

    @property
    def is_alone(self) -> bool:
        """Whether no other call is in line, before this one or behind it."""
        return len(self._tickets) == 1


class Line:
    """The line before one producer's buffer. For the tasks of its event loop."""

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator
        self._tickets: deque[Place] = deque()

    @contextlib.contextmanager
    def place(self) -> Iterator[Place]:
        """A place at the end of the line, for as long as the call takes."""
        place = Place(self._tickets)
        self._tickets.append(place)
        self._accumulator.line_is(len(self._tickets))
        try:
            yield place
        finally:
            self._tickets.remove(place)
            self._accumulator.line_is(len(self._tickets))
            self.move()

    async def stand(
        self,
        place: Place,
        attempt: Callable[[], Handle | None],
        timeout_s: float | None,
        *,
        only_once: bool = False,
    ) -> Handle | None:
        """Try once those before have gone, and then whenever something was released.

        `TimeoutError` when the time is over; with `only_once`, None if there is no room. A call
        that is cancelled or too late has taken nothing: between the attempt that works and the
        return there is nowhere to be interrupted.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                if place.is_first or self._accumulator.refusal is not None:
                    handle = attempt()
                    if handle is not None or only_once:
                        return handle
                place.turn.clear()
                await place.turn.wait()

    def move(self) -> None:
        """Something was released, or a call left the line: let the first one try.

        Once all calls are refused, nobody waits for those before it.
        """
        if self._accumulator.refusal is not None:
            for place in self._tickets:
                place.turn.set()
        elif self._tickets:
            self._tickets[0].turn.set()
