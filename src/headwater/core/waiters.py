"""Those who wait until something is known; each looks again whenever something changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Waiters:
    """Futures of those who wait. For one event loop."""

    def __init__(self) -> None:
        # In the order in which they came: that of a set is another one in every process.
        self._waiting: dict[asyncio.Future[None], None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def tell(self) -> None:
        """Something changed."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def wait(self, is_settled: Callable[[], bool], *, timeout_s: float) -> bool:
        """Return when it is settled (true), or when the time is over (false)."""
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
            return is_settled()
        return True
