"""Callers who wait for room in the buffer: first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
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


class Line:
    """The line before one producer's buffer."""

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator
        self._tickets: deque[asyncio.Event] = deque()

    async def stand(self, attempt: Callable[[], Handle | None], timeout_s: float | None) -> Handle:
        """Try whenever something was released, once those before have their place.

        `TimeoutError` when the time is over. Whoever is cancelled or too late has taken nothing:
        between the attempt that works and the return there is nowhere to be interrupted.
        """
        ticket = asyncio.Event()
        self._tickets.append(ticket)
        self._accumulator.line_is(len(self._tickets))
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    if self._tickets[0] is ticket:
                        handle = attempt()
                        if handle is not None:
                            return handle
                    ticket.clear()
                    await ticket.wait()
        finally:
            self._tickets.remove(ticket)
            self._accumulator.line_is(len(self._tickets))
            self.move()

    def move(self) -> None:
        """Something was released, or somebody left: let the first in line look."""
        if self._tickets:
            self._tickets[0].set()
