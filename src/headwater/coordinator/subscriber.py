"""Following the views, and waiting until a follower has taken a write in.

    subscriber, monitor = coordinator.subscribe()
    mine = build(subscriber.initialize())
    while True:
        mine.update(await subscriber.recv())

A view counts as taken in when its subscriber comes back for the next one: by then it is built into
whatever the subscriber keeps, and whoever was told so by the monitor reads its own writes there.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from typing import Generic, TypeVar

from headwater.coordinator.delta import Durability
from headwater.coordinator.ending import Ending
from headwater.coordinator.errors import MessageLost
from headwater.coordinator.view import View, ViewBoard
from headwater.coordinator.watermarks import Watermarks
from headwater.core import limits
from headwater.core.errors import HeadwaterError, Refused

D = TypeVar("D")
V = TypeVar("V")
S = TypeVar("S")


class Lost(Ending):
    """Ended for one subscriber alone, which was too slow or went away."""

    is_stop = False

    def __init__(self, message: str) -> None:
        super().__init__()
        self._message = message

    def error(self, write: object = None) -> HeadwaterError:
        return MessageLost(self._message)


class ViewSubscriber(Generic[D, V, S]):
    """Gets the present view, then every one that follows, in order. For one task."""

    def __init__(self, board: ViewBoard[D, V, S]) -> None:
        self._board = board
        self._initial = board.view
        self._views: deque[View[D, V, S]] = deque()
        self._handed: View[D, V, S] | None = board.view
        self._ending: Ending | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._taken = Watermarks()
        # Nobody who waits for a subscriber that was dropped would ever be told otherwise.
        gone = Lost("the subscriber is gone")
        weakref.finalize(self, self._taken.end_from_anywhere, gone).atexit = False
        board.subscribe(self)

    def __repr__(self) -> str:
        return f"<subscriber with {len(self._views)} views to come, {self._taken}>"

    @property
    def monitor(self) -> ViewMonitor:
        """What tells how far this subscriber has come."""
        return ViewMonitor(self._taken)

    def initialize(self) -> View[D, V, S]:
        """The view at the moment of subscribing, which precedes all that `recv` gives."""
        return self._initial

    async def recv(self) -> View[D, V, S]:
        """The next view. Ends with `Shutdown`, or with what ended the coordinator.

        `MessageLost` if more than COORDINATOR_VIEWS came meanwhile: subscribe again.
        """
        if self._waiting is not None:
            raise Refused("a subscriber is for one task, and one waits for its next view already")
        self._take_in()
        while not self._views:
            if self._ending is not None:
                raise self._ending.error()
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        self._handed = self._views.popleft()
        return self._handed

    def close(self) -> None:
        """Come for no more views. Those who wait for this subscriber are told."""
        self._take_in()
        self._board.unsubscribe(self)
        self._views.clear()
        self.end(Lost("the subscriber was closed"))

    def offer(self, view: View[D, V, S]) -> None:
        """Keep a view for this subscriber; for the board alone."""
        if len(self._views) >= limits.COORDINATOR_VIEWS:
            self._views.clear()
            self._board.unsubscribe(self)
            self.end(Lost(f"more than {limits.COORDINATOR_VIEWS} views were not asked for in time"))
            return
        self._views.append(view)
        self._wake()

    def end(self, ending: Ending) -> None:
        """No view follows those that are kept; for the board alone."""
        if self._ending is None:
            self._ending = ending
            self._wake()
            # After a stop the views that are kept are still taken in; after a failure, who knows.
            if not self._views or not ending.is_stop:
                self._taken.end(ending)
            else:
                self._taken.end_beyond(self._views[-1].written, ending)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _take_in(self) -> None:
        if self._handed is not None:
            self._taken.apply(self._handed.frozen_through)
            self._taken.write(self._handed.written)
            self._handed = None
        if self._ending is not None and not self._views:
            self._taken.end(self._ending)


class ViewMonitor:
    """Tells when a subscriber has taken in a write. For any number of tasks."""

    def __init__(self, taken: Watermarks) -> None:
        self._taken = taken

    def __repr__(self) -> str:
        return f"<monitor of a subscriber, {self._taken}>"

    async def wait(self, epoch: int, durability: Durability = Durability.WRITTEN) -> None:
        """Wait until the subscriber has taken in a view that shows this write.

        APPLIED: among the frozen deltas or in the snapshot; WRITTEN: in the snapshot. Raises
        what ended the coordinator, or `MessageLost` if the subscriber fell behind or went away.
        """
        if durability is Durability.DURABLE:
            raise Refused("views tell what is applied and written; wait for DURABLE on the write")
        await self._taken.reached(durability, epoch)
