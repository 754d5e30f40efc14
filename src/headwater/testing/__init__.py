"""Tools for tests. For builders, of programs on Headwater as well; users: docs/api.md.

    sim            `simulate`: virtual time, one thread, an order that a seed decides
    store, disk    `FaultyStore` and `FaultyDisk`: the faults of real stores and disks
    disk_explore   `explore`: a crash at every point
    memory_wal     `MemoryWal`: a log without a disk
    torture        `Scenario` and `run_scenarios`: many histories, resumable, each with the command
                   that replays it

Always holds:

- the same seed gives the same history and the same fingerprint, in every process;
- nothing in a simulation reaches a clock, thread, socket or random source outside it;
- no other package imports this one.
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
