"""How much time has passed, where safety depends on it. No wall clock decides alone.

A clock may err in one direction only, and the two questions differ in which:

- *Was it less than N seconds ago?* A client that read a floor relies on it for a short time, its
  lease. Counting too little would be wrong: a machine that slept would rely on yesterday's floor.
  `Lease` uses a clock that continues while the machine sleeps. The wall clock can only end a lease
  earlier.
- *Has it been so for at least N seconds?* A collector deletes entries below a floor once the floor
  has been unchanged for several leases; until then the floor is *settling*. Counting too much would
  be wrong: it would delete entries on which a client still relies. `SettlingClock` counts only time
  that this process observed.

The obvious alternative for the second is to compare two times of the store: when it wrote the
floor, and when it wrote an object just now. A clock that was set forward in between makes every
floor old at once.

Observed time is added up in a register, so that jobs that run for a second now and then reach the
threshold as well. The rule that keeps the sum right: a process reads a `SettlingFloor`, and only
*then* begins to count. It writes back that reading plus its own count, or the stored time,
whichever is more. Two processes that count at the same time read the same number and write about
the same number; neither adds to the other's count. A write that lands late is still true.
"""

from __future__ import annotations

import msgspec

from headwater.core import runtime


class Lease:
    """Measures how long ago this process created it."""

    __slots__ = ("at_s", "at_wall_ms")

    def __init__(self) -> None:
        self.at_s = runtime.boottime_s()
        self.at_wall_ms = runtime.wall_ms()

    def is_within(self, seconds: float) -> bool:
        """Whether it was created less than `seconds` ago.

        False also if the wall clock went back, or forward by more than that: it may have been
        corrected after a sleep that a virtual machine hides from its other clocks.
        """
        for_s = runtime.boottime_s() - self.at_s
        for_wall_s = (runtime.wall_ms() - self.at_wall_ms) / 1000
        return for_s < seconds and 0 <= for_wall_s < seconds


class SettlingFloor(msgspec.Struct, frozen=True):
    """A floor, and for how long at least it has been unchanged. Part of a register."""

    floor: int = 0
    settling_ms: int = msgspec.field(default=0, name="stood_ms")

    def is_settled(self, seconds: float) -> bool:
        """Whether it has been unchanged for at least `seconds`."""
        return self.settling_ms >= seconds * 1000


class SettlingClock:
    """The time that one process observed while a floor was unchanged."""

    def __init__(self) -> None:
        self._seen = SettlingFloor()
        self._seen_s = runtime.monotonic_s()

    def see(self, stored: SettlingFloor) -> None:
        """Begin to count from `stored`, which was just read from the register or written to it.

        The floor in the store must be at or above it by now.
        """
        self._seen = self.count(stored)
        self._seen_s = runtime.monotonic_s()

    def count(self, stored: SettlingFloor) -> SettlingFloor:
        """`stored` with the time that passed since this floor was first seen."""
        if stored.floor != self._seen.floor:
            return stored
        passed_ms = int((runtime.monotonic_s() - self._seen_s) * 1000)
        settling_ms = max(stored.settling_ms, self._seen.settling_ms + passed_ms)
        return SettlingFloor(stored.floor, settling_ms)
