"""Many writers on one register and on one numbered log, under every fault of store and machine.

Each history draws its own number of writers, faults, clock skews, kills and freezes. The
checkers see every write that the store ever applied, so they know what really happened,
whatever the writers were told.

- register: every change a writer was told of is applied exactly once, a change it was told
  has not landed never is, one with unknown outcome at most once; nothing else is applied.
- whoever calls without any fault, and whoever calls after all faults are over, is answered;
- numbered log: the same of entries, and a reader that goes forward sees them dense, in order,
  each once, under the number that its writer was given.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from unittest import mock

import msgspec
import pytest

from headwater.core import runtime
from headwater.core.errors import EntriesTrimmed, OutcomeUnknown, Unavailable
from headwater.core.retry import RetryPolicy
from headwater.store import MemoryBackend, Register, Store, Version
from headwater.store.backend import Condition
from headwater.store.objects import Buffer
from headwater.store.register import decode_envelope
from headwater.testing import Faults, FaultyStore, Process, Scenario, Simulation, simulate
from tests.store.numbered_logs import SampleLog

CALLS_EACH = 8
CRASHES_MAX = 4
FREEZE_MAX_S = 2 * 24 * 3600.0


@dataclass(frozen=True)
class Parts:
    """What a history is built from. A planted bug replaces one of them."""

    store: type[Store] = Store
    register: type[Register[list[str]]] = Register
    log: type[SampleLog] = SampleLog
    fixed_token: bool = False

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Take the nonces away, if that is the bug."""
        if not self.fixed_token:
            yield
            return
        with mock.patch.object(runtime, "new_token", return_value=b"\x17" * 16):
            yield


SOUND = Parts()


class RecordingBackend(MemoryBackend):
    """Keeps every content that any key ever had."""

    def __init__(self) -> None:
        super().__init__(versions_by_content=True)
        self.applied: dict[str, list[bytes]] = {}

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        version = await super().put(key, data, condition)
        self.applied.setdefault(key, []).append(bytes(data))
        return version


@dataclass
class Told:
    """What the writers were told of each of their calls."""

    landed: dict[str, int] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)

    def check(self, applied: Counter[str]) -> None:
        """Compare with what happened."""
        for name in self.landed:
            assert applied[name] == 1, f"{name} was acknowledged and is there {applied[name]} times"
        for name in self.refused:
            assert applied[name] == 0, f"{name} was refused and is there {applied[name]} times"
        for name, count in applied.items():
            assert name in self.landed or name in self.unknown, f"{name} is there uncalled for"
            assert count == 1, f"{name} is there {count} times"


class World:
    """One history's store, network, faults and processes."""

    def __init__(self, simulation: Simulation, parts: Parts, *, outages: bool = False) -> None:
        """`outages`: whoever would look what became of a write reads nothing for a while."""
        self.simulation = simulation
        self.random = simulation.random
        self.parts = parts
        self.backend = RecordingBackend()
        self.gentle = self.random.random() < 0.15
        swarm = simulation.random_source("swarm")
        faults = Faults() if self.gentle else Faults.swarm(swarm)
        if outages and not self.gentle:
            faults = faults.with_outages(swarm)
        self.network = FaultyStore(
            self.backend,
            faults,
            simulation.random_source("faults"),
            record=simulation.record,
            spawn=simulation.spawn,
        )
        self.told = Told()
        patient = self.random.random() < 0.5
        # Without timeouts a stall is a client that stands still; with them it is a lost response.
        self.policy = (
            RetryPolicy(attempts=12, deadline_s=1e9, attempt_timeout_s=1e8)
            if patient
            else RetryPolicy(attempts=4, deadline_s=40, attempt_timeout_s=10)
        )
        self.history = 64 if self.gentle else self.random.choice((1, 4, 64))

    def store(self) -> Store:
        """A client of its own, over the shared network."""
        return self.parts.store(self.network, policy=self.policy)

    def process(self, name: str) -> Process:
        """A process whose clock is off by up to days."""
        skew_ms = self.random.choice((0, 0, 1_000, -60_000, 86_400_000, -86_400_000))
        drift_ppm = self.random.choice((0, 500))
        return self.simulation.process(name, skew_ms=skew_ms, drift_ppm=drift_ppm)

    async def run(self, name: str, writer: Writer) -> None:
        """Run a writer to its end, killing and freezing it on the way; restarts go on."""
        for crash in range(CRASHES_MAX):
            process = self.process(name)
            process.spawn(writer.work())
            if self.gentle:
                await process.wait()
                return
            if self.random.random() < 0.5:
                await runtime.sleep(self.random.expovariate(1.0))
                process.freeze(self.random.uniform(0, FREEZE_MAX_S))
            if crash < CRASHES_MAX - 1 and self.random.random() < 0.4:
                await runtime.sleep(self.random.expovariate(0.5))
                process.kill()
            if await process.wait():
                return
            writer.died()


