"""The end of the log in memory: one copy, shared by all who read it, bounded by bytes."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from headwater.log.record.columns import NO_RECORDS
from headwater.log.record.group import Group
from headwater.log.spool.taking import Taking

_DROPPED: Final = Group(0, 0, 0, NO_RECORDS, 0, "no longer held")
"""Stands where a group stood, whose memory is free at once."""


class Tail:
    """The newest groups. Groups are never changed, so readers hold the very same memory.

    Always holds: LSNs from `first_lsn` to the last written are here, without gaps; where nothing
    is here, `first_lsn` is the next one.
    """

    def __init__(self, next_lsn: int, *, max_bytes: int) -> None:
        self._mutex = threading.Lock()
        self._max_bytes = max_bytes
        self._groups: list[Group] = []
        self._lasts: list[int] = []
        self._gone = 0
        """Groups at the beginning of the lists that were dropped."""
        self._next_lsn = next_lsn
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of records that are held, with what holds them."""
        return self._size_bytes

    def extend(self, groups: Iterable[Group]) -> None:
        """Add what was written, and drop from the other end what is too much."""
        with self._mutex:
            for group in groups:
                self._groups.append(group)
                self._lasts.append(group.last_lsn)
                self._next_lsn = group.last_lsn + 1
                self._size_bytes += group.cost_bytes
            while self._size_bytes > self._max_bytes and self._gone < len(self._groups):
                self._drop_first()
            self._compact()

    def prune_through(self, lsn: int) -> None:
        """Drop groups that lie wholly at or below `lsn`."""
        with self._mutex:
            while self._gone < len(self._groups) and self._lasts[self._gone] <= lsn:
                self._drop_first()
            self._compact()

    def restart(self, next_lsn: int) -> None:
        """Forget everything."""
        with self._mutex:
            self._groups.clear()
            self._lasts.clear()
            self._gone = self._size_bytes = 0
            self._next_lsn = next_lsn

    def take(self, lsn: int, taking: Taking) -> bool:
        """Hand out what is above `lsn`; False if the tail does not reach back so far."""
        with self._mutex:
            if self._gone == len(self._groups):
                return lsn + 1 >= self._next_lsn
            if lsn + 1 < self._groups[self._gone].first_lsn:
                return False
            place = bisect_right(self._lasts, lsn, self._gone)
            # Cutting and counting happen beside the lock; the groups themselves never change.
            found = self._groups[place : place + taking.max_records]
        for group in found:
            if not taking.add(group):
                break
        return True

    def _drop_first(self) -> None:
        self._size_bytes -= self._groups[self._gone].cost_bytes
        self._groups[self._gone] = _DROPPED
        self._gone += 1

    def _compact(self) -> None:
        if 2 * self._gone > len(self._groups):
            del self._groups[: self._gone], self._lasts[: self._gone]
            self._gone = 0
