"""A bounded queue of commands with a name, which can be paused.

Whoever finds it full waits in line: room goes to those who came first, never to one who came later
and was quicker. Room is held for whoever is next, who puts the command in when it goes on: a call
that is cancelled at any point before has put nothing in.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from headwater.coordinator.delta import ChannelConfig
from headwater.coordinator.errors import Termination
from headwater.core.errors import Refused


class Waiter(NamedTuple):
    """Somebody in line, and how much room it needs."""

    size_bytes: int
    admitted: asyncio.Future[None]


class Channel:
    """Commands on their way to the writer."""

    def __init__(self, config: ChannelConfig, capacity: int, wake: Callable[[], None]) -> None:
        self.name = config.name
        self.is_paused = False
        self.counts_bytes = config.capacity_bytes is not None
        self.commands: deque[Any] = deque()
        self._sizes: deque[int] = deque()
        self._size_bytes = 0
        self._config = config
        self._capacity = config.capacity or capacity
        self._line: deque[Waiter] = deque()
        self._held = 0
        self._wake = wake
        self._ending: Termination | None = None

    def __repr__(self) -> str:
        paused = ", paused" if self.is_paused else ""
        return f"<channel {self.name!r}: {len(self.commands):,} waiting{paused}>"

    def offer(self, command: Any, write: Any) -> bool:
        """Put a command in if there is room and nobody waits for it; whether it went in."""
        if self._ending is not None:
            raise self._ending.error(write)
        commands = self.commands
        if self.counts_bytes:
            size_bytes = self._size_of(write)
            if self._line or not self._has_room(size_bytes):
                return False
            self._sizes.append(size_bytes)
            self._size_bytes += size_bytes
        elif self._line or len(commands) + self._held >= self._capacity:
            return False
        commands.append(command)
        if len(commands) == 1:
            self._wake()  # with more in it the writer is at work, or the channel is paused
        return True

    async def put(self, command: Any, write: Any) -> None:
        """Put a command in once those who came before have found room, and there is more."""
        if self._ending is not None:
            raise self._ending.error(write)
        size_bytes = self._size_of(write)
        await self._stand_in_line(size_bytes)
        if self._ending is not None:
            raise self._ending.error(write)
        self._admit(command, size_bytes)

    def _size_of(self, write: Any) -> int:
        """Bytes that a write counts for; a flush, which is none, counts for nothing."""
        if not self.counts_bytes or write is None:
            return 0
        size_bytes: object = self._config.size_of(write)
        if not isinstance(size_bytes, int) or size_bytes < 0:
            raise Refused(
                f"channel {self.name!r}: size_of gave {size_bytes!r} for a write; it must give a "
                "number of bytes"
            )
        return size_bytes

    @property
    def writers_waiting(self) -> int:
        """Calls that wait for room."""
        return sum(not waiter.admitted.done() for waiter in self._line)

    def pop(self) -> Any:
        """The next command; there must be one."""
        if self.counts_bytes:
            self._size_bytes -= self._sizes.popleft()
        return self.commands.popleft()

    def let_in(self) -> None:
        """Give the room that became free to those who wait for it."""
        while self._line and self._has_room(self._line[0].size_bytes):
            waiter = self._line.popleft()
            if not waiter.admitted.done():
                self._hold(waiter.size_bytes)
                waiter.admitted.set_result(None)

    def end(self, ending: Termination) -> None:
        """Take in nothing more, and turn those in line away."""
        self._ending = ending
        line, self._line = self._line, deque()
        for waiter in line:
            if not waiter.admitted.done():
                waiter.admitted.set_result(None)  # who goes on sees how it ended, and says so
                self._hold(waiter.size_bytes)

    def drop(self) -> list[Any]:
        """What is left in the channel, which is empty then."""
        left = list(self.commands)
        self.commands.clear()
        self._sizes.clear()
        self._size_bytes = 0
        return left

    def _has_room(self, size_bytes: int) -> bool:
        if len(self.commands) + self._held >= self._capacity:
            return False
        limit = self._config.capacity_bytes
        return limit is None or not self._size_bytes or self._size_bytes + size_bytes <= limit

    async def _stand_in_line(self, size_bytes: int) -> None:
        """Return once room is held, and give the hold up for the command that comes next."""
        waiter = Waiter(size_bytes, asyncio.get_running_loop().create_future())
        self._line.append(waiter)
        try:
            await waiter.admitted
        except asyncio.CancelledError:
            if waiter.admitted.cancelled():
                # Unless it was passed already: whoever gives room out skips those who left.
                if waiter in self._line:
                    self._line.remove(waiter)
            else:
                self._release(size_bytes)
            self.let_in()
            raise
        self._release(size_bytes)

    def _hold(self, size_bytes: int) -> None:
        self._held += 1
        self._size_bytes += size_bytes

    def _release(self, size_bytes: int) -> None:
        self._held -= 1
        self._size_bytes -= size_bytes

    def _admit(self, command: Any, size_bytes: int) -> None:
        self.commands.append(command)
        if self.counts_bytes:
            self._sizes.append(size_bytes)
            self._size_bytes += size_bytes
        self._wake()