class Writer(ABC):
    """Makes CALLS_EACH calls with names of its own and notes what it is told of each."""

    def __init__(self, world: World, name: str, *, calls_each: int = CALLS_EACH) -> None:
        self.world = world
        self.name = name
        self.calls_each = calls_each
        self.calls = 0
        self.current: str | None = None
        self.handle: Register[list[str]] | SampleLog | None = None

    async def work(self) -> None:
        """Go on where the last incarnation stopped."""
        self.handle = self.handle or await self.open()
        while self.calls < self.calls_each:
            name = self.current = f"{self.name}.{self.calls}"
            self.calls += 1
            await self.call(self.handle, name)
            self.current = None

    async def call(self, handle: Register[list[str]] | SampleLog, name: str) -> None:
        """One call; whatever it raises says what became of it."""
        told = self.world.told
        try:
            told.landed[name] = await self.write(handle, name)
        except OutcomeUnknown:
            told.unknown.add(name)
        except Unavailable:
            told.refused.add(name)
        self.world.simulation.record("told", name=name, landed=told.landed.get(name))

    def died(self) -> None:
        """What was under way when the process died has an unknown outcome."""
        if self.current is not None:
            self.world.told.unknown.add(self.current)
            self.current = None
        self.handle = None

    @abstractmethod
    async def open(self) -> Register[list[str]] | SampleLog:
        """A handle of this process."""

    @abstractmethod
    async def write(self, handle: Register[list[str]] | SampleLog, name: str) -> int:
        """Write `name`; returns the number it got."""


class RegisterWriter(Writer):
    """Adds names to a list. Every third one also empties it, as a consumer of a queue does."""

    async def open(self) -> Register[list[str]]:
        world = self.world
        return world.parts.register(
            world.store(), "register", list[str], policy=world.policy, history=world.history
        )

    async def write(self, handle: Register[list[str]] | SampleLog, name: str) -> int:
        assert isinstance(handle, Register)
        keep = 0 if self.calls % 3 == 0 else 5

        def change(names: list[str] | None) -> list[str]:
            return [*(names or [])[:keep], name]

        return (await handle.update(change)).number


def register_history(seed: int, parts: Parts = SOUND) -> str:
    """One history of many writers on a register; returns its fingerprint."""
    return _register_history("register", seed, parts)


def register_outages_history(seed: int, parts: Parts = SOUND) -> str:
    """The same, and whoever would look what became of a write often cannot."""
    return _register_history("register-outages", seed, parts, outages=True)


def _register_history(name: str, seed: int, parts: Parts, *, outages: bool = False) -> str:
    async def main(simulation: Simulation) -> None:
        world = World(simulation, parts, outages=outages)
        await _settle(world, await _run_writers(world, RegisterWriter))
        applied: Counter[str] = Counter()
        before: list[str] = []
        contents = [decode_envelope("register", data) for data in world.backend.applied["register"]]
        for position, envelope in enumerate(contents, start=1):
            assert envelope.revision == position, f"revision {envelope.revision} at {position}"
            names = msgspec.json.decode(envelope.value, type=list[str])
            assert names[:-1] == before[: len(names) - 1], "a change lost what was there before"
            applied[names[-1]] += 1
            revision = world.told.landed.get(names[-1], position)
            assert revision == position, f"{names[-1]} was told revision {revision}, is {position}"
            before = names
        world.told.check(applied)

    return _simulate(main, seed, parts, name)


class LogWriter(Writer):
    """Appends entries."""

    async def open(self) -> SampleLog:
        world = self.world
        log = world.parts.log(world.store(), policy=world.policy)
        while True:
            with contextlib.suppress(Unavailable, OutcomeUnknown):
                await log.create()
                return log

    async def write(self, handle: Register[list[str]] | SampleLog, name: str) -> int:
        assert isinstance(handle, SampleLog)
        return await handle.append_payload(name.encode())


