"""What readers see: the current delta, the frozen ones, the snapshot; and who is told of changes.

Always holds: a view is published before the watermark that announces it, and shows every write
that was applied exactly once, in one of its layers.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from headwater.coordinator.delta import Stamped
from headwater.coordinator.ending import Ending
from headwater.core.errors import Bug

if TYPE_CHECKING:
    from headwater.coordinator.subscriber import ViewSubscriber

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
        self._ending: Ending | None = None

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

    def end(self, ending: Ending) -> None:
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
