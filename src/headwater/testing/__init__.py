"""Tools to try things out and to break them: public, for users' tests as well as ours.

Enters: a seed, and the code under test, unchanged.
Leaves: `simulate` (virtual time, one thread, an order drawn from the seed), `FaultyStore` and
`FaultyDisk` (whatever a store or a disk may do), `MemoryWal` (a log without a disk), `explore` (a
crash at every point), `Scenario` and `run_scenarios` (many histories, resumable, each with the
command that replays it).

Always holds:

- the same seed gives the same history and the same fingerprint, in every process;
- nothing in a simulation reaches a clock, thread, socket or source of chance outside it;
- no other room imports this one.
"""

from headwater.store.conformance import check_store
from headwater.testing.disk import Crashed, CrashKind, DiskFaultRates, FaultyDisk
from headwater.testing.disk_explore import Explored, explore
from headwater.testing.memory_wal import MemoryWal
from headwater.testing.sim import Event, Process, SimRuntime, Simulation, SimulationResult, simulate
from headwater.testing.store import Faults, FaultyStore
from headwater.testing.torture import Scenario, run_scenarios

__all__ = [
    "CrashKind",
    "Crashed",
    "DiskFaultRates",
    "Event",
    "Explored",
    "Faults",
    "FaultyDisk",
    "FaultyStore",
    "MemoryWal",
    "Process",
    "Scenario",
    "SimRuntime",
    "Simulation",
    "SimulationResult",
    "check_store",
    "explore",
    "run_scenarios",
    "simulate",
]
