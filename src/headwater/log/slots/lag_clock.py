"""When the log went past which LSN, so that a lag in records can be told in seconds.

Kept as marks, at most MARKS_MAX: when they are full every second one goes, and later ones are taken
half as often. What is told is therefore never more than the truth, and short by a mark at most.
"""

from __future__ import annotations

import bisect
from typing import Final

MARKS_MAX: Final = 512


class LagClock:
    """Marks of (time, LSN), both rising."""

    def __init__(self, *, spacing_s: float = 1.0) -> None:
        self._spacing_s = spacing_s
        self._times_s: list[float] = []
        self._lsns: list[int] = []

    def note(self, now_s: float, current_lsn: int) -> None:
        """The log is here at this time; called as often as one likes."""
        if self._lsns and (
            current_lsn <= self._lsns[-1] or now_s < self._times_s[-1] + self._spacing_s
        ):
            return
        if len(self._lsns) == MARKS_MAX:
            self._times_s, self._lsns = self._times_s[::2], self._lsns[::2]
            self._spacing_s *= 2
        self._times_s.append(now_s)
        self._lsns.append(current_lsn)

    def behind_s(self, now_s: float, lsn: int) -> float:
        """For how long, at least, the log has had something after this LSN."""
        past = bisect.bisect_right(self._lsns, lsn)
        return now_s - self._times_s[past] if past < len(self._lsns) else 0.0
