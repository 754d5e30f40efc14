"""The coordinator for code without an event loop: the same calls, from any number of threads.

It runs on the process's shared portal. A delta and a flusher are called there, on that thread.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Generic, TypeVar

from headwater.coordinator.coordinator import WriteCoordinator
from headwater.coordinator.delta import (
    ChannelConfig,
    CoordinatorConfig,
    DeltaFactory,
    Durability,
    Flusher,
)
from headwater.coordinator.handle import ChannelHandle, PauseHandle, WriteHandle
from headwater.coordinator.view import View, ViewMonitor, ViewSubscriber
from headwater.coordinator.watermarks import CoordinatorMetrics
from headwater.core import portal

C = TypeVar("C")
W = TypeVar("W")
R = TypeVar("R")
D = TypeVar("D")
F = TypeVar("F")
V = TypeVar("V")
S = TypeVar("S")
T = TypeVar("T")


class BlockingWrite(Generic[R]):
    """One write, or one flush, on its way."""

    def __init__(self, handle: WriteHandle[R]) -> None:
        self._handle = handle

    def __repr__(self) -> str:
        return repr(self._handle)

    def epoch(self, *, timeout_s: float | None = None) -> int:
        """The write epoch, once it was applied."""
        return _waited(timeout_s, self._handle.epoch)

    def result(self, *, timeout_s: float | None = None) -> R:
        """What the delta answered."""
        return _waited(timeout_s, self._handle.result)

    def wait(
        self, durability: Durability = Durability.WRITTEN, *, timeout_s: float | None = None
    ) -> int:
        """Wait until the write has come so far; `TimeoutError` if that takes too long."""
        return _waited(timeout_s, self._handle.wait, durability)


class BlockingHandle(Generic[W, R, D, V, S]):
    """A way into one channel."""

    def __init__(self, handle: ChannelHandle[W, R, D, V, S]) -> None:
        self._handle = handle

    def __repr__(self) -> str:
        return repr(self._handle)

    def try_write(self, write: W) -> BlockingWrite[R]:
        """Put a write in, now, or raise `Backpressure`."""
        return BlockingWrite(portal.shared().call(_called(self._handle.try_write, write)))

    def write(self, write: W) -> BlockingWrite[R]:
        """Put a write in, once there is room."""
        return BlockingWrite(portal.shared().call(self._handle.write(write)))

    def write_timeout(self, write: W, timeout_s: float) -> BlockingWrite[R]:
        """Put a write in if there is room in time; `WriteTimeout` if there is none."""
        return BlockingWrite(portal.shared().call(self._handle.write_timeout(write, timeout_s)))

    def flush(
        self, *, durable: bool = False, timeout_s: float | None = None
    ) -> BlockingWrite[None]:
        """Flush everything before this."""
        flush = functools.partial(self._handle.flush, durable=durable)
        return BlockingWrite(_waited(timeout_s, flush))

    def view(self) -> View[D, V, S]:
        """What can be read at this moment."""
        return self._handle.view()

    def subscribe(self) -> tuple[BlockingSubscriber[D, V, S], BlockingMonitor]:
        """Follow the views from this moment on."""
        return _subscribed(self._handle.subscribe)


class BlockingPause:
    """Holds a channel: what is put in waits there, and fills it."""

    def __init__(self, handle: PauseHandle) -> None:
        self._handle = handle

    @property
    def is_paused(self) -> bool:
        """Whether nothing is taken from the channel."""
        return self._handle.is_paused

    def pause(self) -> None:
        """Take nothing more from the channel; other channels go on."""
        portal.shared().call(_called(self._handle.pause))

    def unpause(self) -> None:
        """Go on."""
        portal.shared().call(_called(self._handle.unpause))


class BlockingSubscriber(Generic[D, V, S]):
    """Follows the views. For one thread."""

    def __init__(self, subscriber: ViewSubscriber[D, V, S]) -> None:
        self._subscriber = subscriber

    def __repr__(self) -> str:
        return repr(self._subscriber)

    def initialize(self) -> View[D, V, S]:
        """The view at the moment of subscribing."""
        initial: View[D, V, S] = portal.shared().call(_called(self._subscriber.initialize))
        return initial

    def recv(self, *, timeout_s: float | None = None) -> View[D, V, S]:
        """The next view; after a `TimeoutError` it is still to come."""
        return _waited(timeout_s, self._subscriber.recv)

    def close(self) -> None:
        """Come for no more views."""
        portal.shared().call(_called(self._subscriber.close))


class BlockingMonitor:
    """Tells when a subscriber has taken in a write."""

    def __init__(self, monitor: ViewMonitor) -> None:
        self._monitor = monitor

    def __repr__(self) -> str:
        return repr(self._monitor)

    def wait(
        self,
        epoch: int,
        durability: Durability = Durability.WRITTEN,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Wait until the subscriber has taken in a view that shows this write."""
        _waited(timeout_s, self._monitor.wait, epoch, durability)


