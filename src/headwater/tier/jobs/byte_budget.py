"""So many bytes in memory at once, whoever holds them: all partitions of a process share one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from headwater.core import limits


class ByteBudget:
    """Lets those wait for whom there is no room, in the order in which they came."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._held_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, size_bytes: int) -> AsyncIterator[None]:
        """Hold so many; who asks for more than there are gets all of them, and is alone."""
        size_bytes = min(size_bytes, self._size_bytes)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            self._leave(size_bytes, turn)
            raise
        try:
            yield
        finally:
            self._give_back(size_bytes)

    def _serve(self) -> None:
        while self._waiting and self._held_bytes + self._waiting[0][0] <= self._size_bytes:
            size_bytes, turn = self._waiting.popleft()
            if not turn.done():
                self._held_bytes += size_bytes
                turn.set_result(None)

    def _leave(self, size_bytes: int, turn: asyncio.Future[None]) -> None:
        """Somebody who waited is cancelled: perhaps just when its turn had come."""
        if not turn.cancelled():
            self._give_back(size_bytes)
        else:
            self._serve()

    def _give_back(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        self._serve()


COPY_MEMORY: Final = ByteBudget(limits.TIER_COPY_BYTES)
"""Of all copies of this process."""
