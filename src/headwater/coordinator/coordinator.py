"""One ordered writer for any kind of state.

    coordinator = WriteCoordinator(config, ["ingest"], context, snapshot, flusher, delta=MyDelta)
    coordinator.start()
    promise = await coordinator.handle("ingest").write(something)
    await promise.wait(Durability.WRITTEN)
    await coordinator.stop()

Always holds:

- one order: a write has one epoch, and every view shows the writes of a prefix of the epochs;
- a failed flush is loud: whoever waits, writes, follows or stops is told, with the cause, and
  nothing is accepted any more;
- memory is bounded: by the channels, the size of a delta, and the number of frozen ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Generic, TypeVar

from headwater.coordinator.channel import Channel
from headwater.coordinator.delta import ChannelConfig, CoordinatorConfig, DeltaFactory, Flusher
from headwater.coordinator.errors import CoordinatorCancelled, Termination
from headwater.coordinator.handle import ChannelHandle, PauseHandle
from headwater.coordinator.view import View, ViewBoard, ViewMonitor, ViewSubscriber
from headwater.coordinator.watermarks import CoordinatorMetrics, Watermarks
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
        """`context` begins the first delta, `snapshot` is what was kept before."""
        if isinstance(channels, str):
            raise Refused(f"channels is {channels!r}: give a list of names, also for one channel")
        first = delta(context)
        self._config = config
        self._watermarks = Watermarks()
        self._channels: list[Channel] = []
        self.metrics = CoordinatorMetrics(self._watermarks, self._channels)
        self._board: ViewBoard[D, V, S] = ViewBoard(View(first.reader(), (), snapshot, None))
        self._flushing = FlushLoop(config, flusher, self._watermarks, self._board, self.metrics)
        self._writer = Writer(
            config,
            self._channels,
            first,
            delta,
            self._watermarks,
            self._board,
            self._flushing,
            self.metrics,
        )
        for given in channels:
            named = ChannelConfig(given) if isinstance(given, str) else given
            if any(one.name == named.name for one in self._channels):
                raise Refused(f"there are two channels of the name {named.name!r}")
            self._channels.append(Channel(named, config.queue_capacity, self._writer.wake))
        if not self._channels:
            raise Refused("there are no channels: name at least one, or nothing can be written")
        self._running: asyncio.Task[None] | None = None
        self._loops: tuple[asyncio.Task[None], ...] = ()
        self._ending: Termination | None = None

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

    def handle(self, name: str) -> ChannelHandle[W, R, D, V, S]:
        """A way into a channel; also before `start`: what is written then waits."""
        return ChannelHandle(self._channel(name), self._watermarks, self._board, self.metrics)

    def pause_handle(self, name: str) -> PauseHandle:
        """What holds a channel and lets it go on."""
        return PauseHandle(self._channel(name), self._writer.wake)

    def start(self) -> None:
        """Begin to take writes from the channels. Starting twice is starting once."""
        if self._ending is not None:
            raise self._ending.error()
        if self._running is None:
            self._running = runtime.spawn(self._run(), name="headwater-coordinator")
            # Not at the end of the task: one that is cancelled before its first step has no end.
            self._running.add_done_callback(lambda _: self._conclude())

    async def stop(self) -> None:
        """Apply and flush what is queued in channels that are not paused, and end.

        Nothing is accepted from here on. Writes in paused channels, and all of them if it was
        never started, come back to their handles with `Shutdown`. Raises what kept anything from
        being flushed. Cancelled, it goes on; called again, it waits for the same end.
        """
        if asyncio.current_task() in self._loops:
            raise Refused("a flusher cannot stop its own coordinator, which waits for it: raise")
        if self._running is None:
            if self._ending is None:
                self._end(Termination())
            return
        for channel in self._channels:
            channel.end(self._ending or Termination())
        self._writer.stop()
        # At once, not when the writer is done: it may wait for a flush that is tried again.
        self._flushing.give_up_in(self._config.stop_grace_s)
        # A cancelled stop goes on: `wait` leaves what it waits for alone.
        await asyncio.wait((self._running,))
        self._conclude()
        if self._ending is not None and self._ending.cause is not None:
            raise self._ending.error()

    def view(self) -> View[D, V, S]:
        """What can be read at this moment."""
        return self._board.view

    def subscribe(self) -> tuple[ViewSubscriber[D, V, S], ViewMonitor]:
        """Follow the views from this moment on: none is missed after the initial one."""
        subscriber = ViewSubscriber(self._board)
        return subscriber, subscriber.monitor

    def durable_through(self, epoch: int) -> None:
        """Say that writes through this epoch are durable, whoever made them so.

        For a flusher whose storage tells by itself: a quorum of replicas, a tier. What is not
        written yet becomes durable with its flush.
        """
        self._watermarks.make_durable(epoch)

    def _channel(self, name: str) -> Channel:
        for channel in self._channels:
            if channel.name == name:
                return channel
        known = ", ".join(repr(one.name) for one in self._channels)
        raise Refused(f"no channel {name!r}; there are {known}")

    async def _run(self) -> None:
        """Both loops, until a stop has emptied them or one of them fails."""
        writing = runtime.spawn(self._writer.run(), name="headwater-coordinator-writer")
        flushing = runtime.spawn(self._flushing.run(), name="headwater-coordinator-flushes")
        self._loops = (writing, flushing)
        try:
            await asyncio.wait(self._loops, return_when=asyncio.FIRST_COMPLETED)
            if _is_through(writing):
                self._flushing.stop()
                await asyncio.wait((flushing,))
        finally:
            # Both, also if one tells why: a flush must not go on after the end.
            await _stopped(writing, flushing)

    def _conclude(self) -> None:
        """Tell everybody how it ended; once."""
        if self._ending is None:
            self._writer.close()
            self._end(Termination(_cause(self._loops)))

    def _end(self, ending: Termination) -> None:
        self._ending = ending
        for channel in self._channels:
            channel.end(ending)
            for command in channel.drop():
                command.ended(ending)
        self._watermarks.end(ending)
        self._board.end(ending)


def _is_through(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


async def _stopped(*tasks: asyncio.Task[Any]) -> None:
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)


def _cause(loops: tuple[asyncio.Task[None], ...]) -> BaseException | None:
    """What they failed with; None if all of them came to their end.

    One that was cancelled, never began or still runs did not: what it had was not written.
    """
    if loops and all(_is_through(task) for task in loops):
        return None
    for task in loops:
        if task.done() and not task.cancelled() and task.exception() is not None:
            return task.exception()
    return CoordinatorCancelled("it was cancelled before everything was written")
