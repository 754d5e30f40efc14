"""The flush loop: hands frozen deltas to the flusher, one at a time and in order.

Always holds:

- the view that shows a flush is published before the watermark that announces it;
- at most `max_frozen` deltas are frozen: whoever would freeze another waits;
- an error of the flusher ends the loop with it, unless it is `Unavailable`: that flush is tried
  again, with growing pauses, while writers meet ever fuller channels.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from headwater.coordinator.config import CoordinatorConfig
from headwater.coordinator.delta import Flusher
from headwater.coordinator.metrics import CoordinatorMetrics
from headwater.coordinator.view import ViewBoard
from headwater.coordinator.watermarks import Watermarks
from headwater.core import limits, runtime
from headwater.core.errors import Unavailable

T = TypeVar("T")


class Event(NamedTuple):
    """Something for the flusher to do."""

    frozen: Any
    epochs: range | None
    """None for a flush of the storage."""
    number: int = 0
    """Of the storage flush."""


class Flushing:
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
        self._events: deque[Event] = deque()
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
        self._add(Event(frozen, epochs))

    def next_storage_flush(self) -> int:
        """The number of the flush of the storage that is asked for next."""
        self._asked += 1
        return self._asked

    def storage(self, number: int) -> None:
        """Flush the storage after everything before it."""
        # One that has not begun serves this call as well. The first may have begun.
        if len(self._events) > 1 and self._events[-1].epochs is None:
            self._events.pop()
        self._add(Event(None, None, number))

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

    def _add(self, event: Event) -> None:
        self._events.append(event)
        _tell(self._changed)


def _tell(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
