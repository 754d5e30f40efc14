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
    """Limits the average number of bytes per second; -1 means no limit."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    def change(self, bytes_per_s: int) -> None:
        """Set another limit, also for a job that is running."""
        self._bytes_per_s = bytes_per_s
        self._free_at_s = min(self._free_at_s, runtime.monotonic_s())

    async def take(self, size_bytes: int) -> None:
        """Wait for the bytes before these. An object larger than a second's worth delays the next
        one, not itself."""
        wait_s = self._free_at_s - runtime.monotonic_s()
        self.spend(size_bytes)
        if wait_s > 0:
            await runtime.sleep(wait_s)

    def spend(self, size_bytes: int) -> None:
        """Count bytes without waiting: the next `take` waits for them."""
        if self._bytes_per_s > 0:
            begins_s = max(runtime.monotonic_s(), self._free_at_s)
            self._free_at_s = begins_s + size_bytes / self._bytes_per_s


NO_RATE: Final = ByteRate(-1)


class ByteReservation:
    """One waiter for a share of a budget, on its own event loop."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.is_granted = False
        self._loop = asyncio.get_running_loop()
        self._granted: asyncio.Future[None] = self._loop.create_future()

    async def wait(self) -> None:
        await self._granted

    def grant(self) -> bool:
        """Wake the waiter; returns whether its event loop still runs."""
        if self._loop is asyncio.get_running_loop():
            self._wake()
            return True
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            return False  # its loop was closed
        return True

    def _wake(self) -> None:
        if not self._granted.done():
            self._granted.set_result(None)


class ByteBudget:
    """Limits the bytes that are held at once. Waiters are served in order.

    Works over any number of event loops: a process may have one in each of several threads.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._held_bytes = 0
        self._waiting: deque[ByteReservation] = deque()
        self._lock = threading.Lock()
        """Held briefly, and never during a wait."""

    @asynccontextmanager
    async def hold(self, size_bytes: int) -> AsyncIterator[None]:
        """Hold so many bytes; a request above the budget gets all of it, alone."""
        reservation = ByteReservation(min(size_bytes, self._size_bytes))
        with self._lock:
            self._waiting.append(reservation)
            self._serve()
        try:
            await reservation.wait()
            yield
        finally:
            self._release(reservation)

    def _release(self, reservation: ByteReservation) -> None:
        """After use, or after a cancellation: before or just when it was granted."""
        with self._lock:
            if reservation.is_granted:
                self._held_bytes -= reservation.size_bytes
            else:
                self._waiting.remove(reservation)
            self._serve()

    def _serve(self) -> None:
        while self._waiting and self._held_bytes + self._waiting[0].size_bytes <= self._size_bytes:
            reservation = self._waiting.popleft()
            reservation.is_granted = reservation.grant()
            if reservation.is_granted:
                self._held_bytes += reservation.size_bytes


COPY_MEMORY: Final = ByteBudget(limits.TIER_COPY_BYTES)
"""For all copies of this process."""
