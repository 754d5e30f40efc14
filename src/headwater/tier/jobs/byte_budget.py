"""So many bytes in memory at once, whoever holds them: all partitions of a process share one."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from headwater.core import limits


class Turn:
    """Somebody who waits, on an event loop of its own."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.has_come = False
        self._loop = asyncio.get_running_loop()
        self._told: asyncio.Future[None] = self._loop.create_future()

    async def wait(self) -> None:
        """Until it has come."""
        await self._told

    def tell(self) -> bool:
        """Say that it has come; whether anybody is there to hear it."""
        if self._loop is asyncio.get_running_loop():
            self._hear()
            return True
        try:
            self._loop.call_soon_threadsafe(self._hear)
        except RuntimeError:
            return False  # its loop was closed under it
        return True

    def _hear(self) -> None:
        if not self._told.done():
            self._told.set_result(None)


class ByteBudget:
    """Lets those wait for whom there is no room, in the order in which they came.

    For any number of event loops: a process may have one in each of several threads.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._held_bytes = 0
        self._waiting: deque[Turn] = deque()
        self._lock = threading.Lock()
        """Held for moments, and never while somebody waits."""

    @asynccontextmanager
    async def hold(self, size_bytes: int) -> AsyncIterator[None]:
        """Hold so many; who asks for more than there are gets all of them, and is alone."""
        turn = Turn(min(size_bytes, self._size_bytes))
        with self._lock:
            self._waiting.append(turn)
            self._serve()
        try:
            await turn.wait()
            yield
        finally:
            self._leave(turn)

    def _leave(self, turn: Turn) -> None:
        """Done, or cancelled: perhaps while it waited, perhaps just when its turn had come."""
        with self._lock:
            if turn.has_come:
                self._held_bytes -= turn.size_bytes
            else:
                self._waiting.remove(turn)
            self._serve()

    def _serve(self) -> None:
        while self._waiting and self._held_bytes + self._waiting[0].size_bytes <= self._size_bytes:
            turn = self._waiting.popleft()
            turn.has_come = turn.tell()
            if turn.has_come:
                self._held_bytes += turn.size_bytes


COPY_MEMORY: Final = ByteBudget(limits.TIER_COPY_BYTES)
"""Of all copies of this process."""
