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

from headwater.coordinator.contract import DeltaView, Durability, MessageLost, Termination
from headwater.coordinator.watermarks import WriteWatermarks
from headwater.core import limits
from headwater.core.errors import Bug, Refused

D = TypeVar("D")
V = TypeVar("V")
S = TypeVar("S")


class View(NamedTuple, Generic[D, V, S]):
    """Everything that was written, in layers. Only the current delta changes."""

    current: D
    """The reader of the current delta, which shows each write as it is applied."""
    frozen: tuple[DeltaView[V], ...]
    """Deltas that are not in the snapshot yet, the newest first."""
    snapshot: S
    last_written: DeltaView[V] | None
    """The last delta in the snapshot: all that an incremental reader has to add."""

    @property
    def written(self) -> int:
        """The last write epoch in the snapshot; 0 before the first flush."""
        return self.last_written.write_epochs.stop - 1 if self.last_written else 0

    @property
    def frozen_through(self) -> int:
        """The last write epoch that is frozen or in the snapshot."""
        return self.frozen[0].write_epochs.stop - 1 if self.frozen else self.written


class ViewBoard(Generic[D, V, S]):
    """The present view, and the subscribers to the views that follow."""

    def __init__(self, view: View[D, V, S]) -> None:
        self.view = view
        # Weak: a dropped subscriber must not collect views without end. A list and not a
        # WeakSet, whose order follows memory addresses: the same seed must give the same history.
        self._subscribers: list[weakref.ref[ViewSubscriber[D, V, S]]] = []
        self._termination: Termination | None = None

    def subscribe(self, subscriber: ViewSubscriber[D, V, S]) -> None:
        if self._termination is not None:
            subscriber.terminate(self._termination)
        else:
            self._subscribers.append(weakref.ref(subscriber))

    def unsubscribe(self, subscriber: ViewSubscriber[D, V, S]) -> None:
        self._subscribers = [one for one in self._subscribers if one() is not subscriber]

    def publish_frozen(self, frozen: DeltaView[V], current: D) -> None:
        """A delta was frozen, and `current` is the reader of the next one."""
        self._publish(self.view._replace(current=current, frozen=(frozen, *self.view.frozen)))

    def publish_flushed(self, snapshot: S, write_epochs: range) -> None:
        """The oldest frozen delta is in the snapshot."""
        *newer, written = self.view.frozen or (None,)
        if written is None or written.write_epochs != write_epochs:
            raise Bug(f"{write_epochs} were flushed, and the oldest frozen delta is {written}")
        self._publish(
            self.view._replace(frozen=tuple(newer), snapshot=snapshot, last_written=written)
        )

    def terminate(self, termination: Termination) -> None:
        self._termination = termination
        for subscriber in self._live_subscribers():
            subscriber.terminate(termination)
        self._subscribers.clear()

    def _publish(self, view: View[D, V, S]) -> None:
        self.view = view
        for subscriber in self._live_subscribers():
            subscriber.offer(view)

    def _live_subscribers(self) -> list[ViewSubscriber[D, V, S]]:
        pairs = [(one, one()) for one in self._subscribers]
        self._subscribers = [one for one, subscriber in pairs if subscriber is not None]
        return [subscriber for _, subscriber in pairs if subscriber is not None]


class ViewSubscriber(Generic[D, V, S]):
    """Receives the present view, then every view that follows, in order. For one task."""

    def __init__(self, board: ViewBoard[D, V, S]) -> None:
        self._board = board
        self._initial = board.view
        self._views: deque[View[D, V, S]] = deque()
        self._received: View[D, V, S] | None = board.view
        self._termination: Termination | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._processed = WriteWatermarks()
        self.monitor = ViewMonitor(self._processed)
        # Without this, a task that waits for a dropped subscriber would wait without end.
        gone = Termination(MessageLost("the subscriber is gone"))
        weakref.finalize(self, self._processed.terminate, gone).atexit = False
        board.subscribe(self)

    def initialize(self) -> View[D, V, S]:
        """The view at the moment of subscribing."""
        return self._initial

    async def recv(self) -> View[D, V, S]:
        """The next view. Raises `Shutdown`, or the error that terminated the coordinator.

        `MessageLost` if more than COORDINATOR_VIEWS were published meanwhile: subscribe again.
        """
        if self._waiting is not None:
            raise Refused("a subscriber is for one task, and another task waits for the next view")
        self._mark_processed()
        while not self._views:
            if self._termination is not None:
                raise self._termination.error()
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        self._received = self._views.popleft()
        return self._received

    def close(self) -> None:
        """Receive no more views. Waits on the monitor fail with `MessageLost`."""
        self._mark_processed()
        self._board.unsubscribe(self)
        self._views.clear()
        self.terminate(Termination(MessageLost("the subscriber was closed")))

    def offer(self, view: View[D, V, S]) -> None:
        """Queue a view. Called by the board only."""
        if len(self._views) >= limits.COORDINATOR_VIEWS:
            self._views.clear()
            self._board.unsubscribe(self)
            missed = f"more than {limits.COORDINATOR_VIEWS} views were not received in time"
            self.terminate(Termination(MessageLost(missed)))
            return
        self._views.append(view)
        self._wake()

    def terminate(self, termination: Termination) -> None:
        """No view follows the queued ones. Called by the board only."""
        if self._termination is None:
            self._termination = termination
            self._wake()
            # After a stop the subscriber still processes the queued views; after a failure it may
            # not come back for them.
            if not self._views or termination.cause is not None:
                self._processed.terminate(termination)
            else:
                self._processed.terminate_beyond(self._views[-1].written, termination)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _mark_processed(self) -> None:
        if self._received is not None:
            self._processed.set_applied(self._received.frozen_through)
            self._processed.set_written(self._received.written)
            self._received = None
        if self._termination is not None and not self._views:
            self._processed.terminate(self._termination)


class ViewMonitor:
    """Waits until a subscriber has processed a write. For any number of tasks."""

    def __init__(self, processed: WriteWatermarks) -> None:
        self._processed = processed

    async def wait(self, write_epoch: int, durability: Durability = Durability.WRITTEN) -> None:
        """Wait until the subscriber has processed a view that shows this write.

        APPLIED: among the frozen deltas or in the snapshot; WRITTEN: in the snapshot. Raises the
        error that terminated the coordinator, or `MessageLost` if the subscriber fell behind or
        was closed.
        """
        if durability is Durability.DURABLE:
            raise Refused("views show what is applied and written; wait for DURABLE on the write")
        await self._processed.wait_for(durability, write_epoch)
