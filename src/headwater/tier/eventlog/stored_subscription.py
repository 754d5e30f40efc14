"""Subscriptions to a stored log: a task follows each partition.

Below the floor a snapshot is delivered first, and then the later events. A follower that falls
behind deleted events gets the snapshot as well: it has everything that was missed.

The tasks reference the subscription weakly: one that is dropped without being closed leaves no
task.
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
    MetadataEventLog,
    PartitionFailed,
    RoundRobinSubscription,
    SnapshotDelivered,
)
from headwater.tier.eventlog.stored_events import StoredEvents, load_snapshot
from headwater.tier.eventlog.stored_floor import PartitionFloor


class PartitionFollower:
    """Fetches the items of one partition from an offset on, in order, some of them ahead."""

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
        """The error that ended it and that no item contains: a bug."""
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
        """Check the log again without waiting any longer."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def cancel(self) -> None:
        """Stop fetching. From any thread."""
        runtime.call_on(self._task.get_loop(), self._task.cancel)

    async def ended(self) -> None:
        """Wait until a cancelled follower has freed everything."""
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            await self._begin()
            await self._follow()
        except HeadwaterError as error:
            self._add(PartitionFailed(self._events.partition, error))
        except Exception as error:
            self.crash = error
            self._on_items()

    async def _begin(self) -> None:
        """Begin with the snapshot below the floor; `RolledBack` above the end."""
        events, start = self._events, self._next
        while True:
            floor, is_reached = await asyncio.gather(events.floors.read(), events.reaches(start))
            if start < floor.floor:
                await self._deliver_snapshot(floor)
                return
            if start == floor.floor or is_reached:
                return
            if events.leased_floor.covers(start - 1):
                raise RolledBack(
                    f"metadata partition {events.partition} ends below the requested offset "
                    f"{start}: this is not the log that was followed before"
                )

    async def _follow(self) -> None:
        at_once, idle_s = 1, limits.FOLLOW_POLL_BASE_S
        while True:
            while len(self._items) >= limits.EVENTS_READY:
                await self._wait(None)
            known = self._events.next_number - self._next
            at_once = max(at_once, min(known, limits.EVENT_READS_AT_ONCE))
            try:
                events = await self._events.read_events(self._next, at_once)
            except EntriesTrimmed:
                await self._deliver_snapshot(await self._events.floors.read())
                continue
            self._next += len(events)
            self._add(*events)
            if len(events) == at_once:
                at_once = min(2 * at_once, limits.EVENT_READS_AT_ONCE)
                continue
            idle_s = limits.FOLLOW_POLL_BASE_S if events else idle_s
            at_once = 1
            # Checked again after the listing: a publish meanwhile finds no waiter to wake.
            if self._is_caught_up and await self._is_end() and self._is_caught_up:
                await self._wait(idle_s)
            idle_s = min(2 * idle_s, limits.FOLLOW_POLL_CAP_S)

    @property
    def _is_caught_up(self) -> bool:
        """Whether all events were fetched that this handle knows of."""
        return self._events.next_number <= self._next

    async def _is_end(self) -> bool:
        """Whether there are no more events. From time to time a listing verifies that."""
        if runtime.monotonic_s() - self._end_checked_s < limits.EVENT_END_CHECK_S:
            return True
        is_end = await self._events.is_end(self._next)
        self._end_checked_s = runtime.monotonic_s()
        return is_end

    async def _deliver_snapshot(self, floor: PartitionFloor) -> None:
        floor, cache = await load_snapshot(self._events, floor)
        self._next = floor.floor
        self._add(SnapshotDelivered(self._events.partition, floor.floor - 1, cache))

    def _add(self, *items: LogItem) -> None:
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
    """A follower for each assigned partition."""

    def __init__(self, log: MetadataEventLog, events_of: Callable[[int], StoredEvents]) -> None:
        super().__init__(log)
        self._events_of = events_of
        wake = weakref.WeakMethod(self.wake)

        def wake_if_alive() -> None:
            alive = wake()
            if alive is not None:
                alive()

        self._on_items = wake_if_alive
        weakref.finalize(self, _cancel_all, self._followed).atexit = False

    async def close(self) -> None:
        followed = list(self._followed.values())
        await super().close()
        for follower in followed:
            await follower.ended()

    def notify(self, partition: int) -> None:
        follower = self._followed.get(partition)
        if follower is not None:
            follower.wake()

    def _follow(self, partition: int, start_offset: int) -> PartitionFollower:
        return PartitionFollower(self._events_of(partition), start_offset, self._on_items)

    def _stop(self, followed: PartitionFollower) -> None:
        followed.cancel()

    def _next_of(self, partition: int, followed: PartitionFollower) -> LogItem | None:
        item = followed.take()
        if item is None and followed.crash is not None:
            raise followed.crash
        return item


def _cancel_all(followed: dict[int, PartitionFollower]) -> None:
    for follower in followed.values():
        follower.cancel()
