"""Holding writers up a little while replicas are far behind, so that they are not left for good.

The target is soft: a writer waits for at most a bounded time and then goes on, whatever the lag. A
hard bound would let one slow replica stop the log; what bounds it in the end are the limits of its
slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headwater.core import runtime


def hold_up_s(lag_lsn: int, *, soft_lag_lsn: int, max_delay_s: float) -> float:
    """How long a writer waits at this lag: nothing up to the target, the most at twice of it."""
    over = lag_lsn - soft_lag_lsn
    if over <= 0:
        return 0.0
    return max_delay_s * min(1.0, over / soft_lag_lsn)


class FlowControl:
    """Writers on their way into the log."""

    def __init__(
        self, lag_lsn: Callable[[], int], *, soft_lag_lsn: int | None, max_delay_s: float
    ) -> None:
        """`soft_lag_lsn` None holds nobody up."""
        self._lag_lsn = lag_lsn
        self._soft_lag_lsn = soft_lag_lsn
        self._max_delay_s = max_delay_s
        self._waiting = 0
        self._released = asyncio.Event()

    @property
    def delay_s(self) -> float:
        """What a writer that came at this moment would wait for at most."""
        if self._soft_lag_lsn is None:
            return 0.0
        return hold_up_s(
            self._lag_lsn(), soft_lag_lsn=self._soft_lag_lsn, max_delay_s=self._max_delay_s
        )

    async def admit(self) -> float:
        """Let a writer in, at once or after a while; for how long it was held up."""
        delay_s = self.delay_s
        if not delay_s:
            return 0.0
        began_s = runtime.monotonic_s()
        self._released.clear()
        self._waiting += 1
        try:
            async with asyncio.timeout(delay_s):
                await self._released.wait()
        except TimeoutError:
            pass  # soft: it goes on
        finally:
            self._waiting -= 1
        return runtime.monotonic_s() - began_s

    def evaluate(self) -> None:
        """Look again: somebody caught up or left."""
        if self._waiting and not self.delay_s:
            self._released.set()