class Reader:
    """Reads forward, raises the floor to where it is, and deletes what has settled below."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.position = 0
        self.seen: list[str] = []
        self.stopped = False

    async def work(self) -> None:
        """Read and trim until told to stop, whatever fails on the way."""
        log = await LogWriter(self.world, "reader").open()
        idle_s = 1.0
        while not self.stopped:
            before = self.position
            with contextlib.suppress(Unavailable, OutcomeUnknown):
                await self.step(log)
            # A frozen writer may leave days of nothing to read.
            idle_s = 1.0 if self.position > before else idle_s * 2
            await runtime.sleep(self.world.random.uniform(0, idle_s))

    async def step(self, log: SampleLog) -> None:
        """Take what is there; what was taken is not needed any more."""
        count = self.world.random.randint(1, 20)
        for payload in await log.payloads(self.position, count):
            self.seen.append(payload.decode())
            self.position += 1
        if self.world.random.random() < 0.7:
            await log.raise_floor(self.position)
            await log.settle()
            await log.collect()


def numbered_log_history(seed: int, parts: Parts = SOUND) -> str:
    """One history of many writers, a reader that trims, and one that comes late."""
    return _numbered_log_history("numbered-log", seed, parts)


def numbered_log_outages_history(seed: int, parts: Parts = SOUND) -> str:
    """The same, and whoever would look what became of a write often cannot."""
    return _numbered_log_history("numbered-log-outages", seed, parts, outages=True)


def _numbered_log_history(name: str, seed: int, parts: Parts, *, outages: bool = False) -> str:
    async def main(simulation: Simulation) -> None:
        world = World(simulation, parts, outages=outages)
        reader = Reader(world)
        reading = world.process("reader")
        reading.spawn(reader.work())
        sleeper = await _run_writers(world, LogWriter)
        reader.stopped = True
        await reading.wait()
        await _settle(world, sleeper)
        log = await LogWriter(world, "last").open()
        while payloads := await log.payloads(reader.position):
            reader.seen += [payload.decode() for payload in payloads]
            reader.position += len(payloads)
        assert await log.end() == reader.position, "the end is somewhere else"
        await _check_late_reader(log, reader)
        for number, name in enumerate(reader.seen):
            told = world.told.landed.get(name, number)
            assert told == number, f"{name} was told number {told} and is {number}"
        world.told.check(Counter(reader.seen))

    return _simulate(main, seed, parts, name)


async def _check_late_reader(log: SampleLog, reader: Reader) -> None:
    floor = await log.read_floor()
    if floor.counts_from > 0:
        with pytest.raises(EntriesTrimmed) as trimmed:
            await log.payloads(floor.counts_from - 1)
        assert trimmed.value.first_offset == floor.needed_from
    late: list[str] = []
    while payloads := await log.payloads(floor.counts_from + len(late)):
        late += [payload.decode() for payload in payloads]
    assert late == reader.seen[floor.counts_from :], "a late reader sees something else"


async def _run_writers(world: World, kind: type[Writer]) -> Writer:
    """Run some writers to their end. Returns one that called once, before all of them."""
    sleeper = kind(world, "sleeper", calls_each=1)
    world.network.calm = True
    await sleeper.work()
    world.network.calm = False
    writers = [kind(world, f"writer{n}") for n in range(world.random.randint(2, 5))]
    tasks = [
        world.simulation.spawn(world.run(writer.name, writer), name=f"run {writer.name}")
        for writer in writers
    ]
    for task in tasks:
        await task
    return sleeper


async def _settle(world: World, sleeper: Writer) -> None:
    """No more faults, and every request still under way has landed or failed.

    Then everybody who calls is answered, also through a handle that was idle all the while.
    """
    if world.gentle:
        assert not world.told.unknown, f"nothing was wrong, and yet unknown: {world.told.unknown}"
        assert not world.told.refused, f"nothing was wrong, and yet refused: {world.told.refused}"
    world.network.calm = True
    await runtime.sleep(30 * 24 * 3600.0)
    sleeper.calls_each += 1
    await sleeper.work()
    late = f"{sleeper.name}.{sleeper.calls - 1}"
    assert late in world.told.landed, f"{late} was not answered though all faults were over"


def _simulate(
    main: Callable[[Simulation], Awaitable[None]], seed: int, parts: Parts, name: str
) -> str:
    with parts.installed():
        replay = f"make torture PACKAGE=store SCENARIO={name} SEED={{seed}} ROUNDS=1"
        return simulate(main, seed=seed, replay=replay).fingerprint


SCENARIOS = [
    Scenario("store", "register", register_history, rounds=2000, sample=40),
    Scenario("store", "numbered-log", numbered_log_history, rounds=2000, sample=30),
    Scenario("store", "register-outages", register_outages_history, rounds=2000, sample=20),
    Scenario("store", "numbered-log-outages", numbered_log_outages_history, rounds=2000, sample=15),
]
