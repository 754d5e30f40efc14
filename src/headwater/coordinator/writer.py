"""The two loops of a coordinator: the writer and the flush loop.

The writer takes commands from the channels in turn, applies them to the delta and freezes it.
The flush loop hands frozen deltas to the flusher, one at a time and in order.

Always holds:

- write epochs are assigned when a write leaves its channel: from 1, without gaps, also to
  writes that the delta refuses;
- nothing is awaited between taking a write and applying it: no cancellation falls in between;
- a frozen delta is in the view before the flush loop gets it, and the view that shows a flush
  is published before the watermark that announces it;
- at most `max_frozen` deltas are frozen; the writer waits before it freezes another;
- an error of the flusher ends the flush loop, except `Unavailable`: that flush is tried again,
  with growing pauses, while the channels fill up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from headwater.coordinator.channel import Channel
from headwater.coordinator.delta import CoordinatorConfig, Delta, Flusher, Froze, Stamped
from headwater.coordinator.handle import FlushCommand, WriteHandle
from headwater.coordinator.view import ViewBoard
from headwater.coordinator.watermarks import CoordinatorMetrics, Watermarks
from headwater.core import limits, runtime
from headwater.core.errors import Unavailable

T = TypeVar("T")


class FlushEvent(NamedTuple):
    """Something for the flusher to do."""

    frozen: Any
    epochs: range | None
    """None for a flush of the storage."""
    number: int = 0
    """Of the storage flush."""


class FlushLoop:
    """The queue of flushes and the loop that empties it."""

    def __init__(
        self,
        config: CoordinatorConfig,
        flusher: Flusher[Any, Any],
        watermarks: Watermarks,
        board: ViewBoard[Any, Any, Any],
        metrics: CoordinatorMetrics,
    ) -> None:
        self._config = config
        self._flusher = flusher
        self._watermarks = watermarks
        self._board = board
        self._metrics = metrics
        self._events: deque[FlushEvent] = deque()
        self._frozen = 0
        self._last_flushed = 0
        self._asked = 0
        self._is_stopping = False
        self._give_up_at_s: float | None = None
        self._changed: asyncio.Future[None] | None = None
        self._pausing: asyncio.Future[None] | None = None
        self._roomy: asyncio.Future[None] | None = None

    @property
    def has_room(self) -> bool:
        """Whether one more delta may be frozen."""
        return self._frozen < self._config.max_frozen

    async def room(self) -> None:
        """Wait until one more delta may be frozen."""
        while not self.has_room:
            self._roomy = asyncio.get_running_loop().create_future()
            try:
                await self._roomy
            finally:
                self._roomy = None

    def delta(self, frozen: Any, epochs: range) -> None:
        """Flush this one next; the view shows it as frozen already."""
        self._frozen += 1
        self._metrics.frozen = self._frozen
        self._add(FlushEvent(frozen, epochs))

    def next_storage_flush(self) -> int:
        """The number of the flush of the storage that is asked for next."""
        self._asked += 1
        return self._asked

    def storage(self, number: int) -> None:
        """Flush the storage after everything before it."""
        # One that has not begun serves this call as well. The first may have begun.
        if len(self._events) > 1 and self._events[-1].epochs is None:
            self._events.pop()
        self._add(FlushEvent(None, None, number))

    def give_up_in(self, seconds: float) -> None:
        """From here on try a flush whose error may pass only for so long, beginning now."""
        if self._give_up_at_s is None:
            self._give_up_at_s = runtime.monotonic_s() + seconds
        _tell(self._pausing)

    def stop(self) -> None:
        """End once everything is flushed; nothing is added any more."""
        self._is_stopping = True
        _tell(self._changed)

    async def run(self) -> None:
        """Until stopped, with everything flushed; or until the flusher fails for good."""
        while True:
            while self._events:
                event = self._events[0]
                if event.epochs is not None:
                    await self._flush(event.frozen, event.epochs)
                else:
                    await self._flush_storage(event.number)
                self._events.popleft()
            if self._is_stopping:
                return
            self._changed = asyncio.get_running_loop().create_future()
            try:
                await self._changed
            finally:
                self._changed = None

    async def _flush(self, frozen: Any, epochs: range) -> None:
        started_s = runtime.monotonic_s()
        snapshot = await self._persist(lambda: self._flusher.flush_delta(frozen, epochs))
        self._last_flushed = epochs.stop - 1
        # The view first: whoever is woken by the watermark looks at the view.
        self._board.flushed(snapshot, epochs)
        self._watermarks.write(self._last_flushed)
        self._metrics.flush_seconds.observe(runtime.monotonic_s() - started_s)
        self._frozen -= 1
        self._metrics.frozen = self._frozen
        _tell(self._roomy)

    async def _flush_storage(self, number: int) -> None:
        await self._persist(self._flusher.flush_storage)
        self._watermarks.make_durable(self._last_flushed)
        self._watermarks.storage_flushed(number)

    async def _persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until it works, or fails for good, or a stop has waited long enough."""
        pause_s = limits.BACKOFF_BASE_S
        while True:
            try:
                return await attempt()
            except Unavailable:
                given = self._give_up_at_s
                if given is not None and runtime.monotonic_s() >= given:
                    raise
            self._metrics.flush_retries += 1
            await self._pause(runtime.random().uniform(pause_s / 2, pause_s))
            pause_s = min(2 * pause_s, limits.BACKOFF_CAP_S)

    async def _pause(self, seconds: float) -> None:
        """Wait; a stop ends the wait, so that it does not begin with one."""
        if self._give_up_at_s is not None:
            await runtime.sleep(seconds)
            return
        self._pausing = asyncio.get_running_loop().create_future()
        timer = asyncio.get_running_loop().call_later(seconds, _tell, self._pausing)
        try:
            await self._pausing
        finally:
            timer.cancel()
            self._pausing = None

    def _add(self, event: FlushEvent) -> None:
        self._events.append(event)
        _tell(self._changed)


