"""Connects channels, writer and flush loop, starts and stops them.

    coordinator = WriteCoordinator(config, ["ingest"], context, snapshot, flusher, delta=MyDelta)
    coordinator.start()
    handle = await coordinator.handle("ingest").write(something)
    await handle.wait(Durability.WRITTEN)
    await coordinator.stop()

Always holds: after a failed flush every call that waits, writes, follows or stops raises it with
its cause, and no write is accepted; memory is bounded by the channels, the size of a delta and the
number of frozen deltas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Generic, TypeVar

from headwater.coordinator.channel import Channel, ChannelHandle, PauseHandle
from headwater.coordinator.contract import (
    ChannelConfig,
    CoordinatorCancelled,
    CoordinatorConfig,
    DeltaFactory,
    Flusher,
    Termination,
)
from headwater.coordinator.progress import (
    CoordinatorMetrics,
    View,
    ViewBoard,
    ViewMonitor,
    ViewSubscriber,
    WriteWatermarks,
)
from headwater.coordinator.writer import FlushLoop, Writer
from headwater.core import runtime
from headwater.core.errors import Refused

C = TypeVar("C")
W = TypeVar("W")
R = TypeVar("R")
D = TypeVar("D")
F = TypeVar("F")
V = TypeVar("V")
S = TypeVar("S")


class WriteCoordinator(Generic[W, R, D, V, S]):
    """Takes writes from named channels into a delta, and flushes it. For one event loop."""

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
        """`context` starts the first delta; `snapshot` holds the writes of earlier runs."""
        if isinstance(channels, str):
            raise Refused(f"channels is {channels!r}: give a list of names, also for one channel")
        first = delta(context)
        self._config = config
        self._watermarks = WriteWatermarks()
        self._channels: list[Channel] = []
        self.metrics = CoordinatorMetrics(self._watermarks, self._channels).register()
        self._board: ViewBoard[D, V, S] = ViewBoard(View(first.reader(), (), snapshot, None))
        self._flush_loop = FlushLoop(config, flusher, self._watermarks, self._board, self.metrics)
        self._writer = Writer(
            config,
            self._channels,
            first,
            delta,
            self._watermarks,
            self._board,
            self._flush_loop,
            self.metrics,
        )
        for one in channels:
            channel = ChannelConfig(one) if isinstance(one, str) else one
            if any(other.name == channel.name for other in self._channels):
                raise Refused(f"there are two channels with the name {channel.name!r}")
            self._channels.append(Channel(channel, config.queue_capacity, self._writer.wake))
        if not self._channels:
            raise Refused("there are no channels: name at least one, or nothing can be written")
        self._running: asyncio.Task[None] | None = None
        self._loops: tuple[asyncio.Task[None], ...] = ()
        self._termination: Termination | None = None

    async def __aenter__(self) -> WriteCoordinator[W, R, D, V, S]:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.stop()
        except Exception as stopping:
            if error is None:
                raise
            error.add_note(f"stopping the coordinator failed as well: {stopping}")

    def __repr__(self) -> str:
        names = ", ".join(one.name for one in self._channels)
        return f"<write coordinator of {names}: {self._watermarks}>"

    def handle(self, name: str) -> ChannelHandle[W, R]:
        """Writes into a channel. Writes before `start` wait in the channel."""
        return ChannelHandle(self._channel(name), self._watermarks, self.metrics)

    def pause_handle(self, name: str) -> PauseHandle:
        return PauseHandle(self._channel(name), self._writer.wake)

    def start(self) -> None:
        """Begin to take writes from the channels. A second call does nothing."""
        if self._termination is not None:
            raise self._termination.error()
        if self._running is None:
            self._running = runtime.spawn(self._run(), name="headwater-coordinator")
            # Not at the end of the coroutine: a task cancelled before its first step runs no code.
            self._running.add_done_callback(lambda _: self._conclude())

    async def stop(self) -> None:
        """Apply and flush what is queued in channels that are not paused, and end.

        No write is accepted from now on. Writes that stay in a channel fail with `Shutdown`. Raises
        the error that kept writes from being flushed. Cancelling this call ends only its waiting.
        """
        if asyncio.current_task() in self._loops:
            raise Refused(
                "a flusher cannot stop its own coordinator, which waits for it: raise an error"
            )
        if self._running is None:
            if self._termination is None:
                self._terminate(Termination())
            return
        for channel in self._channels:
            channel.terminate(self._termination or Termination())
        self._writer.stop()
        # Now, not when the writer is done: it may wait for a flush that is repeated.
        self._flush_loop.give_up_in(self._config.stop_grace_s)
        # `wait` does not cancel its tasks when this call is cancelled.
        await asyncio.wait((self._running,))
        self._conclude()
        if self._termination is not None and self._termination.cause is not None:
            raise self._termination.error()

    def view(self) -> View[D, V, S]:
        return self._board.view

    def subscribe(self) -> tuple[ViewSubscriber[D, V, S], ViewMonitor]:
        """Follow the views from now on: none is missed after the initial one."""
        subscriber = ViewSubscriber(self._board)
        return subscriber, subscriber.monitor

    def durable_through(self, write_epoch: int) -> None:
        """Report durability from elsewhere, such as a quorum. It never passes `written`."""
        self._watermarks.set_durable(write_epoch)

    def _channel(self, name: str) -> Channel:
        for channel in self._channels:
            if channel.name == name:
                return channel
        names = ", ".join(repr(one.name) for one in self._channels)
        raise Refused(f"no channel {name!r}; there are {names}")

    async def _run(self) -> None:
        """Both loops, until a stop has emptied them or one of them fails."""
        writing = runtime.spawn(self._writer.run(), name="headwater-coordinator-writer")
        flushing = runtime.spawn(self._flush_loop.run(), name="headwater-coordinator-flushes")
        self._loops = (writing, flushing)
        try:
            await asyncio.wait(self._loops, return_when=asyncio.FIRST_COMPLETED)
            if _is_complete(writing):
                self._flush_loop.stop()
                await asyncio.wait((flushing,))
        finally:
            # Both loops, also if one failed: no flush may run after the end.
            for task in self._loops:
                task.cancel()
            await asyncio.wait(self._loops)

    def _conclude(self) -> None:
        if self._termination is None:
            self._writer.close()
            self._terminate(Termination(_cause(self._loops)))

    def _terminate(self, termination: Termination) -> None:
        self._termination = termination
        for channel in self._channels:
            channel.terminate(termination)
            for command in channel.drain():
                command.terminate(termination)
        self._watermarks.terminate(termination)
        self._board.terminate(termination)


def _is_complete(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _cause(loops: tuple[asyncio.Task[None], ...]) -> BaseException | None:
    """The error of a loop; None if both are complete.

    A loop that was cancelled, never began or still runs is not: its writes were not written.
    """
    if loops and all(_is_complete(task) for task in loops):
        return None
    for task in loops:
        if task.done() and not task.cancelled() and task.exception() is not None:
            return task.exception()
    return CoordinatorCancelled("the coordinator was cancelled before everything was written")
