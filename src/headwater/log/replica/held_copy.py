"""A copy that is read: it stays as long as somebody reads it, also if another took its place.

Always holds: once it is closed, nothing of it is removed any more. The folder is somebody else's by
then, and what stands there may be the copy that counts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from headwater.core import runtime
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
        self._is_closed = False
        self._removing: asyncio.Task[None] | None = None

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

    async def close(self) -> None:
        """The folder is given back: who still reads finds a closed copy, and removes nothing."""
        self._is_closed = True
        if self._removing is not None:
            await asyncio.wait((self._removing,))
        if not self.is_gone:
            await self.target.close()

    async def _leave(self) -> None:
        if self._is_closed or not self._is_replaced or self._readers or self.is_gone:
            return
        if self._removing is None or self._removing.done():
            # By itself: a reader that is stopped meanwhile would leave a thread behind that goes on
            # removing files, and nobody could wait for it.
            self._removing = runtime.spawn(self._remove(), name=f"remove copy {self.number}")
        await asyncio.shield(self._removing)

    async def _remove(self) -> None:
        await self.target.close()
        await self._targets.discard(self._path)
        self.is_gone = True
