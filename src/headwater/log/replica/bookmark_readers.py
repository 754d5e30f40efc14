"""Readers that wait until a copy shows what they have to see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class BookmarkReaders:
    """Those who wait; each looks again whenever something changed."""

    def __init__(self) -> None:
        # In the order in which they came: that of a set is another one in every process.
        self._waiting: dict[asyncio.Future[None], None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def tell(self) -> None:
        """Something changed: the position, the term, or what the copy is good for."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def wait(self, is_settled: Callable[[], bool], *, timeout_s: float) -> None:
        """Return when it is settled, or when the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                while not is_settled():
                    waiting = asyncio.get_running_loop().create_future()
                    self._waiting[waiting] = None
                    try:
                        await waiting
                    finally:
                        del self._waiting[waiting]
        except TimeoutError:
            return  # what it came to by then is looked at by whoever asked