def _tell(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


AnyDelta = Delta[Any, Any, Any, Any, Any, Any]


class Writer:
    """Owns the current delta."""

    def __init__(
        self,
        config: CoordinatorConfig,
        channels: list[Channel],
        delta: AnyDelta,
        begin: Callable[[Any], AnyDelta],
        watermarks: Watermarks,
        board: ViewBoard[Any, Any, Any],
        flushing: FlushLoop,
        metrics: CoordinatorMetrics,
    ) -> None:
        self.channels = channels
        self._config = config
        self._delta = delta
        self._begin = begin
        self._watermarks = watermarks
        self._board = board
        self._flushing = flushing
        self._metrics = metrics
        self._epoch = 1
        self._delta_start = 1
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False
        self._is_stopping = False
        self._sleeping: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """There may be something to do."""
        if self._sleeping is not None and not self._sleeping.done():
            self._sleeping.set_result(None)

    def stop(self) -> None:
        """Apply and flush what is there, then end."""
        self._is_stopping = True
        self.wake()

    def close(self) -> None:
        """Let go of the timer, which would hold all of this until it is due."""
        if self._timer is not None:
            self._timer.cancel()

    async def run(self) -> None:
        """Until stopped, with every unpaused channel empty and the last delta handed on."""
        while True:
            # First: channels that are never empty must not put the interval off for ever.
            if self._is_due:
                await self._flush("interval")
            if await self._turn():
                await runtime.sleep(0)  # others have a turn on the event loop
            elif self._is_due:
                continue
            elif self._is_stopping:
                break
            else:
                await self._sleep()
        await self._flush("stop")

    async def _sleep(self) -> None:
        self._sleeping = asyncio.get_running_loop().create_future()
        try:
            await self._sleeping
        finally:
            self._sleeping = None

    async def _turn(self) -> bool:
        """Take from every channel in turn, until all are empty or enough was done."""
        left = limits.COORDINATOR_TURN_WRITES
        while left > 0:
            ready = [one for one in self.channels if one.commands and not one.is_paused]
            if not ready:
                break
            # One round: as much from each as there is room for in this turn.
            share = max(1, left // len(ready))
            for channel in ready:
                left -= await self._take(channel, share)
        self._tell()
        return left < limits.COORDINATOR_TURN_WRITES

    def _tell(self) -> None:
        """Let others know how far this came: who waits for a write, and who waits for room."""
        self._watermarks.apply(self._epoch - 1)
        self._metrics.delta_bytes = self._delta.estimate_size()
        for channel in self.channels:
            channel.let_in()

    async def _take(self, channel: Channel, most: int) -> int:
        """Up to so many commands of one channel, in order; how many."""
        taken = 0
        while taken < most and channel.commands and not channel.is_paused:
            if isinstance(channel.commands[0], FlushCommand):
                taken += 1
                await self._command(channel.pop())
                continue
            taken += self._apply_some(channel, most - taken)
            if self._delta.estimate_size() >= self._config.flush_size_bytes:
                await self._flush("size")
        return taken

    def _apply_some(self, channel: Channel, most: int) -> int:
        """Writes up to the next flush, by size or on command; how many. Awaits nothing.

        One loop and few calls: at a write each, they are most of what a coordinator costs.
        """
        started_s, first = runtime.monotonic_s(), self._epoch
        commands, delta, full = channel.commands, self._delta, self._config.flush_size_bytes
        pop = channel.pop if channel.counts_bytes else commands.popleft
        if first == self._delta_start:
            self._start_timer()
        taken = 0
        # A delta may pause the channel by what it finds in a write.
        while taken < most and commands and not channel.is_paused:
            if isinstance(commands[0], FlushCommand):
                break
            handle: WriteHandle[Any] = pop()
            taken += 1
            epoch = self._epoch
            self._epoch = epoch + 1
            try:
                result = delta.apply(handle.write)
            except BaseException as error:
                self._refuse(handle, epoch, error)
            else:
                handle.applied(epoch, result)
            if delta.estimate_size() >= full:
                break
        self._metrics.writes_taken += taken
        self._metrics.apply_seconds.observe(runtime.monotonic_s() - started_s)
        return taken

    def _refuse(self, handle: WriteHandle[Any], epoch: int, error: BaseException) -> None:
        # Told in any case: nobody else knows of this handle any more.
        handle.refused(epoch, error)
        self._metrics.writes_refused += 1
        if not isinstance(error, Exception):
            raise error  # no refusal: it ends the coordinator

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(
            self._config.flush_interval_s, self._due
        )

    async def _command(self, command: FlushCommand) -> None:
        number = self._flushing.next_storage_flush() if command.durable else 0
        # Settled before anything is awaited: whoever waits for it goes by the watermarks then,
        # and hears of a failure from them.
        command.handle.storage_flush = number
        command.handle.applied(self._epoch - 1, None)
        await self._flush("command")
        if number:
            self._flushing.storage(number)

    def _due(self) -> None:
        self._is_due = True
        self.wake()

    async def _flush(self, reason: str) -> None:
        """Freeze the delta and hand it on; nothing if it has no writes."""
        # What is applied is told of first: a reader that is told of a view has seen its writes.
        self._watermarks.apply(self._epoch - 1)
        if self._epoch == self._delta_start:
            self._is_due = False
            return
        if not self._flushing.has_room:
            self._metrics.backpressure["frozen"] += 1
            self._tell()
            await self._flushing.room()
        if self._timer is not None:
            self._timer.cancel()
        self._is_due = False
        started_s = runtime.monotonic_s()
        epochs = range(self._delta_start, self._epoch)
        self._delta_start = self._epoch
        froze: Froze[Any, Any, Any] = self._delta.freeze()
        self._delta = self._begin(froze.context)
        self._board.freeze(Stamped(froze.view, epochs), self._delta.reader())
        self._flushing.delta(froze.frozen, epochs)
        self._metrics.flushes[reason] += 1
        self._metrics.freeze_seconds.observe(runtime.monotonic_s() - started_s)
