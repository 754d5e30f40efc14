"""Limits for the jobs: bytes per second, and bytes in memory over all partitions of a process."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from headwater.core import limits, runtime


class ByteRate:
    """Lets whoever moves bytes wait for what was moved before; -1 lets everybody through."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    def change(self, bytes_per_s: int) -> None:
        """Let so many through from now on, also for whoever is in the middle of something."""
        self._bytes_per_s = bytes_per_s
        self._free_at_s = min(self._free_at_s, runtime.monotonic_s())

    async def take(self, size_bytes: int) -> None:
        """Wait until so many may be moved: an object larger than a second's worth holds up what
        comes after it, not itself."""
        wait_s = self._free_at_s - runtime.monotonic_s()
        self.spend(size_bytes)
        if wait_s > 0:
            await runtime.sleep(wait_s)

    def spend(self, size_bytes: int) -> None:
        """So many are moved: whoever comes next waits for them."""
        if self._bytes_per_s > 0:
            begins_s = max(runtime.monotonic_s(), self._free_at_s)
            self._free_at_s = begins_s + size_bytes / self._bytes_per_s


NO_RATE: Final = ByteRate(-1)


class ByteReservation:
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
        self._waiting: deque[ByteReservation] = deque()
        self._lock = threading.Lock()
        """Held for moments, and never while somebody waits."""

    @asynccontextmanager
    async def hold(self, size_bytes: int) -> AsyncIterator[None]:
        """Hold so many; who asks for more than there are gets all of them, and is alone."""
        turn = ByteReservation(min(size_bytes, self._size_bytes))
        with self._lock:
            self._waiting.append(turn)
            self._serve()
        try:
            await turn.wait()
            yield
        finally:
            self._leave(turn)

    def _leave(self, turn: ByteReservation) -> None:
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
