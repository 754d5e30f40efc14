"""The simulator: the real coroutines, in virtual time, in an order drawn from a seed.

    outcome = simulate(scenario, seed=7)

`scenario` gets a `Simulation`. It starts processes, lets them fail, records what happened and
raises when something is wrong. The same seed gives the same run, down to the fingerprint, in
every process; a failure says how to repeat it.

Always holds:

- nothing in a simulation touches a real clock, thread, socket or random source;
- the code under test, the scheduler, blocking work and the scenario have separate random streams:
  a change in one does not change the draws of the others;
- a killed process runs nothing more: no callback, no timer, no `finally` that awaits. Its work on
  threads is lost as well.

Processes share only their store. Real processes cannot share an asyncio lock or queue, and the
death of one could block the other.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import random
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NoReturn, TypeVar

from headwater.core.runtime import Runtime, installed
from headwater.testing.guard import ProcessKilled, guarded
from headwater.testing.sim_loop import MAX_STEPS, MAX_VIRTUAL_S, STALL_MAX_S, SimLoop
from headwater.testing.sim_task import GROUP, SimGroup

T = TypeVar("T")

HISTORY_MAX_EVENTS: Final = 1_000_000
REPLAY: Final = "simulate(…, seed={seed})"

# A random time in 2026: a fixed start would hide code that depends on it.
_EPOCH_NS: Final = 1_767_225_600_000_000_000
_EPOCH_SPREAD_S: Final = 365 * 86_400
# Blocking work starts after a delay between these, and its result arrives after another.
_BLOCKING_MIN_S: Final = 0.000_01
_BLOCKING_MAX_S: Final = 0.02
# Most work gets an idle thread at once; work that has begun cannot be cancelled.
_BLOCKING_QUEUED: Final = 0.25
_NOTE_EVENTS: Final = 20
_SHOWN_BYTES: Final = 32


def random_source(seed: int, name: str) -> random.Random:
    """A separate random source for every name, derived from one seed."""
    return random.Random(f"{seed}/{name}")


class SimRuntime(Runtime):
    """The simulated runtime: a clock, which may be wrong, over the loop's virtual time."""

    outside_allowed = False

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self._loop = loop
        self._random = random_source(seed, "runtime")
        self._blocking = random_source(seed, "blocking")
        self._start_ns = _EPOCH_NS + random_source(seed, "epoch").randrange(_EPOCH_SPREAD_S) * 10**9
        self._since_s = 0.0
        self._monotonic_base_s = 0.0
        self._rate = 1.0
        self._slept_s = 0.0
        self._asleep_until_s = 0.0
        super().__init__()

    def skewed(self, ms: float = 0, *, drift_ppm: float = 0) -> SimRuntime:
        """A runtime on the same loop whose clock is off by `ms` and drifts from now on.

        Drift moves the monotonic clock too: two machines do not agree on what a second is.
        """
        other = object.__new__(SimRuntime)
        other._loop = self._loop
        other._random = self._random
        other._blocking = self._blocking
        other._since_s = self._loop.now_s
        other._monotonic_base_s = self.boottime_s()
        other._start_ns = self.wall_ns() - round(other._monotonic_base_s * 1e9)
        other._slept_s = other._asleep_until_s = 0.0
        other._rate = self._rate * (1 + drift_ppm / 1e6)
        Runtime.__init__(other)
        other.jump(ms)
        return other

    def jump(self, ms: float) -> None:
        self._start_ns += round(ms * 1e6)

    def sleep_until(self, now_s: float) -> None:
        """Stop the monotonic clock until `now_s`, in the simulation's seconds."""
        began_s = max(self._loop.now_s, self._asleep_until_s)
        self._slept_s += max(0.0, now_s - began_s) * self._rate
        self._asleep_until_s = max(self._asleep_until_s, now_s)

    def wall_ns(self) -> int:
        return self._start_ns + round(self.boottime_s() * 1e9)

    def monotonic_s(self) -> float:
        return self.boottime_s() - self._slept_s

    def boottime_s(self) -> float:
        return self._monotonic_base_s + (self._loop.now_s - self._since_s) * self._rate

    def random(self) -> random.Random:
        return self._random

    async def sleep(self, seconds: float) -> None:
        until_s, slept_s = self.monotonic_s() + seconds, self._slept_s
        await self._wait(seconds)
        # Time during which the machine slept does not count on the monotonic clock.
        while self._slept_s != slept_s:
            slept_s = self._slept_s
            await self._wait(max(0.0, until_s - self.monotonic_s()))

    async def _wait(self, seconds: float) -> None:
        woken: asyncio.Future[None] = self._loop.create_future()
        if seconds > 0:
            delay_s = seconds / self._rate
            timer: asyncio.Handle = self._loop.call_later(delay_s, _deliver, woken, None, None)
        else:
            timer = self._loop.call_soon(_deliver, woken, None, None)
        try:
            await woken
        finally:
            timer.cancel()

    def spawn(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        return self._loop.create_task(coroutine, name=name)

    async def run_blocking(self, function: Callable[..., T], *args: Any) -> T:
        """Call `function` at a later instant, and return its result at a still later one.

        As with a real thread, cancelling the caller does not stop work that has begun.
        """
        answer: asyncio.Future[T] = self._loop.create_future()
        queued = self._blocking.random() < _BLOCKING_QUEUED

        def work() -> None:
            if queued and answer.cancelled():
                return
            result: T | None = None
            error: BaseException | None = None
            try:
                result = function(*args)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as raised:
                error = raised
            self._loop.call_later(self._blocking_s(), _deliver, answer, result, error)

        self._loop.call_later(self._blocking_s(), work)
        return await answer

    def _blocking_s(self) -> float:
        ratio = _BLOCKING_MAX_S / _BLOCKING_MIN_S
        return float(_BLOCKING_MIN_S * ratio ** self._blocking.random())


def _deliver(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    elif isinstance(error, StopIteration):
        # A future cannot carry it: the coroutine that awaits would end instead of failing.
        answer.set_exception(RuntimeError(f"blocking work raised {error!r}"))
    else:
        answer.set_exception(error)


@dataclass(frozen=True, slots=True)
class Event:
    """Something a scenario recorded: when, in which process, what."""

    at_s: float
    process: str
    name: str
    fields: Mapping[str, Any]

    def __str__(self) -> str:
        fields = "".join(f" {name}={_show(value)}" for name, value in self.fields.items())
        return f"{self.at_s:.9f} {self.process} {self.name}{fields}"


def _show(value: object) -> str:
    """A text that is the same in every process: no address, no order of a set, no long bytes."""
    if isinstance(value, bytes) and len(value) > _SHOWN_BYTES:
        return f"<{len(value)} bytes, crc {zlib.crc32(value):08x}>"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(_show, value))) + "}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_show(k)}: {_show(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_show, value)) + "]"
    text = repr(value)
    return f"<{type(value).__name__}>" if " at 0x" in text else text


