"""How writes enter a coordinator: bounded channels, and the handles that writers hold.

Room in a full channel goes to the caller that came first. It is reserved for that caller, which
enqueues its command when it resumes: a call that is cancelled before that has enqueued nothing.

A handle of a write costs nothing until a task waits for it, which creates a future.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from headwater.coordinator.contract import (
    ApplyFailed,
    Backpressure,
    ChannelConfig,
    Durability,
    Termination,
    WriteTimeout,
    message_of,
)
from headwater.coordinator.progress import STORAGE_FLUSHES, CoordinatorMetrics, WriteWatermarks
from headwater.core.errors import Refused

W = TypeVar("W")
R = TypeVar("R")


class _Waiter(NamedTuple):
    size_bytes: int
    admitted: asyncio.Future[None]


class Channel:
    """A bounded queue of commands for the writer."""

    def __init__(self, config: ChannelConfig, capacity: int, wake: Callable[[], None]) -> None:
        self.name = config.name
        self.is_paused = False
        self.counts_bytes = config.capacity_bytes is not None
        self.commands: deque[Any] = deque()
        self._sizes: deque[int] = deque()
        self._size_bytes = 0
        self._config = config
        self._capacity = config.capacity or capacity
        self._waiting: deque[_Waiter] = deque()
        self._reserved = 0
        self._wake = wake
        self._termination: Termination | None = None

    def __repr__(self) -> str:
        paused = ", paused" if self.is_paused else ""
        return f"<channel {self.name!r}: {len(self.commands):,} waiting{paused}>"

    def offer(self, command: Any, write: Any) -> bool:
        """Enqueue a command if there is room and no caller waits; whether it was taken."""
        if self._termination is not None:
            raise self._termination.error(write)
        commands = self.commands
        if self.counts_bytes:
            size_bytes = self._size_of(write)
            if self._waiting or not self._has_room(size_bytes):
                return False
            self._sizes.append(size_bytes)
            self._size_bytes += size_bytes
        elif self._waiting or len(commands) + self._reserved >= self._capacity:
            return False
        commands.append(command)
        if len(commands) == 1:
            self._wake()  # with more commands the writer is busy, or the channel is paused
        return True

    async def put(self, command: Any, write: Any) -> None:
        """Enqueue a command that was not taken by `offer`, once there is room."""
        waiter = _Waiter(self._size_of(write), asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            await waiter.admitted
        except asyncio.CancelledError:
            if not waiter.admitted.cancelled():
                self._reserve(waiter, -1)
            elif waiter in self._waiting:  # `admit_waiting` removes cancelled waiters as well
                self._waiting.remove(waiter)
            self.admit_waiting()
            raise
        self._reserve(waiter, -1)
        if self._termination is not None:
            raise self._termination.error(write)
        self.commands.append(command)
        if self.counts_bytes:
            self._sizes.append(waiter.size_bytes)
            self._size_bytes += waiter.size_bytes
        self._wake()

    def _size_of(self, write: Any) -> int:
        if not self.counts_bytes or write is None:
            return 0  # a flush has no write
        size_bytes: object = self._config.size_of(write)
        if not isinstance(size_bytes, int) or size_bytes < 0:
            raise Refused(
                f"channel {self.name!r}: size_of returned {size_bytes!r} for a write; it must "
                "return a number of bytes"
            )
        return size_bytes

    @property
    def writers_waiting(self) -> int:
        return sum(not waiter.admitted.done() for waiter in self._waiting)

    def pop(self) -> Any:
        if self.counts_bytes:
            self._size_bytes -= self._sizes.popleft()
        return self.commands.popleft()

    def admit_waiting(self) -> None:
        """Reserve the free room for the callers that wait for it."""
        while self._waiting and self._has_room(self._waiting[0].size_bytes):
            self._admit(self._waiting.popleft())

    def terminate(self, termination: Termination) -> None:
        self._termination = termination
        while self._waiting:
            self._admit(self._waiting.popleft())  # the caller raises the termination

    def drain(self) -> list[Any]:
        commands = list(self.commands)
        self.commands.clear()
        self._sizes.clear()
        self._size_bytes = 0
        return commands

    def _has_room(self, size_bytes: int) -> bool:
        if len(self.commands) + self._reserved >= self._capacity:
            return False
        limit = self._config.capacity_bytes
        return limit is None or not self._size_bytes or self._size_bytes + size_bytes <= limit

    def _admit(self, waiter: _Waiter) -> None:
        if not waiter.admitted.done():
            waiter.admitted.set_result(None)
            self._reserve(waiter, 1)

    def _reserve(self, waiter: _Waiter, count: int) -> None:
        self._reserved += count
        self._size_bytes += count * waiter.size_bytes


class WriteHandle(Generic[R]):
    """One write, or one flush, and how far it has come."""

    __slots__ = (
        "_refusal",
        "_result",
        "_termination",
        "_waiting",
        "_watermarks",
        "_write_epoch",
        "storage_flush",
        "write",
    )

    def __init__(self, write: Any, watermarks: WriteWatermarks) -> None:
        self.write = write
        """The write, until it is applied; None for a flush."""
        self.storage_flush = 0
        """The number of the storage flush that DURABLE waits for; 0 for a write."""
        self._watermarks = watermarks
        self._write_epoch = -1
        self._result: Any = None
        self._refusal: BaseException | None = None
        self._termination: Termination | None = None
        self._waiting: dict[asyncio.Future[None], None] | None = None

    def __repr__(self) -> str:
        if self._refusal is not None:
            return f"<write epoch {self._write_epoch}, refused>"
        if self._termination is not None:
            return "<write that was not applied>"
        return f"<write epoch {self._write_epoch}>" if self._write_epoch >= 0 else "<queued write>"

    async def write_epoch(self) -> int:
        """The write epoch, once the write was applied. `ApplyFailed` if the delta refused it.

        Of a flush: the write epoch of the last write before it; 0 if there was none.
        """
        await self._wait_settled()
        return self._write_epoch

    async def result(self) -> R:
        """What `apply` returned for the write."""
        await self._wait_settled()
        result: R = self._result
        return result

    async def wait(self, durability: Durability = Durability.WRITTEN) -> int:
        """Wait until the write has come this far; returns its write epoch.

        Raises `ApplyFailed`, `FlushFailed` or `Shutdown` if it never will.
        """
        durability = Durability(durability)
        await self._wait_settled()
        if durability is not Durability.APPLIED:
            await self._watermarks.wait_for(durability, self._write_epoch)
        if durability is Durability.DURABLE:
            await self._watermarks.wait_for(STORAGE_FLUSHES, self.storage_flush)
        return self._write_epoch

    # Called by the writer only.

    def set_applied(self, write_epoch: int, result: Any) -> None:
        self._write_epoch, self._result, self.write = write_epoch, result, None
        if self._waiting is not None:
            self._wake_waiting()

    def set_refused(self, write_epoch: int, error: BaseException) -> None:
        self._write_epoch, self._refusal = write_epoch, error
        if self._waiting is not None:
            self._wake_waiting()

    def terminate(self, termination: Termination) -> None:
        self._termination = termination
        if self._waiting is not None:
            self._wake_waiting()

    async def _wait_settled(self) -> None:
        if self._write_epoch < 0 and self._termination is None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._waiting is None:
                self._waiting = {}
            self._waiting[future] = None
            try:
                await future
            finally:
                if self._waiting is not None:
                    self._waiting.pop(future, None)
        # A new error for each caller: a shared one would collect every raiser's frames.
        if self._refusal is not None:
            raise ApplyFailed(self._write_epoch, message_of(self._refusal)) from self._refusal
        if self._termination is not None:
            raise self._termination.error(self.write)

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, None
        for future in waiting or ():
            # A future of a closed event loop would raise and leave the others waiting.
            if not future.done() and not future.get_loop().is_closed():
                future.set_result(None)


class FlushHandle(WriteHandle[None]):
    """A flush, queued among the writes."""

    __slots__ = ("is_durable",)

    def __init__(self, watermarks: WriteWatermarks, *, is_durable: bool) -> None:
        super().__init__(None, watermarks)
        self.is_durable = is_durable


class ChannelHandle(Generic[W, R]):
    """Writes into one channel. Any number of tasks may share it."""

    def __init__(
        self, channel: Channel, watermarks: WriteWatermarks, metrics: CoordinatorMetrics
    ) -> None:
        self._channel = channel
        self._watermarks = watermarks
        self._metrics = metrics

    def __repr__(self) -> str:
        return f"<handle of {self._channel!r}>"

    def try_write(self, write: W) -> WriteHandle[R]:
        """Enqueue a write now. `Backpressure` if there is no room; its `.write` is the write."""
        handle: WriteHandle[R] = WriteHandle(write, self._watermarks)
        if not self._channel.offer(handle, write):
            self._metrics.backpressure["full"] += 1
            raise Backpressure(f"{self._channel!r} is full: try again later", write=write)
        return handle

    async def write(self, write: W) -> WriteHandle[R]:
        """Enqueue a write once there is room. A cancelled call has enqueued nothing."""
        handle: WriteHandle[R] = WriteHandle(write, self._watermarks)
        if not self._channel.offer(handle, write):
            self._metrics.backpressure["waited"] += 1
            await self._channel.put(handle, write)
        return handle

    async def write_timeout(self, write: W, timeout_s: float) -> WriteHandle[R]:
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
        """Enqueue a flush of all writes before it, once there is room; wait on the handle.

        With `durable` the flusher's `flush_storage` runs as well, also if no write is unflushed.
        """
        handle = FlushHandle(self._watermarks, is_durable=durable)
        if not self._channel.offer(handle, None):
            self._metrics.backpressure["waited"] += 1
            await self._channel.put(handle, None)
        return handle


class PauseHandle:
    """Pauses a channel: commands stay queued and fill it."""

    def __init__(self, channel: Channel, wake: Callable[[], None]) -> None:
        self._channel = channel
        self._wake = wake

    def pause(self) -> None:
        """Take nothing more from the channel; other channels are not affected."""
        self._channel.is_paused = True

    def unpause(self) -> None:
        self._channel.is_paused = False
        self._wake()
