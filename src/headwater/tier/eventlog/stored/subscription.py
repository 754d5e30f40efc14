"""What one subscriber follows of a stored log: its own assignment, and its own items.

The tasks that follow hold the subscription weakly. Whoever drops it without closing it leaves no
task behind.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from headwater.tier.eventlog.items import Item
from headwater.tier.eventlog.stored.events import StoredEvents
from headwater.tier.eventlog.stored.following import Following
from headwater.tier.eventlog.turns import TurnTaking


class StoredSubscription(TurnTaking[Following]):
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

    def _follow(self, partition: int, start_offset: int) -> Following:
        return Following(self._events_of(partition), start_offset, self._on_items)

    def _leave(self, followed: Following) -> None:
        followed.cancel()

    def _next_of(self, partition: int, followed: Following) -> Item | None:
        item = followed.take()
        if item is None and followed.crash is not None:
            raise followed.crash
        return item


def _cancel_all(followed: dict[int, Following]) -> None:
    for one in followed.values():
        one.cancel()
