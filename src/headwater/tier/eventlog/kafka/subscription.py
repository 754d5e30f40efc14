"""Following partitions of a topic: what is followed, and the items, on the event loop.

Rounds of reading run on a thread while somebody waits for an item, one after the other. The client
reads ahead by itself, within a bound. A subscription that is dropped without being closed gives its
client back once the round under way has ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

from headwater.core import runtime
from headwater.core.errors import Refused
from headwater.tier.eventlog.items import Item, PartitionFailed, PositionReached
from headwater.tier.eventlog.kafka.records import Happening


class Rounds(Protocol):
    """Reading on a thread, one call at a time; see `Reader`."""

    def round(self, removed: list[int], added: dict[int, int]) -> list[Happening]:
        """Follow these no longer, follow those from their offsets, and wait for what there is."""
        ...

    def interrupt(self, interrupted: bool = True) -> None:
        """From any thread: let a round that waits for records end soon."""
        ...

    def close(self) -> None:
        """Let go of the client."""
        ...


@dataclass(slots=True, eq=False)
class _Followed:
    """A partition from when it was added until it is removed. Added again it is another one."""

    next_offset: int
    failed: bool = False


class KafkaSubscription:
    """Its own assignment, and its own items. For one event loop."""

    def __init__(
        self,
        reader: Rounds,
        check: Callable[[int, int], None],
        forget: Callable[[KafkaSubscription], None],
    ) -> None:
        self._reader = reader
        self._check = check
        self._forget = forget
        self._followed: dict[int, _Followed] = {}
        self._reading: dict[int, _Followed] = {}
        """What the reader was told, as of the last round that was begun."""
        self._ready: deque[Happening] = deque()
        self._round: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        # A round holds the subscription: when it is dropped, the reader is at rest.
        dropped = contextvars.copy_context().run
        loop = asyncio.get_running_loop()
        self._dropped = weakref.finalize(self, runtime.call_on, loop, dropped, _let_go, reader)
        self._dropped.atexit = False

    @property
    def items(self) -> AsyncIterator[Item]:
        """The items: the subscription itself."""
        return self

    @property
    def assignment(self) -> KafkaSubscription:
        """The assignment: the subscription itself."""
        return self

    def add(self, partition: int, start_offset: int) -> None:
        """Follow a partition from an offset on."""
        self._check(partition, start_offset)
        if self._closing is not None:
            raise Refused("the subscription is closed: subscribe again")
        if partition not in self._followed:
            self._followed[partition] = _Followed(start_offset)
            self._reader.interrupt()

    def remove(self, partition: int) -> None:
        """Follow a partition no longer."""
        if self._followed.pop(partition, None) is not None:
            self._ready = deque(item for item in self._ready if item.partition != partition)
            self._reader.interrupt()

    def assigned(self) -> list[int]:
        """The partitions that are followed."""
        return sorted(self._followed)

    async def close(self) -> None:
        """Follow nothing any more, and let go of the client; the items end."""
        if self._closing is None:
            self._followed.clear()
            self._ready.clear()
            self._forget(self)
            self._reader.interrupt()
            self._dropped.detach()
            self._closing = runtime.spawn(self._close(), name="kafka subscription closing")
        await asyncio.shield(self._closing)

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Happening:
        while self._closing is None:
            if self._ready:
                return self._take()
            if self._round is None:
                self._round = runtime.spawn(self._read(), name="kafka subscription")
            # Whoever gives up waiting leaves the round to whoever waits next.
            await asyncio.shield(self._round)
        raise StopAsyncIteration

    def _take(self) -> Happening:
        item = self._ready.popleft()
        if isinstance(item, PartitionFailed):
            del self._followed[item.partition]
        return item

    async def _read(self) -> None:
        """One round: tell the reader what is to be followed, and keep what it brings."""
        self._reader.interrupt(False)
        reading, self._reading = self._reading, dict(self._followed)
        removed = [p for p, followed in reading.items() if self._reading.get(p) is not followed]
        added = {
            partition: followed.next_offset
            for partition, followed in self._reading.items()
            if reading.get(partition) is not followed
        }
        try:
            for item in await runtime.run_blocking(self._reader.round, removed, added):
                self._keep(item)
        except asyncio.CancelledError:
            # The event loop ends: a thread that went on would hold up the end of the process.
            self._reader.interrupt()
            raise
        finally:
            self._round = None

    def _keep(self, item: Happening) -> None:
        followed = self._reading.get(item.partition)
        # Removed while it was fetched, or added again since: what was fetched is not for that.
        if followed is None or self._followed.get(item.partition) is not followed:
            return
        if followed.failed:
            return
        if isinstance(item, PartitionFailed):
            followed.failed = True
        elif isinstance(item, PositionReached):
            if item.next_offset <= followed.next_offset:
                return  # Nothing that the events before it have not told.
            followed.next_offset = item.next_offset
        elif item.offset < followed.next_offset:
            return
        else:
            followed.next_offset = item.offset + 1
        self._ready.append(item)

    async def _close(self) -> None:
        if self._round is not None:
            await asyncio.wait([self._round])
        await runtime.run_blocking(self._reader.close)


def _let_go(reader: Rounds) -> None:
    runtime.spawn(runtime.run_blocking(reader.close), name="kafka subscription dropped")