@dataclass(frozen=True, slots=True)
class SimulationResult(Generic[T]):
    """The result of a simulation."""

    seed: int
    value: T
    fingerprint: str
    """Equal for two runs that made the same choices and recorded the same events."""
    history: tuple[Event, ...]
    steps: int
    virtual_s: float


class Process(SimGroup):
    """Tasks that die together, with a clock of their own. Tasks spawned inside belong to it."""

    def __init__(self, name: str, loop: SimLoop, runtime: SimRuntime) -> None:
        super().__init__(name)
        self.runtime = runtime
        self._loop = loop
        outside = GROUP.set(self)
        with installed(runtime):
            self._context = contextvars.copy_context()
        GROUP.reset(outside)

    def spawn(self, coroutine: Coroutine[Any, Any, T], *, name: str = "main") -> asyncio.Task[T]:
        """Start a task in this process. After a kill the task never ends: wait for the process."""
        if not self.alive:
            coroutine.close()
            raise ProcessKilled(f"process {self.name!r} is dead")
        task = f"{self.name}/{name}"
        return self._loop.create_task(coroutine, name=task, context=self._context.copy())

    def crash(self) -> NoReturn:
        """Kill it in the middle of a call: the rest of the call unwinds and has no effect.

        Only `finally` and `except BaseException` run; a simulated disk or store must refuse their
        requests, because `alive` is false.
        """
        self.kill()
        raise ProcessKilled(f"process {self.name!r} died here")

    def freeze(self, seconds: float) -> None:
        """Stop it for `seconds`, as a paused machine; afterwards only its clock shows that."""
        self.frozen_until_s = max(self.frozen_until_s, self._loop.now_s + seconds)
        self.is_blocked = True

    def suspend(self, seconds: float) -> None:
        """Stop it for `seconds`, as a machine that sleeps: its monotonic clock stops too."""
        self.freeze(seconds)
        self.runtime.sleep_until(self.frozen_until_s)

    def step_clock(self, ms: float) -> None:
        self.runtime.jump(ms)


