"""The one writer: takes commands from the channels in turn, applies them, freezes the delta.

Always holds:

- write epochs are given when a write leaves its channel, from 1, without gaps, also to writes that
  the delta refuses;
- a frozen delta is in the view before the flush loop hears of it;
- nothing is awaited between taking a write and applying it: no cancellation falls in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headwater.coordinator.channel import Channel
from headwater.coordinator.config import CoordinatorConfig
from headwater.coordinator.delta import Delta, Froze, Stamped
from headwater.coordinator.flushing import Flushing
from headwater.coordinator.handle import FlushCommand, WriteHandle
from headwater.coordinator.metrics import CoordinatorMetrics
from headwater.coordinator.view import ViewBoard
from headwater.coordinator.watermarks import Watermarks
from headwater.core import limits, runtime

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
        flushing: Flushing,
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
