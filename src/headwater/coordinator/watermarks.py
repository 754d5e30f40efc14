"""How far writes have come, who waits for that, and the coordinator's metrics.

Besides the three levels of a write, flushes of the storage are counted: a caller that requests
one waits for its number, which is reached also if nothing was written before it.

Always holds: durable ≤ written ≤ applied, and none goes back. A waiting caller is woken by the
watermark or by the error that terminated the coordinator.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Final

from headwater.coordinator.channel import Channel
from headwater.coordinator.delta import Durability
from headwater.coordinator.errors import Termination
from headwater.core import runtime
from headwater.core.metrics import Histogram

STORAGE_FLUSHES: Final = max(Durability) + 1


class Watermarks:
    """The highest write epoch at each level."""

    def __init__(self) -> None:
        levels = (*Durability, STORAGE_FLUSHES)
        self._at: dict[int, int] = dict.fromkeys(levels, 0)
        self._waiting: dict[int, list[tuple[int, int, asyncio.Future[None]]]] = {
            level: [] for level in levels
        }
        self._turn = itertools.count()
        self._durable_told = 0
        self._cancelled = 0
        self._last: tuple[int, Termination] | None = None
        """What is not exceeded any more, and why."""
        self._ending: Termination | None = None

    def __repr__(self) -> str:
        return f"<applied {self.applied}, written {self.written}, durable {self.durable}>"

    @property
    def applied(self) -> int:
        """The last write that the delta took, or refused."""
        return self._at[Durability.APPLIED]

    @property
    def written(self) -> int:
        """The last write that is in the snapshot."""
        return self._at[Durability.WRITTEN]

    @property
    def durable(self) -> int:
        """The last write that is as safe as it gets."""
        return self._at[Durability.DURABLE]

    def apply(self, epoch: int) -> None:
        """Writes through this one are in the delta."""
        self._raise(Durability.APPLIED, epoch)

    def write(self, epoch: int) -> None:
        """Writes through this one are in the snapshot that readers see by now."""
        self._raise(Durability.WRITTEN, epoch)
        self.make_durable(self._durable_told)

    def make_durable(self, epoch: int) -> None:
        """Writes through this one are durable. What is told of before it is written waits."""
        # Of a write that nobody has made in this run nobody can say anything.
        self._durable_told = max(self._durable_told, min(epoch, self.applied))
        self._raise(Durability.DURABLE, min(self._durable_told, self.written))

    def storage_flushed(self, number: int) -> None:
        """The flusher's storage was flushed for whoever asked so far."""
        self._raise(STORAGE_FLUSHES, number)

    async def reached(self, level: int, epoch: int) -> None:
        """Wait until a write has come so far; raises what ended the coordinator before that."""
        if self._at[level] >= epoch:
            return
        # Made before it is looked whether this has ended: a finaliser may end it in between.
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._ending is not None:
            raise self._ending.error()
        if self._last is not None and epoch > self._last[0]:
            raise self._last[1].error()
        heapq.heappush(self._waiting[level], (epoch, next(self._turn), future))
        try:
            await future
        except asyncio.CancelledError:
            self._forget_cancelled()
            raise

    def end(self, ending: Termination) -> None:
        """Nothing comes any further: tell everybody who waits, and who will."""
        self._ending = ending
        for waiting in self._waiting.values():
            for _, _, future in waiting:
                # One whose event loop is gone must not keep the others from being told.
                if not future.done() and not future.get_loop().is_closed():
                    future.set_exception(ending.error())
            waiting.clear()

    def end_beyond(self, epoch: int, ending: Termination) -> None:
        """Nothing comes further than this: tell those at once who wait for more."""
        self._last = (epoch, ending)
        for waiting in self._waiting.values():
            for wanted, _, future in waiting:
                if wanted > epoch:
                    _fail(future, ending)

    def end_from_anywhere(self, ending: Termination) -> None:
        """As `end`, from any thread, as a finaliser is called: each is told on its own loop."""
        self._ending = ending
        for level, waiting in self._waiting.items():
            self._waiting[level] = []
            for _, _, future in waiting:
                runtime.call_on(future.get_loop(), _fail, future, ending)

    def _forget_cancelled(self) -> None:
        """Waiters that gave up must not gather: once most have, they are taken out."""
        self._cancelled += 1
        if 2 * self._cancelled > sum(map(len, self._waiting.values())):
            self._cancelled = 0
            for level, waiting in self._waiting.items():
                self._waiting[level] = [one for one in waiting if not one[2].done()]
                heapq.heapify(self._waiting[level])

    def _raise(self, level: int, epoch: int) -> None:
        if epoch <= self._at[level]:
            return
        self._at[level] = epoch
        waiting = self._waiting[level]
        while waiting and waiting[0][0] <= epoch:
            future = heapq.heappop(waiting)[2]
            if not future.done():
                future.set_result(None)


def _fail(future: asyncio.Future[None], ending: Termination) -> None:
    if not future.done():
        future.set_exception(ending.error())


class CoordinatorMetrics:
    """Counts and durations of one coordinator."""

    def __init__(self, watermarks: Watermarks, channels: Sequence[Channel]) -> None:
        self._channels = channels
        self.writes_taken = 0
        """Writes that left their channel, refused ones included."""
        self.writes_refused = 0
        """Writes that the delta refused."""
        self.delta_bytes = 0
        """The size of the current delta, by its own estimate."""
        self.frozen = 0
        """Deltas that are frozen and not written."""
        self.flushes: Counter[str] = Counter()
        """By reason: interval, size, command, stop."""
        self.flush_retries = 0
        self.backpressure: Counter[str] = Counter()
        """By reason: full (turned away at once), waited (stood in line for room), timeout (and
        gave up), frozen (the writer itself waited, for a frozen delta to be written)."""
        self.apply_seconds = Histogram()
        """Of a turn: up to COORDINATOR_TURN_WRITES writes."""
        self.freeze_seconds = Histogram()
        self.flush_seconds = Histogram()
        """From the first try of a flush until it was written."""
        self.watermarks = watermarks
        """The write epochs applied, written and durable."""

    @property
    def writes_applied(self) -> int:
        """Writes that the delta took."""
        return self.writes_taken - self.writes_refused

    @property
    def queue_depth(self) -> dict[str, int]:
        """Commands in each channel at this moment."""
        return {channel.name: len(channel.commands) for channel in self._channels}

    @property
    def writers_waiting(self) -> dict[str, int]:
        """Calls that wait for room in each channel at this moment."""
        return {channel.name: channel.writers_waiting for channel in self._channels}
