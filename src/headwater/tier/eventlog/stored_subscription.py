"""Following a stored log: a task for each partition, and the subscription of one follower.

Below the floor a snapshot comes first, and the events after it. A follower that falls behind what
was deleted gets the snapshot as well: it has everything that was missed.

The tasks hold the subscription weakly: one that is dropped without being closed leaves no task.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import weakref
from collections import deque
from collections.abc import Callable

from headwater.core import limits, runtime
from headwater.core.errors import EntriesTrimmed, HeadwaterError, RolledBack
from headwater.tier.eventlog.contract import (
    LogItem,
    PartitionFailed,
    RoundRobinSubscription,
    SnapshotDelivered,
)
from headwater.tier.eventlog.stored_events import StoredEvents, load_snapshot
from headwater.tier.eventlog.stored_floor import PartitionFloor


class PartitionFollower:
    """Items of one partition from an offset on, in order, some of them fetched ahead."""

    def __init__(
        self, events: StoredEvents, start_offset: int, on_items: Callable[[], None]
    ) -> None:
        self._events = events
        self._next = start_offset
        self._on_items = on_items
        self._items: deque[LogItem] = deque()
        self._woken: asyncio.Future[None] | None = None
        self._end_checked_s = -math.inf
        self.crash: BaseException | None = None
        """The error that ended it and that no item carries: a mistake in the code."""
        name = f"follow metadata partition {events.partition}"
        self._task = runtime.spawn(self._run(), name=name)

    def take(self) -> LogItem | None:
        """The next item, if one was fetched."""
        if not self._items:
            return None
        if len(self._items) == limits.EVENTS_READY:
            self.wake()  # there is room again
        return self._items.popleft()

    def wake(self) -> None:
        """Something happened: look again without waiting any longer."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def cancel(self) -> None:
        """Fetch no more. From any thread."""
        runtime.call_on(self._task.get_loop(), self._task.cancel)

    async def ended(self) -> None:
        """Wait until a cancelled one has let go of everything."""
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            await self._begin()
            await self._go_on()
        except HeadwaterError as error:
            self._hand_on(PartitionFailed(self._events.partition, error))
        except Exception as error:
            self.crash = error
            self._on_items()

    async def _begin(self) -> None:
        """Begin with the snapshot below the floor, and not at all above the end."""
        events, start = self._events, self._next
        while True:
            floor, is_reached = await asyncio.gather(events.floors.look(), events.reaches(start))
            if start < floor.floor:
                await self._deliver_snapshot(floor)
                return
            if start == floor.floor or is_reached:
                return
            if events.leased_floor.covers(start - 1):
                raise RolledBack(
                    f"metadata partition {events.partition} ends before {start}, where it was to "
                    "be followed from: this is not the log that was followed before"
                )

    async def _go_on(self) -> None:
        at_once, idle_s = 1, limits.FOLLOW_POLL_BASE_S
        while True:
            while len(self._items) >= limits.EVENTS_READY:
                await self._wait(None)
            known = self._events.next_number - self._next
            at_once = max(at_once, min(known, limits.EVENT_READS_AT_ONCE))
            try:
                found = await self._events.read_events(self._next, at_once)
            except EntriesTrimmed:
                await self._deliver_snapshot(await self._events.floors.look())
                continue
            self._next += len(found)
            self._hand_on(*found)
            if len(found) == at_once:
                at_once = min(2 * at_once, limits.EVENT_READS_AT_ONCE)
                continue
            idle_s = limits.FOLLOW_POLL_BASE_S if found else idle_s
            at_once = 1
            # Checked again after the listing: a publish meanwhile finds no waiter to wake.
            if self._is_caught_up and await self._is_end() and self._is_caught_up:
                await self._wait(idle_s)
            idle_s = min(2 * idle_s, limits.FOLLOW_POLL_CAP_S)

    @property
    def _is_caught_up(self) -> bool:
        """Whether everything was fetched that this handle knows to be there."""
        return self._events.next_number <= self._next

    async def _is_end(self) -> bool:
        """Whether there is nothing more, which is made sure of now and then by a listing."""
        if runtime.monotonic_s() - self._end_checked_s < limits.EVENT_END_CHECK_S:
            return True
        is_end = await self._events.is_end(self._next)
        self._end_checked_s = runtime.monotonic_s()
        return is_end

    async def _deliver_snapshot(self, floor: PartitionFloor) -> None:
        floor, cache = await load_snapshot(self._events, floor)
        self._next = floor.floor
        self._hand_on(SnapshotDelivered(self._events.partition, floor.floor - 1, cache))

    def _hand_on(self, *items: LogItem) -> None:
        if items:
            self._items.extend(items)
            self._on_items()

    async def _wait(self, seconds: float | None) -> None:
        """Wait until it is woken, at most so long."""
        self._woken = asyncio.get_running_loop().create_future()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken
        self._woken = None


class StoredSubscription(RoundRobinSubscription[PartitionFollower]):
    """Partitions that are followed, each by a task of its own."""

    def __init__(
        self,
        events_of: Callable[[int], StoredEvents],
        check_start: Callable[[int, int], None],
        on_closed: Callable[[StoredSubscription], None],
    ) -> None:
        super().__init__()
        self._events_of = events_of
        self._check = check_start
        self._on_closed = on_closed
        wake = weakref.WeakMethod(self.wake)

        def wake_if_there() -> None:
            there = wake()
            if there is not None:
                there()

        self._on_items = wake_if_there
        weakref.finalize(self, _cancel_all, self._followed).atexit = False

    async def close(self) -> None:
        """Follow nothing any more; the items end."""
        followed = list(self._followed.values())
        await super().close()
        self._on_closed(self)
        for one in followed:
            await one.ended()

    def look_again(self, partition: int) -> None:
        """Something was published there."""
        followed = self._followed.get(partition)
        if followed is not None:
            followed.wake()

    def _check_start(self, partition: int, start_offset: int) -> None:
        self._check(partition, start_offset)

    def _follow(self, partition: int, start_offset: int) -> PartitionFollower:
        return PartitionFollower(self._events_of(partition), start_offset, self._on_items)

    def _leave(self, followed: PartitionFollower) -> None:
        followed.cancel()

    def _next_of(self, partition: int, followed: PartitionFollower) -> LogItem | None:
        item = followed.take()
        if item is None and followed.crash is not None:
            raise followed.crash
        return item


def _cancel_all(followed: dict[int, PartitionFollower]) -> None:
    for one in followed.values():
        one.cancel()
