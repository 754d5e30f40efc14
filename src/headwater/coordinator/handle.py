"""What writers hold: a way into a channel, and a promise for each write.

A promise costs nothing until somebody waits for it: the write and what became of it stand in one
small object, and futures are made by those who wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from headwater.coordinator.channel import Channel
from headwater.coordinator.delta import Durability
from headwater.coordinator.errors import ApplyFailed, Backpressure, Termination, WriteTimeout
from headwater.coordinator.view import View, ViewBoard, ViewMonitor, ViewSubscriber
from headwater.coordinator.watermarks import STORAGE_FLUSHES, CoordinatorMetrics, Watermarks

W = TypeVar("W")
R = TypeVar("R")
D = TypeVar("D")
V = TypeVar("V")
S = TypeVar("S")


class WriteHandle(Generic[R]):
    """One write, or one flush, on its way."""

    __slots__ = (
        "_ending",
        "_epoch",
        "_refusal",
        "_result",
        "_waiting",
        "_watermarks",
        "storage_flush",
        "write",
    )

    def __init__(self, write: Any, watermarks: Watermarks) -> None:
        self.write = write
        """What is written, until it is applied; None for a flush."""
        self.storage_flush = 0
        """The number of the storage flush that DURABLE waits for; 0 for a write."""
        self._watermarks = watermarks
        self._epoch = -1
        self._result: Any = None
        self._refusal: BaseException | None = None
        self._ending: Termination | None = None
        self._waiting: dict[asyncio.Future[None], None] | None = None

    def __repr__(self) -> str:
        if self._refusal is not None:
            return f"<write epoch {self._epoch}, refused>"
        if self._ending is not None:
            return "<write that was not applied>"
        return f"<write epoch {self._epoch}>" if self._epoch >= 0 else "<write that waits>"

    async def epoch(self) -> int:
        """The write epoch, once it was applied. `ApplyFailed` if the delta refused it.

        Of a flush: that of the last write before it; 0 if there was none.
        """
        await self._settled()
        return self._epoch

    async def result(self) -> R:
        """What the delta answered."""
        await self._settled()
        result: R = self._result
        return result

    async def wait(self, durability: Durability = Durability.WRITTEN) -> int:
        """Wait until the write has come so far; returns its write epoch.

        Raises what became of it instead: `ApplyFailed`, `FlushFailed`, or `Shutdown`.
        """
        durability = Durability(durability)
        await self._settled()
        if durability is not Durability.APPLIED:
            await self._watermarks.reached(durability, self._epoch)
        if durability is Durability.DURABLE:
            await self._watermarks.reached(STORAGE_FLUSHES, self.storage_flush)
        return self._epoch

    # For the writer alone.

    def applied(self, epoch: int, result: Any) -> None:
        """The delta took it."""
        self._epoch, self._result, self.write = epoch, result, None
        if self._waiting is not None:
            self._tell()

    def refused(self, epoch: int, error: BaseException) -> None:
        """The delta did not take it."""
        self._epoch, self._refusal = epoch, error
        if self._waiting is not None:
            self._tell()

    def ended(self, ending: Termination) -> None:
        """It was not applied and will not be."""
        self._ending = ending
        if self._waiting is not None:
            self._tell()

    async def _settled(self) -> None:
        if self._epoch < 0 and self._ending is None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._waiting is None:
                self._waiting = {}
            self._waiting[future] = None
            try:
                await future
            finally:
                if self._waiting is not None:
                    self._waiting.pop(future, None)
        # An error of its own for each who asks: a raised one gathers its raiser's frames.
        if self._refusal is not None:
            raise ApplyFailed.of(self._epoch, self._refusal) from self._refusal
        if self._ending is not None:
            raise self._ending.error(self.write)

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, None
        for future in waiting or ():
            # One whose event loop is gone must not keep the others from being told.
            if not future.done() and not future.get_loop().is_closed():
                future.set_result(None)


class FlushCommand:
    """A flush, in its place among the writes."""

    __slots__ = ("durable", "handle")

    def __init__(self, handle: WriteHandle[None], durable: bool) -> None:
        self.handle = handle
        self.durable = durable

    def ended(self, ending: Termination) -> None:
        """It will not be."""
        self.handle.ended(ending)


class ChannelHandle(Generic[W, R, D, V, S]):
    """A way into one channel. Any number of tasks may hold it."""

    def __init__(
        self,
        channel: Channel,
        watermarks: Watermarks,
        board: ViewBoard[D, V, S],
        metrics: CoordinatorMetrics,
    ) -> None:
        self._channel = channel
        self._watermarks = watermarks
        self._board = board
        self._metrics = metrics

    def __repr__(self) -> str:
        return f"<handle of {self._channel!r}>"

    def try_write(self, write: W) -> WriteHandle[R]:
        """Put a write in, now. `Backpressure` if there is no room; its `.write` is the write."""
        handle: WriteHandle[R] = WriteHandle(write, self._watermarks)
        if not self._channel.offer(handle, write):
            self._metrics.backpressure["full"] += 1
            raise Backpressure(f"{self._channel!r} is full: try again later", write=write)
        return handle

    async def write(self, write: W) -> WriteHandle[R]:
        """Put a write in, once there is room. Cancelled, it has put nothing in."""
        handle: WriteHandle[R] = WriteHandle(write, self._watermarks)
        if not self._channel.offer(handle, write):
            self._metrics.backpressure["waited"] += 1
            await self._channel.put(handle, write)
        return handle

    async def write_timeout(self, write: W, timeout_s: float) -> WriteHandle[R]:
        """Put a write in if there is room in time. `WriteTimeout.write` is the write."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self.write(write)
        except TimeoutError:
            self._metrics.backpressure["timeout"] += 1
            raise WriteTimeout(
                f"channel {self._channel.name!r} was full for {timeout_s} s: try again later",
                write=write,
            ) from None

    async def flush(self, *, durable: bool = False) -> WriteHandle[None]:
        """Flush everything before this. Waits for a place in the channel; the handle tells more.

        With `durable` the flusher's `flush_storage` runs as well, also with nothing to flush.
        """
        handle: WriteHandle[None] = WriteHandle(None, self._watermarks)
        command = FlushCommand(handle, durable)
        if not self._channel.offer(command, None):
            self._metrics.backpressure["waited"] += 1
            await self._channel.put(command, None)
        return handle

    def view(self) -> View[D, V, S]:
        """What can be read at this moment."""
        return self._board.view

    def subscribe(self) -> tuple[ViewSubscriber[D, V, S], ViewMonitor]:
        """Follow the views from this moment on."""
        subscriber = ViewSubscriber(self._board)
        return subscriber, subscriber.monitor


class PauseHandle:
    """Holds a channel: what is put in waits there, and fills it."""

    def __init__(self, channel: Channel, wake: Callable[[], None]) -> None:
        self._channel = channel
        self._wake = wake

    @property
    def is_paused(self) -> bool:
        """Whether nothing is taken from the channel."""
        return self._channel.is_paused

    def pause(self) -> None:
        """Take nothing more from the channel; other channels go on."""
        self._channel.is_paused = True

    def unpause(self) -> None:
        """Go on."""
        self._channel.is_paused = False
        self._wake()