def current_process() -> Process | None:
    """The simulated process whose code is running, if any."""
    group = GROUP.get()
    return group if isinstance(group, Process) else None


class Simulation:
    """A scenario's handle on the simulation it runs in."""

    def __init__(self, seed: int, loop: SimLoop) -> None:
        self.seed = seed
        self.random = random_source(seed, "scenario")
        self.runtime = SimRuntime(loop, seed)
        self._loop = loop
        self._history: list[Event] = []
        self._digest = hashlib.blake2b(digest_size=16)
        self._incarnations: dict[str, int] = {}

    @property
    def now_s(self) -> float:
        """Virtual seconds since the start."""
        return self._loop.now_s

    @property
    def history(self) -> tuple[Event, ...]:
        return tuple(self._history)

    def random_source(self, name: str) -> random.Random:
        """A separate random source, for instance for faults."""
        return random_source(self.seed, f"scenario/{name}")

    def record(self, event: str, /, **fields: Any) -> None:
        """Add an event to the history and to the fingerprint."""
        if self._loop.is_closed():
            return
        if len(self._history) >= HISTORY_MAX_EVENTS:
            raise OverflowError(f"a history holds {HISTORY_MAX_EVENTS} events")
        group = GROUP.get()
        entry = Event(self._loop.now_s, group.name if group else "-", event, fields)
        self._history.append(entry)
        self._digest.update(str(entry).encode() + b"\n")

    def spawn(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        return self._loop.create_task(coroutine, name=name)

    def process(self, name: str, *, skew_ms: float = 0, drift_ppm: float = 0) -> Process:
        """A new process; a name used before gets the number of the incarnation."""
        incarnation = self._incarnations[name] = self._incarnations.get(name, 0) + 1
        shown = name if incarnation == 1 else f"{name}#{incarnation}"
        return Process(shown, self._loop, self.runtime.skewed(skew_ms, drift_ppm=drift_ppm))

    def fingerprint(self) -> str:
        """A digest of the choices made and the events recorded until now."""
        digest = self._digest.copy()
        digest.update(f"{self._loop.steps} {self._loop.trace} {self._loop.now_s!r}".encode())
        return digest.hexdigest()

    def note(self, replay: str) -> str:
        """The note on a failure: seed, fingerprint, the last events, how to replay it."""
        shown = self._history[-_NOTE_EVENTS:]
        lines = [
            f"simulation seed {self.seed}, fingerprint {self.fingerprint()}",
            f"{self._loop.steps} steps, {self.now_s:.6f} virtual s",
            f"the last {len(shown)} of {len(self._history)} recorded events:",
            *(f"  {event}" for event in shown),
            f"replay: {replay.replace('{seed}', str(self.seed))}",
        ]
        return "\n".join(lines)


def simulate(
    main: Callable[[Simulation], Awaitable[T]],
    *,
    seed: int = 0,
    max_steps: int = MAX_STEPS,
    max_virtual_s: float = MAX_VIRTUAL_S,
    stall_max_s: float = STALL_MAX_S,
    replay: str = REPLAY,
) -> SimulationResult[T]:
    """Run `main` and everything that it starts, in virtual time, in the order of `seed`.

    When `main` returns, remaining tasks are cancelled and may clean up. An error of `main` gets a
    note: seed, fingerprint, the last events, and `replay`, the command that runs the same again
    (`{seed}` is replaced by the seed). With `stall_max_s=0` time passes only while all tasks wait.
    """
    loop = SimLoop(  # type: ignore[abstract]  # because of methods that lead outside
        random_source(seed, "schedule"),
        max_steps=max_steps,
        max_virtual_s=max_virtual_s,
        stall_max_s=stall_max_s,
    )
    simulation = Simulation(seed, loop)

    def run() -> T:
        with installed(simulation.runtime), guarded(loop.fail):
            return loop.run(_awaiting(main, simulation))

    try:
        value = contextvars.copy_context().run(run)
    except BaseException as error:
        error.add_note(simulation.note(replay))
        raise
    return SimulationResult(
        seed=seed,
        value=value,
        fingerprint=simulation.fingerprint(),
        history=simulation.history,
        steps=loop.steps,
        virtual_s=loop.now_s,
    )


async def _awaiting(main: Callable[[Simulation], Awaitable[T]], simulation: Simulation) -> T:
    return await main(simulation)
