"""What ends a simulation for a reason of its own.

    SimulationError          the simulation itself cannot go on
    ├── Deadlock             nothing is ready, no timer is set, and the work is not done
    ├── LimitReached         more steps or more virtual time than the simulation allows
    ├── UnhandledFailure     a task failed and nobody awaited it
    └── SimulationEscape     code reached outside: a thread, a socket, a real clock

None of these is a `HeadwaterError`: no code under test may take a broken simulation for a
request that failed and try it again.
"""

from __future__ import annotations


class SimulationError(Exception):
    """The simulation itself cannot go on."""


class Deadlock(SimulationError):
    """Nothing is ready, no timer is set, and the work is not done."""


class LimitReached(SimulationError):
    """More steps or more virtual time than the simulation allows."""


class UnhandledFailure(SimulationError):
    """A task failed and nobody awaited it."""


class SimulationEscape(SimulationError):
    """Code reached outside the simulation."""


class ProcessKilled(BaseException):
    """Unwinds the code of a process that died in the middle of a call."""
