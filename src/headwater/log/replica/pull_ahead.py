"""The next answer, asked for while the last one is applied.

Only where the source has said that there is more: at the end of the log one pull waits, not two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from headwater.core import runtime
from headwater.log.primary import Pulled

Pull = Callable[[int], Coroutine[Any, Any, Pulled]]


class PullAhead:
    """At most one pull that nobody waits for yet."""

    def __init__(self, pull: Pull) -> None:
        self._pull = pull
        self._since_lsn = 0
        self._asking: asyncio.Task[Pulled] | None = None

    def begin(self, pulled: Pulled) -> None:
        """Ask for what follows an answer, if there is more."""
        if self._asking is None and pulled.groups and pulled.through_lsn < pulled.current_lsn:
            self._since_lsn = pulled.through_lsn
            self._asking = runtime.spawn(self._pull(self._since_lsn), name="pull ahead")

    async def take(self, since_lsn: int) -> Pulled | None:
        """What was asked for, or what went wrong with it; None if that was something else."""
        if self._asking is None or self._since_lsn != since_lsn:
            await self.drop()
            return None
        asking, self._asking = self._asking, None
        return await asking

    async def drop(self) -> None:
        """Nobody needs the answer any more, nor the reason why there is none."""
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
