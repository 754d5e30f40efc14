"""One history's network, faults, clocks and processes, whatever lives in it.

A network here does what `FaultyStore` does, and one thing more: a request may be carried out a
second time, much later, as when a proxy or a socket's buffer comes back to life. To a queue whose
chunks are deleted these are the worst: they find a number free that was taken before.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest import mock

from headwater.buffer.queue.contract import Collector
from headwater.buffer.queue.retention import Retention
from headwater.core import runtime
from headwater.core.errors import OutcomeUnknown, Unavailable
from headwater.core.retry import RetryPolicy
from headwater.store import MemoryBackend, Store, Version
from headwater.store.backend import Condition, PreconditionFailed, Unreachable
from headwater.store.objects import Buffer
from headwater.testing import Faults, FaultyStore, Process, Simulation

T = TypeVar("T")

DAY_S = 24 * 3600.0
DAY_MS = 24 * 3600 * 1000
SKEW_MAX_MS = 3 * DAY_MS
SKEWS_MS = (0, 0, 1_000, -60_000, DAY_MS, -DAY_MS, SKEW_MAX_MS, -SKEW_MAX_MS)
STEPS_MS = (1_000, 60_000, 120_000, 600_000, 3_600_000, DAY_MS, 30 * DAY_MS)
"""By how much a clock is set, forwards or backwards."""
FREEZES_S = (1.0, 60.0, 3600.0, 2 * DAY_S, 10 * DAY_S)

Replacement = tuple[Any, str, Any]
"""Owner, name, and what stands there instead."""


@contextlib.contextmanager
def replaced(*replacements: Replacement) -> Iterator[None]:
    """Let other things stand in the place of some, for a while."""
    with contextlib.ExitStack() as stack:
        for owner, name, instead in replacements:
            stack.enter_context(mock.patch.object(owner, name, instead))
        yield


@dataclass(frozen=True)
class Hazards:
    """What some histories have in addition to what all of them draw."""

    clocks: bool = False
    """Clocks of processes and of the store are set during their lives; machines sleep."""
    outages: bool = False
    """Whoever would look what became of a write reads nothing for a while."""


USUAL = Hazards()


class Failed(Exception):
    """A call was cancelled, or told to try again: nothing may have changed for who made it."""


def require(simulation: Simulation, holds: bool, message: str) -> None:
    """End the history if a promise is broken."""
    if not holds:
        broken = AssertionError(message)
        # Also where the code under test would swallow the error.
        simulation._loop.fail(broken)
        raise broken


class EchoingStore(FaultyStore):
    """A faulty store that may carry out a conditional write once more, long after."""

    def __init__(self, *args: Any, echo: float, echo_after_s: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self._echo = echo
        self._echo_after_s = echo_after_s
        self.slow = 0.0
        """How often a write takes its time, …"""
        self.slow_keys = ""
        """… of the keys with this in them."""

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        if self.slow and not self.calm and self.slow_keys in key:
            await self._take_time()
        unsent: list[Unreachable] = []
        if condition is not None and not self.calm and self._random.random() < self._echo:
            self._spawn(self._again(key, bytes(data), condition, unsent), name=f"echo {key}")
        try:
            return await super().put(key, data, condition)
        except Unreachable as error:
            unsent.append(error)  # what was never sent has no echo, and the client knows
            raise

    async def _take_time(self) -> None:
        if self._random.random() < self.slow:
            await runtime.sleep(self._random.random() * self._random.choice((1.0, 60.0, 3600.0)))

    async def _again(
        self, key: str, data: bytes, condition: Condition, unsent: list[Unreachable]
    ) -> None:
        await runtime.sleep(self._random.random() * self._echo_after_s)
        if unsent:
            return
        with contextlib.suppress(PreconditionFailed):
            await self._inner.put(key, data, condition)
            self._record(f"echo of a put {key} applied")


class Surroundings:
    """What all actors of a history share, whatever it is about."""

    def __init__(
        self, simulation: Simulation, objects: MemoryBackend, hazards: Hazards = USUAL
    ) -> None:
        self.simulation = simulation
        self.random = simulation.random
        self.hazards = hazards
        self._clocks = simulation.random_source("clocks")
        self._processes: list[Process] = []
        self._store_most_ms = 0
        """The latest time that the store's clock ever told."""
        self.gentle = self.random.random() < 0.1
        self.haunted = not self.gentle and self.random.random() < 0.3
        """What is not needed is deleted soon, and requests come again soon after."""
        self._outside = contextvars.copy_context()
        self.network = EchoingStore(
            objects,
            self._draw_faults(),
            simulation.random_source("faults"),
            echo=0.0 if self.gentle else 0.9 if self.haunted else self.random.choice((0.0, 0.1)),
            echo_after_s=300.0 if self.haunted else 3 * DAY_S,
            record=simulation.record,
            spawn=self._spawn_outside,
        )
        # Where a request costs no network, the end is found by asking and not by listing.
        self.network.is_local = self.random.random() < 0.5
        patient = self.random.random() < 0.5
        # Without timeouts a stall is a client that stands still; with them it is a lost response.
        self.policy = (
            RetryPolicy(attempts=12, deadline_s=1e9, attempt_timeout_s=1e8)
            if patient
            else RetryPolicy(attempts=3, deadline_s=40, attempt_timeout_s=10)
        )
        self.retentions: list[Retention] = []
        """Those that any collector goes by."""
        self.collectors = (1, 3) if self.haunted else (0, 3)
        self.collects_every_s = (5,) if self.haunted else (1, 10, 1000, 30_000)
        self.lives_s = 60.0 if self.haunted else 2.0
        """How long those live on average who are killed."""
        self.idles_s = 5.0 if self.haunted else 3600.0
        """The longest wait of a consumer that found nothing."""
        self.over = False

    def check(self, holds: bool, message: str) -> None:
        """End the history if a promise is broken."""
        require(self.simulation, holds, message)

    def patience(self) -> asyncio.Timeout:
        """How long somebody waits for an answer; now and then not long enough for one."""
        short = not self.network.calm and self.random.random() < 0.1
        return asyncio.timeout(self.random.expovariate(5.0) if short else None)

    async def tried(self, call: Callable[[], Awaitable[T]]) -> T:
        """The answer; `Failed` if it was not waited for, or if something was wrong."""
        was_calm = self.is_calm
        try:
            async with self.patience():
                return await call()
        except TimeoutError as error:
            raise Failed("not waited for") from error
        except (Unavailable, OutcomeUnknown) as error:
            self.check(not was_calm, f"nothing was wrong, and yet {error!r}")
            raise Failed(str(error)) from error

    def collector(self) -> Collector:
        """The collector's door."""
        raise NotImplementedError

    def _draw_faults(self) -> Faults:
        swarm = self.simulation.random_source("swarm")
        if self.gentle or (self.haunted and self.random.random() < 0.5):
            faults = Faults()
        else:
            faults = Faults.swarm(swarm)
        return faults.with_outages(swarm) if self.hazards.outages and not self.gentle else faults

    @property
    def is_calm(self) -> bool:
        """Whether nothing goes wrong: then nobody is told anything but answers.

        A process that is halted while clocks are set finds the time of its requests over.
        """
        return (self.gentle and not self.hazards.clocks) or self.network.calm

    def may_expire(self, at_ms: int, bytes_after: int) -> bool:
        """Whether any collector may let such a batch go, by the store's clock, not its own.

        Or by what that clock told a moment ago, before it was set back.
        """
        now_ms = max(self.simulation.runtime.wall_ms(), self._store_most_ms)
        return any(
            (one.retention_ms is not None and at_ms <= now_ms - one.retention_ms)
            or (one.retention_bytes is not None and bytes_after >= one.retention_bytes)
            for one in self.retentions
        )

    def _spawn_outside(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> object:
        """A request on its way outlives the process that sent it."""
        return self._outside.copy().run(self.simulation.spawn, coroutine, name=name)

    def store(self) -> Store:
        """A client of its own, over the shared network."""
        return Store(self.network, policy=self.policy)

    def process(self, name: str) -> Process:
        """A process whose clock is off by up to days."""
        skew_ms, drift_ppm = self.random.choice(SKEWS_MS), self.random.choice((0, 500))
        process = self.simulation.process(name, skew_ms=skew_ms, drift_ppm=drift_ppm)
        self._processes.append(process)
        return process

    def step_clocks(self) -> None:
        """Begin to set clocks, where this history does: one after another, at any moment."""
        if self.hazards.clocks:
            self._spawn_outside(self._step_clocks(), name="clocks")

    async def _step_clocks(self) -> None:
        draw, clock = self._clocks, self.simulation.runtime
        wait_s = draw.choice((5.0, 20.0) if self.haunted else (5.0, 50.0, 1000.0))
        while True:
            await runtime.sleep(draw.expovariate(1.0) * wait_s)
            wait_s = min(2 * wait_s, DAY_S) if draw.random() < 0.1 else wait_s
            if self.over:
                return
            step_ms = draw.choice((-1, 1)) * draw.choice(STEPS_MS)
            living = [process for process in self._processes if process.alive]
            if not living or draw.random() < 0.3:
                self._store_most_ms = max(self._store_most_ms, clock.wall_ms())
                clock.jump(step_ms)
                self.simulation.record("store's clock", ms=step_ms)
                continue
            process = draw.choice(living)
            if draw.random() < 0.5:
                self._halt(process, draw.uniform(90.0, 250.0))
            else:
                process.step_clock(step_ms)
            self.simulation.record("clock", of=process.name, ms=step_ms)

    async def until_late(self) -> None:
        """No more faults, and so much time passes that every request under way has ended.

        By every clock there was: one that was set back may delay what goes by age, and no more.
        """
        self.network.calm = True
        clock = self.simulation.runtime
        if self.hazards.clocks:
            told_ms = [process.runtime.wall_ms() for process in self._processes]
            clock.jump(max(0, max([self._store_most_ms, *told_ms]) - clock.wall_ms()))
        await runtime.sleep(30 * DAY_S)

    def _halt(self, process: Process, seconds: float) -> None:
        """Stop a process for so long. Some machines sleep, and some of those do not notice: their
        wall clock is where it was."""
        if not self.hazards.clocks or self._clocks.random() < 0.2:
            process.freeze(seconds)
            return
        process.suspend(seconds)
        if self._clocks.random() < 0.7:
            process.step_clock(-seconds * 1000)

    async def run(
        self, name: str, work: Callable[[], Coroutine[Any, Any, None]], *, lives: int
    ) -> None:
        """Run lives of an actor one after the other, killing and freezing them on the way.

        A life that is frozen may be left behind: the next one begins, and it wakes up later.
        """
        for life in range(lives):
            process = self.process(name)
            process.spawn(_then_exit(process, work()))
            if self.gentle:
                await process.wait()
                continue
            if self.random.random() < 0.4:
                await runtime.sleep(self.random.expovariate(2.0) * self.lives_s)
                longest_s = 300.0 if self.haunted else self.random.choice(FREEZES_S)
                self._halt(process, longest_s * self.random.random())
                if self.random.random() < 0.5:
                    await runtime.sleep(self.random.expovariate(1.0))
                    continue
            if life < lives - 1 and self.random.random() < 0.5:
                await runtime.sleep(self.random.expovariate(1.0) * self.lives_s)
                process.kill()
            await process.wait()


async def _then_exit(process: Process, work: Coroutine[Any, Any, None]) -> None:
    """A process ends with its work, and with it whatever it does beside."""
    await work
    process.kill()
