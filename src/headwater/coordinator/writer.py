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
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from headwater.coordinator.channel import Channel, FlushHandle, WriteHandle
from headwater.coordinator.contract import CoordinatorConfig, Delta, DeltaView, Flusher, FrozenDelta
from headwater.coordinator.progress import CoordinatorMetrics, ViewBoard, WriteWatermarks
from headwater.core import limits, runtime
from headwater.core.errors import Unavailable
from headwater.core.retry import retry_pause_s

T = TypeVar("T")


class _FrozenEpochs(NamedTuple):
    frozen: Any
    write_epochs: range


class FlushLoop:
    """Queues calls of the flusher and makes them in order."""

    def __init__(
        self,
        config: CoordinatorConfig,
        flusher: Flusher[Any, Any],
        watermarks: WriteWatermarks,
        board: ViewBoard[Any, Any, Any],
        metrics: CoordinatorMetrics,
    ) -> None:
        self._config = config
        self._flusher = flusher
        self._watermarks = watermarks
        self._board = board
        self._metrics = metrics
        self._events: deque[_FrozenEpochs | int] = deque()
        """Deltas to flush, and numbers of storage flushes."""
        self._frozen = 0
        self._last_flushed = 0
        self._storage_flushes_requested = 0
        self._is_stopping = False
        self._give_up_at_s: float | None = None
        self._changed = asyncio.Event()
        self._giving_up = asyncio.Event()
        self._room_freed = asyncio.Event()

    @property
    def has_room(self) -> bool:
        return self._frozen < self._config.max_frozen

    async def wait_for_room(self) -> None:
        while not self.has_room:
            self._room_freed.clear()
            await self._room_freed.wait()

    def add_delta(self, frozen: Any, write_epochs: range) -> None:
        """Queue a frozen delta, which the view shows already."""
        self._frozen += 1
        self._metrics.frozen = self._frozen
        self._add(_FrozenEpochs(frozen, write_epochs))

    def next_storage_flush(self) -> int:
        self._storage_flushes_requested += 1
        return self._storage_flushes_requested

    def add_storage_flush(self, number: int) -> None:
        # A queued one that has not begun is replaced by this one. The first may have begun.
        if len(self._events) > 1 and isinstance(self._events[-1], int):
            self._events.pop()
        self._add(number)

    def give_up_in(self, seconds: float) -> None:
        """Repeat flushes with `Unavailable` errors for this long at most, and the next one now."""
        if self._give_up_at_s is None:
            self._give_up_at_s = runtime.monotonic_s() + seconds
        self._giving_up.set()

    def stop(self) -> None:
        """End once everything is flushed; nothing is added any more."""
        self._is_stopping = True
        self._changed.set()

    async def run(self) -> None:
        """Run until stopped with everything flushed; raises what the flusher raises."""
        while True:
            while self._events:
                event = self._events[0]
                if isinstance(event, int):
                    await self._flush_storage(event)
                else:
                    await self._flush(event.frozen, event.write_epochs)
                self._events.popleft()
            if self._is_stopping:
                return
            self._changed.clear()
            await self._changed.wait()

    async def _flush(self, frozen: Any, write_epochs: range) -> None:
        started_s = runtime.monotonic_s()
        snapshot = await self._persist(lambda: self._flusher.flush_delta(frozen, write_epochs))
        self._last_flushed = write_epochs.stop - 1
        # The view first: a task that the watermark wakes reads the view.
        self._board.publish_flushed(snapshot, write_epochs)
        self._watermarks.set_written(self._last_flushed)
        self._metrics.flush_seconds.observe(runtime.monotonic_s() - started_s)
        self._frozen -= 1
        self._metrics.frozen = self._frozen
        self._room_freed.set()

    async def _flush_storage(self, number: int) -> None:
        await self._persist(self._flusher.flush_storage)
        self._watermarks.set_durable(self._last_flushed)
        self._watermarks.set_storage_flushed(number)

    async def _persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat `attempt` until it succeeds, fails for good, or a stop's grace period is over."""
        failures = 0
        while True:
            try:
                return await attempt()
            except Unavailable:
                give_up_at_s = self._give_up_at_s
                if give_up_at_s is not None and runtime.monotonic_s() >= give_up_at_s:
                    raise
            self._metrics.flush_retries += 1
            base_s, cap_s = limits.BACKOFF_BASE_S, limits.BACKOFF_CAP_S
            await self._pause(retry_pause_s(failures, base_s=base_s, cap_s=cap_s))
            failures += 1

    async def _pause(self, seconds: float) -> None:
        """Wait; a stop that begins meanwhile ends the wait."""
        if self._give_up_at_s is not None:
            await runtime.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._giving_up.wait()

    def _add(self, event: _FrozenEpochs | int) -> None:
        self._events.append(event)
        self._changed.set()


_AnyDelta = Delta[Any, Any, Any, Any, Any, Any]


