"""How much time has passed, for what safety depends on. No wall clock decides.

A clock may be wrong in one direction only, and the two questions differ in which:

- *Was that less than so long ago?* A client that read a floor relies on it for a short time, its
  lease. Counting too little would be wrong: a machine that slept would rely on a floor of
  yesterday. `Lease` counts on a clock that goes on while the machine sleeps. The wall clock can
  only end a lease earlier.
- *Has that been so for at least so long?* A collector deletes what a floor has passed once the
  floor has stood for several leases. Counting too much would be wrong: something would be deleted
  on which a client still relies. `FloorClock` counts what this process itself saw pass.

The obvious alternative for the second is to compare two times of the store: when it wrote the
floor, and when it wrote an object just now. A clock that was set forward in between makes every
floor old at once.

Time that was seen to pass is added up in a register, so that jobs which run for a second now and
then come to an end as well. The rule that makes the sum right: a process reads a `FloorAge`, and
only *then* begins to count. What it writes back is that reading plus its own count, or what is
stored by then, whichever is more. Two processes that count at once read the same number and write
about the same number; none adds to what the other counted meanwhile. A write that lands late says
something that is still true.
"""

from __future__ import annotations

import msgspec

from headwater.core import runtime


class Lease:
    """A point in time of this process."""

    __slots__ = ("at_s", "at_wall_ms")

    def __init__(self) -> None:
        self.at_s = runtime.boottime_s()
        self.at_wall_ms = runtime.wall_ms()

    def is_within(self, seconds: float) -> bool:
        """Whether it was less than so long ago.

        A wall clock that went back, or on by more than that, says no: it may have been set right
        after a sleep that a virtual machine hides from its other clocks.
        """
        for_s = runtime.boottime_s() - self.at_s
        for_wall_s = (runtime.wall_ms() - self.at_wall_ms) / 1000
        return for_s < seconds and 0 <= for_wall_s < seconds


class FloorAge(msgspec.Struct, frozen=True):
    """A floor, and for how long it has stood at least. Part of a register."""

    floor: int = 0
    stood_ms: int = 0

    def is_settled(self, seconds: float) -> bool:
        """Whether it has stood for so long."""
        return self.stood_ms >= seconds * 1000


class FloorClock:
    """What one process has seen pass while a floor stood."""

    def __init__(self) -> None:
        self._seen = FloorAge()
        self._seen_s = runtime.monotonic_s()

    def see(self, stored: FloorAge) -> None:
        """This was just read from the register, or written to it: count from here on.

        The floor itself must be at or above it in the store by now.
        """
        self._seen = self.count(stored)
        self._seen_s = runtime.monotonic_s()

    def count(self, stored: FloorAge) -> FloorAge:
        """The standing to be stored: with the time that passed since this floor was first seen."""
        if stored.floor != self._seen.floor:
            return stored
        passed_ms = int((runtime.monotonic_s() - self._seen_s) * 1000)
        stood_ms = max(stored.stood_ms, self._seen.stood_ms + passed_ms)
        return FloorAge(stored.floor, stood_ms)
