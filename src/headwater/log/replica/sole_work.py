"""What a replica does at this moment: it follows, or it is made anew, or nothing.

Always holds: one thing at a time, for both change the same copies in one session; and after `close`
nothing is done any more, for the folder may be somebody else's by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any, Final

from headwater.core import runtime
from headwater.core.errors import Refused, Unavailable


class Work(StrEnum):
    """What there is to do."""

    FOLLOW = "follow"
    MAKE_ANEW = "make anew"


_BUSY: Final = {
    Work.FOLLOW: "is running: close it, open it again, and make it anew before start()",
    Work.MAKE_ANEW: "is being made anew: wait until that is done",
}


class SoleWork:
    """The one task of a replica."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work = Work.FOLLOW
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def under_way(self) -> Work | None:
        """What is being done."""
        return None if self._task is None or self._task.done() else self._work

    def begin(self, work: Work, do: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Do this beside the caller; `Refused` where that is not possible."""
        if self._is_closed:
            raise Refused(f"replica {self._name!r} is closed: open it again")
        if (busy := self.under_way) is not None:
            raise Refused(f"replica {self._name!r} {_BUSY[busy]}")
        self._work = work
        self._task = runtime.spawn(do(), name=f"replica-{self._name}")
        return self._task

    async def do(self, work: Work, do: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do this; whoever is stopped while it waits stops it."""
        task = self.begin(work, do)
        try:
            await task
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if self._is_closed and own is not None and not own.cancelling():
                raise Unavailable(f"replica {self._name!r} was closed meanwhile") from None
            raise

    async def close(self) -> None:
        """Begin nothing any more, and return once nothing is done."""
        self._is_closed = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,))