class BlockingCoordinator(Generic[W, R, D, V, S]):
    """A write coordinator for threads."""

    def __init__(
        self,
        config: CoordinatorConfig,
        channels: Iterable[str | ChannelConfig],
        context: C,
        snapshot: S,
        flusher: Flusher[F, S],
        *,
        delta: DeltaFactory[C, W, R, D, F, V],
    ) -> None:
        self._coordinator: WriteCoordinator[W, R, D, V, S] = WriteCoordinator(
            config, channels, context, snapshot, flusher, delta=delta
        )

    def __enter__(self) -> BlockingCoordinator[W, R, D, V, S]:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        except Exception as stopping:
            if error is None:
                raise
            error.add_note(f"stopping the coordinator failed as well: {stopping}")

    def __repr__(self) -> str:
        return repr(self._coordinator)

    @property
    def metrics(self) -> CoordinatorMetrics:
        """What it did."""
        return self._coordinator.metrics

    def handle(self, name: str) -> BlockingHandle[W, R, D, V, S]:
        """A way into a channel."""
        return BlockingHandle(self._coordinator.handle(name))

    def pause_handle(self, name: str) -> BlockingPause:
        """What holds a channel and lets it go on."""
        return BlockingPause(self._coordinator.pause_handle(name))

    def start(self) -> None:
        """Begin to take writes from the channels."""
        portal.shared().call(_called(self._coordinator.start))

    def stop(self, *, timeout_s: float | None = None) -> None:
        """Apply and flush what is queued, and end; raises what kept it from that.

        After a `TimeoutError` it goes on: called again, it waits for the same end.
        """
        _waited(timeout_s, self._coordinator.stop)

    def view(self) -> View[D, V, S]:
        """What can be read at this moment."""
        return self._coordinator.view()

    def subscribe(self) -> tuple[BlockingSubscriber[D, V, S], BlockingMonitor]:
        """Follow the views from this moment on."""
        return _subscribed(self._coordinator.subscribe)

    def durable_through(self, epoch: int) -> None:
        """Say that writes through this epoch are durable, whoever made them so."""
        portal.shared().call(_called(self._coordinator.durable_through, epoch))


def _subscribed(
    subscribe: Callable[[], tuple[ViewSubscriber[D, V, S], ViewMonitor]],
) -> tuple[BlockingSubscriber[D, V, S], BlockingMonitor]:
    subscriber, monitor = portal.shared().call(_called(subscribe))
    return BlockingSubscriber(subscriber), BlockingMonitor(monitor)


def _waited(
    timeout_s: float | None, wait: Callable[..., Coroutine[Any, Any, T]], *arguments: Any
) -> T:
    """What a call comes to, made on the portal's thread; `TimeoutError` if that takes too long.

    The time is kept over there: a call that is given none is still tried, and finds what is there.
    """

    async def within() -> T:
        try:
            async with asyncio.timeout(timeout_s):
                return await wait(*arguments)
        except TimeoutError:
            raise TimeoutError(f"no result within {timeout_s} s") from None

    return portal.shared().call(within())


async def _called(function: Any, *arguments: Any) -> Any:
    """A plain call, made on the portal's thread."""
    return function(*arguments)
