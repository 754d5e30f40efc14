"""A copy that is read: it stays as long as somebody reads it, also if another took its place."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from headwater.log.replica.target import Target, Targets


class HeldCopy:
    """A target, its folder, and how many read it."""

    def __init__(self, targets: Targets, target: Target, number: int, path: str) -> None:
        self.target = target
        self.number = number
        self.is_gone = False
        """Closed, and its folder may be used again."""
        self._targets = targets
        self._path = path
        self._readers = 0
        self._is_replaced = False

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[Target]:
        """The target, which is not closed meanwhile."""
        self._readers += 1
        try:
            yield self.target
        finally:
            self._readers -= 1
            await self._leave()

    async def replace(self) -> None:
        """Another one counts: close and remove this one, or leave that to its last reader."""
        self._is_replaced = True
        await self._leave()

    async def _leave(self) -> None:
        if self._is_replaced and not self._readers and not self.is_gone:
            await self.target.close()
            await self._targets.discard(self._path)
            self.is_gone = True
