"""What readers see: views, the board that publishes them, and subscribers that follow them.

    subscriber, monitor = coordinator.subscribe()
    mine = build(subscriber.initialize())
    while True:
        mine.update(await subscriber.recv())

A subscriber has processed a view when it calls `recv` for the next one: by then the view is
part of what the subscriber builds, and a caller that waited on its monitor reads its own
writes there.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from typing import Generic, NamedTuple, TypeVar

from headwater.coordinator.delta import Durability, Stamped
from headwater.coordinator.errors import MessageLost, Termination
from headwater.coordinator.watermarks import Watermarks
from headwater.core import limits
from headwater.core.errors import Bug, HeadwaterError, Refused

D = TypeVar("D")
V = TypeVar("V")
S = TypeVar("S")


class View(NamedTuple, Generic[D, V, S]):
    """Everything that was written, in layers. It does not change, but for the current delta."""

    current: D
    """The reader of the current delta, which shows each write as it is applied."""
    frozen: tuple[Stamped[V], ...]
    """Deltas on their way into the snapshot, the newest first."""
    snapshot: S
    last_written: Stamped[V] | None
    """The delta that the snapshot took in last: all that an incremental reader has to add."""

    @property
    def written(self) -> int:
        """The last write epoch in the snapshot; 0 before the first flush."""
        return self.last_written.epochs.stop - 1 if self.last_written else 0

    @property
    def frozen_through(self) -> int:
        """The last write epoch that is frozen or in the snapshot."""
        return self.frozen[0].epochs.stop - 1 if self.frozen else self.written


class ViewBoard(Generic[D, V, S]):
    """The present view, and everybody who subscribed to those that follow."""

    def __init__(self, view: View[D, V, S]) -> None:
        self.view = view
        # Weak: a subscriber that was dropped must not gather views for ever. A list and not a
        # WeakSet, whose order follows memory addresses: the same seed must give the same history.
        self._subscribers: list[weakref.ref[ViewSubscriber[D, V, S]]] = []
        self._ending: Termination | None = None

    def subscribe(self, subscriber: ViewSubscriber[D, V, S]) -> None:
        """Tell this one of every view after the present one."""
        if self._ending is not None:
            subscriber.end(self._ending)
        else:
            self._subscribers.append(weakref.ref(subscriber))

    def unsubscribe(self, subscriber: ViewSubscriber[D, V, S]) -> None:
        """Tell this one no more."""
        self._subscribers = [one for one in self._subscribers if one() is not subscriber]

    def freeze(self, frozen: Stamped[V], current: D) -> None:
        """A delta was frozen, and another one takes its place."""
        self._publish(self.view._replace(current=current, frozen=(frozen, *self.view.frozen)))

    def flushed(self, snapshot: S, epochs: range) -> None:
        """The oldest frozen delta is in the snapshot."""
        *newer, written = self.view.frozen or (None,)
        if written is None or written.epochs != epochs:
            raise Bug(f"epochs {epochs} were flushed, and the oldest frozen delta is {written}")
        self._publish(
            self.view._replace(frozen=tuple(newer), snapshot=snapshot, last_written=written)
        )

    def end(self, ending: Termination) -> None:
        """No view follows."""
        self._ending = ending
        for subscriber in self._present():
            subscriber.end(ending)
        self._subscribers.clear()

    def _publish(self, view: View[D, V, S]) -> None:
        self.view = view
        for subscriber in self._present():
            subscriber.offer(view)

    def _present(self) -> list[ViewSubscriber[D, V, S]]:
        found = [(one, one()) for one in self._subscribers]
        self._subscribers = [one for one, subscriber in found if subscriber is not None]
        return [subscriber for _, subscriber in found if subscriber is not None]


class Lost(Termination):
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
        self._ending: Termination | None = None
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

    def end(self, ending: Termination) -> None:
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