class Writer:
    """Takes commands from the channels, applies them to the current delta, and freezes it."""

    def __init__(
        self,
        config: CoordinatorConfig,
        channels: list[Channel],
        delta: _AnyDelta,
        new_delta: Callable[[Any], _AnyDelta],
        watermarks: WriteWatermarks,
        board: ViewBoard[Any, Any, Any],
        flush_loop: FlushLoop,
        metrics: CoordinatorMetrics,
    ) -> None:
        self.channels = channels
        self._config = config
        self._delta = delta
        self._new_delta = new_delta
        self._watermarks = watermarks
        self._board = board
        self._flush_loop = flush_loop
        self._metrics = metrics
        self._next_write_epoch = 1
        self._delta_start = 1
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False
        self._is_stopping = False
        self._changed = asyncio.Event()

    def wake(self) -> None:
        self._changed.set()

    def stop(self) -> None:
        """Apply and flush what is queued, then end."""
        self._is_stopping = True
        self.wake()

    def close(self) -> None:
        """Cancel the timer, which would keep the coordinator in memory until it is due."""
        if self._timer is not None:
            self._timer.cancel()

    async def run(self) -> None:
        """Run until stopped, with every unpaused channel empty and the last delta queued."""
        while True:
            # First: channels that are never empty must not defer the interval without end.
            if self._is_due:
                await self._flush("interval")
            if await self._run_turn():
                await runtime.sleep(0)  # let other tasks run
            elif self._is_stopping and not self._is_due:
                break
            elif not self._is_due:
                self._changed.clear()
                await self._changed.wait()
        await self._flush("stop")

    async def _run_turn(self) -> bool:
        """Take from the channels until they are empty or the turn is over; whether it took any."""
        left = limits.COORDINATOR_TURN_WRITES
        while left > 0:
            ready = [one for one in self.channels if one.commands and not one.is_paused]
            if not ready:
                break
            # One round: an equal share of what is left of this turn for each channel.
            share = max(1, left // len(ready))
            for channel in ready:
                left -= await self._take(channel, share)
        self._publish_progress()
        return left < limits.COORDINATOR_TURN_WRITES

    def _publish_progress(self) -> None:
        self._watermarks.set_applied(self._next_write_epoch - 1)
        self._metrics.delta_bytes = self._delta.estimate_size()
        for channel in self.channels:
            channel.admit_waiting()

    async def _take(self, channel: Channel, most: int) -> int:
        taken = 0
        while taken < most and channel.commands and not channel.is_paused:
            if isinstance(channel.commands[0], FlushHandle):
                taken += 1
                await self._run_flush_command(channel.pop())
                continue
            taken += self._apply_some(channel, most - taken)
            if self._delta.estimate_size() >= self._config.flush_size_bytes:
                await self._flush("size")
        return taken

    def _apply_some(self, channel: Channel, most: int) -> int:
        """Apply writes up to the next flush, by size or by command. Returns how many.

        One loop with few calls: a call for each write is most of what a coordinator costs.
        """
        started_s, first = runtime.monotonic_s(), self._next_write_epoch
        commands, delta, full = channel.commands, self._delta, self._config.flush_size_bytes
        pop = channel.pop if channel.counts_bytes else commands.popleft
        if first == self._delta_start:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._config.flush_interval_s, self._set_due)
        taken = 0
        # A delta may pause the channel while it applies a write.
        while taken < most and commands and not channel.is_paused:
            if isinstance(commands[0], FlushHandle):
                break
            handle: WriteHandle[Any] = pop()
            taken += 1
            write_epoch = self._next_write_epoch
            self._next_write_epoch = write_epoch + 1
            try:
                result = delta.apply(handle.write)
            except BaseException as error:
                self._refuse(handle, write_epoch, error)
            else:
                handle.set_applied(write_epoch, result)
            if delta.estimate_size() >= full:
                break
        self._metrics.writes_taken += taken
        self._metrics.apply_seconds.observe(runtime.monotonic_s() - started_s)
        return taken

    def _refuse(self, handle: WriteHandle[Any], write_epoch: int, error: BaseException) -> None:
        # In any case: the handle left its channel, so nothing else would settle it.
        handle.set_refused(write_epoch, error)
        self._metrics.writes_refused += 1
        if not isinstance(error, Exception):
            raise error  # not a refusal: it terminates the coordinator

    async def _run_flush_command(self, handle: FlushHandle) -> None:
        number = self._flush_loop.next_storage_flush() if handle.is_durable else 0
        # Settled before anything is awaited: its waiters then wait on the watermarks, which raise
        # a failure.
        handle.storage_flush = number
        handle.set_applied(self._next_write_epoch - 1, None)
        await self._flush("command")
        if number:
            self._flush_loop.add_storage_flush(number)

    def _set_due(self) -> None:
        self._is_due = True
        self.wake()

    async def _flush(self, reason: str) -> None:
        """Freeze the delta and queue it for the flusher, unless it has no writes."""
        # The watermark first: writes in a published view count as applied.
        self._watermarks.set_applied(self._next_write_epoch - 1)
        if self._next_write_epoch == self._delta_start:
            self._is_due = False
            return
        if not self._flush_loop.has_room:
            self._metrics.backpressure["frozen"] += 1
            self._publish_progress()
            await self._flush_loop.wait_for_room()
        if self._timer is not None:
            self._timer.cancel()
        self._is_due = False
        started_s = runtime.monotonic_s()
        write_epochs = range(self._delta_start, self._next_write_epoch)
        self._delta_start = self._next_write_epoch
        frozen: FrozenDelta[Any, Any, Any] = self._delta.freeze()
        self._delta = self._new_delta(frozen.context)
        self._board.publish_frozen(DeltaView(frozen.view, write_epochs), self._delta.reader())
        self._flush_loop.add_delta(frozen.frozen, write_epochs)
        self._metrics.flushes[reason] += 1
        self._metrics.freeze_seconds.observe(runtime.monotonic_s() - started_s)
