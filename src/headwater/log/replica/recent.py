"""The last groups that a keyed state was given, to compare what comes again."""

from __future__ import annotations

from bisect import bisect_left

from headwater.core import limits
from headwater.log.record import Group


class Recent:
    """Groups in the order of their LSNs, bounded by what they take in memory.

    The last one stays, whatever it takes: an image says by it which log it is of.
    """

    def __init__(self, *, max_bytes: int = limits.REPLICA_RECENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._groups: list[Group] = []
        self._lasts: list[int] = []
        self._gone = 0
        """Groups at the beginning of the list that are no longer known."""
        self.size_bytes = 0

    def add(self, group: Group) -> None:
        """It was applied; what is too much goes at the other end."""
        self._groups.append(group)
        self._lasts.append(group.last_lsn)
        self.size_bytes += group.cost_bytes
        while self.size_bytes > self._max_bytes and self._gone < len(self._groups) - 1:
            self.size_bytes -= self._groups[self._gone].cost_bytes
            self._gone += 1
        if 2 * self._gone > len(self._groups):
            del self._groups[: self._gone], self._lasts[: self._gone]
            self._gone = 0

    def between(self, first_lsn: int, last_lsn: int) -> list[Group]:
        """What is known of these LSNs."""
        found: list[Group] = []
        place = bisect_left(self._lasts, first_lsn, self._gone)
        while place < len(self._groups):
            part = self._groups[place].between(first_lsn, last_lsn)
            if part is None:
                break
            found.append(part)
            place += 1
        return found
