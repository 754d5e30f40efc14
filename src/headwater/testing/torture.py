"""Run scenarios many times: resumable, on several processes, every failure with its seed.

A scenario is a function of a seed that raises when something is wrong. Round *i* of a run with base
seed *s* has seed *s + i*, so one number identifies a history and repeats a failure:

    make torture PACKAGE=store SCENARIO=register SEED=1234 ROUNDS=1

The progress of a run is stored in one small file for each scenario. It counts only rounds below
which none is missing: an interrupted run repeats a few rounds and skips none. A worker process that
dies loses no round either: its rounds are assigned again one by one, until the seed that kills the
process is found.
"""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final, NamedTuple

STATE_DIR: Final = Path(".torture")
FAILURES_MAX: Final = 10
"""After this many failing seeds a scenario is stopped: more of them show nothing new."""

_REPORT_EVERY_S: Final = 5.0
_SAVE_EVERY_S: Final = 1.0
_RANGE_S: Final = 0.5
_RANGE_MAX_ROUNDS: Final = 500
_BASE_SEEDS: Final = 1 << 31

PASSED: Final = 0
FAILED: Final = 1
NOTHING_TO_RUN: Final = 2
INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kind of history: `run(seed)` raises when that history breaks a promise."""

    package: str
    name: str
    run: Callable[[int], object]
    rounds: int
    """The full count, for `make torture`."""
    sample: int = 20
    """A fair sample, for `make test`."""

    def __str__(self) -> str:
        return f"{self.package}/{self.name}"

    @property
    def replay(self) -> str:
        """The command that repeats one history; `{seed}` stands for its seed."""
        return f"make torture PACKAGE={self.package} SCENARIO={self.name} SEED={{seed}} ROUNDS=1"

    def run_sample(self, *, seed: int = 0) -> None:
        """Run the sample from `seed` on; the first failure is raised with its command."""
        for one in range(seed, seed + self.sample):
            try:
                self.run(one)
            except BaseException as error:
                error.add_note(f"replay: {self.replay.format(seed=one)}")
                raise


def run_scenarios(
    scenarios: Sequence[Scenario],
    *,
    package: str | None = None,
    name: str | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    jobs: int = 1,
    fresh: bool = False,
    state_dir: Path = STATE_DIR,
) -> int:
    """Run the selected scenarios and report their results; returns an exit status.

    `seed` with one round repeats exactly that history, in this process. Otherwise a run continues
    where the last one with the same base seed stopped, unless `fresh`.
    """
    chosen = [s for s in scenarios if package in (None, s.package) and name in (None, s.name)]
    if not chosen:
        names = ", ".join(map(str, scenarios)) or "none"
        print(f"no scenario for package={package} scenario={name}; there are: {names}")
        return NOTHING_TO_RUN
    if seed is not None and rounds == 1:
        return max(_replay(scenario, seed) for scenario in chosen)
    worst = PASSED
    for scenario in chosen:
        run = ScenarioRun(scenario, rounds or scenario.rounds, state_dir)
        run.resume(seed=seed, fresh=fresh)
        try:
            run.run(jobs)
        except KeyboardInterrupt:
            run.save()
            print(f"\n{scenario}: interrupted after {run.done} rounds; the same command continues")
            return INTERRUPTED
        worst = max(worst, run.report())
    return worst


def _replay(scenario: Scenario, seed: int) -> int:
    print(f"{scenario}: seed {seed}")
    try:
        scenario.run(seed)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        print(f"{scenario}: seed {seed} fails")
        return FAILED
    print(f"{scenario}: seed {seed} passes")
    return PASSED


class ScenarioRun:
    """One run of a scenario, with its stored progress."""

    def __init__(self, scenario: Scenario, rounds: int, state_dir: Path) -> None:
        self.done = 0
        """How many rounds are done with none missing."""
        self._scenario = scenario
        self._rounds = rounds
        self._path = state_dir / f"{scenario.package}.{scenario.name}.json"
        self._base_seed = 0
        self._failures: dict[str, str] = {}
        """Seed (as text, for JSON) → its error."""
        self._assigned = 0
        self._ahead: dict[int, int] = {}
        self._ran = 0
        self._began_s = self._saved_s = time.monotonic()
        self._range_rounds = 1

    def resume(self, *, seed: int | None, fresh: bool) -> None:
        """Continue the stored run, or begin at `seed`, or at a random seed."""
        saved = {} if fresh else self._load()
        if not saved or seed not in (None, saved["base_seed"]):
            if seed is None:
                seed = random.SystemRandom().randrange(_BASE_SEEDS)
            saved = {"base_seed": seed, "done": 0, "failures": {}}
        self._base_seed, self._failures = saved["base_seed"], saved["failures"]
        self.done = self._assigned = saved["done"]
        went = f", {self.done} done before" if self.done else ""
        print(f"{self._scenario}: {self._rounds} rounds from seed {self._base_seed}{went}")

    def _load(self) -> dict[str, Any]:
        try:
            saved = json.loads(self._path.read_text(encoding="utf-8"))
            return {
                "base_seed": int(saved["base_seed"]),
                "done": int(saved["done"]),
                "failures": dict(saved["failures"]),
            }
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError) as error:
            print(f"{self._path} is not understood ({error}); starting over")
            return {}

    def run(self, jobs: int) -> None:
        if self._assigned >= self._rounds:
            return
        self._began_s = self._saved_s = time.monotonic()
        work = _run_in_processes if jobs > 1 else _run_here
        results = work(self._scenario.run, jobs, self._next_seeds)
        with contextlib.closing(results), _shown(str(self._scenario), self._rounds) as show:
            for seeds, failures, took_s in results:
                self.take(seeds, failures, took_s)
                show(self.done, self._rate(), len(self._failures))
        self.save()

    def save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        state = {"base_seed": self._base_seed, "done": self.done, "failures": self._failures}
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(state), encoding="utf-8")
        os.replace(beside, self._path)
        self._saved_s = time.monotonic()

    def report(self) -> int:
        failures = self._failures
        fast = f", {self._rate():.1f} histories/s" if self._ran else ", all done before"
        print(f"{self._scenario}: {self.done} rounds, {len(failures)} failing{fast}")
        if not failures:
            return PASSED
        first = min(failures, key=int)
        print(f"{failures[first]}\n{self._scenario} fails with")
        for seed in sorted(failures, key=int):
            print(f"  seed {seed}: {failures[seed].splitlines()[0]}")
            print(f"    {self._scenario.replay.format(seed=seed)}")
        if len(failures) >= FAILURES_MAX:
            print(f"  stopped after {FAILURES_MAX} failing seeds; --fresh starts over")
        return FAILED

    def _rate(self) -> float:
        return self._ran / max(time.monotonic() - self._began_s, 1e-9)

    def _next_seeds(self) -> SeedRange | None:
        if self._assigned >= self._rounds or len(self._failures) >= FAILURES_MAX:
            return None
        count = min(self._range_rounds, self._rounds - self._assigned)
        seeds = SeedRange(self._base_seed + self._assigned, count)
        self._assigned += count
        return seeds

    def take(self, seeds: SeedRange, failures: Failures, took_s: float) -> None:
        """Count a finished range of seeds; ranges finish in any order."""
        self._ran += seeds.rounds
        self._ahead[seeds.first - self._base_seed] = seeds.rounds
        while (count := self._ahead.pop(self.done, None)) is not None:
            self.done += count
        for seed, text in failures:
            if len(self._failures) < FAILURES_MAX:
                self._failures[str(seed)] = text
        each_s = max(took_s / seeds.rounds, 1e-6)
        # Ranges grow step by step, so that a scenario that always fails stops after a few rounds.
        most = min(2 * self._range_rounds, _RANGE_MAX_ROUNDS)
        self._range_rounds = max(1, min(most, int(_RANGE_S / each_s)))
        if failures or time.monotonic() - self._saved_s > _SAVE_EVERY_S:
            self.save()


Show = Callable[[int, float, int], None]


@contextlib.contextmanager
def _shown(title: str, rounds: int) -> Iterator[Show]:
    """A bar on a terminal, a line now and then elsewhere."""
    if sys.stdout.isatty():
        from rich.progress import MofNCompleteColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns: list[Any] = [*Bar.get_default_columns()[:2], MofNCompleteColumn()]
        with Bar(*columns, TimeRemainingColumn(), transient=True) as bar:
            task = bar.add_task(title, total=rounds)
            yield lambda done, rate, failing: bar.update(
                task, completed=done, description=f"{title} {rate:.0f}/s, {failing} failing"
            )
        return
    last_s = time.monotonic()

    def line(done: int, rate: float, failing: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s > _REPORT_EVERY_S:
            last_s = time.monotonic()
            print(
                f"{title}: {done}/{rounds}, {rate:.1f} histories/s, {failing} failing", flush=True
            )

    yield line


_STOP_WAIT_S: Final = 5.0
_TEXT_MAX_CHARS: Final = 12_000

Run = Callable[[int], object]
Failures = list[tuple[int, str]]
"""Seeds, each with one line that names its error and then the whole traceback."""


class SeedRange(NamedTuple):
    """Rounds assigned together: `rounds` seeds from `first` on."""

    first: int
    rounds: int


class RangeResult(NamedTuple):
    """The result of a range of seeds: failing seeds with their errors, and how long it took."""

    seeds: SeedRange
    failures: Failures
    took_s: float


def run_seeds(run: Run, seeds: SeedRange) -> RangeResult:
    """Run every seed of a range; a failure does not stop the others."""
    began_s = time.monotonic()
    failures: Failures = []
    # Warnings about a simulated store are expected, and would hide the progress.
    logger = logging.getLogger("headwater")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        for seed in range(seeds.first, seeds.first + seeds.rounds):
            try:
                run(seed)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                headline = traceback.format_exception_only(error)[0].strip()
                text = traceback.format_exc()[-_TEXT_MAX_CHARS:]
                failures.append((seed, f"{headline}\n{text}"))
    finally:
        logger.setLevel(level)
    return RangeResult(seeds, failures, time.monotonic() - began_s)


def _run_here(
    run: Run, _jobs: int, next_seeds: Callable[[], SeedRange | None]
) -> Generator[RangeResult]:
    while (seeds := next_seeds()) is not None:
        yield run_seeds(run, seeds)


def _run_in_processes(
    run: Run, jobs: int, next_seeds: Callable[[], SeedRange | None]
) -> Generator[RangeResult]:
    """Run every range of seeds in spawned processes, which inherit no thread."""
    workers: dict[Connection, SpawnProcess] = dict(_start_worker(run) for _ in range(jobs))
    busy: dict[Connection, SeedRange] = {}
    retry: deque[SeedRange] = deque()
    try:
        while True:
            for worker in workers.keys() - busy.keys():
                seeds = retry.popleft() if retry else next_seeds()
                if seeds is not None:
                    worker.send(seeds)
                    busy[worker] = seeds
            if not busy:
                return
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                seeds = busy.pop(ready)
                try:
                    yield ready.recv()
                except (EOFError, ConnectionError):
                    died = workers.pop(ready)
                    ready.close()
                    died.join(_STOP_WAIT_S)
                    workers |= [_start_worker(run)]
                    if seeds.rounds == 1:
                        text = f"the process that ran it died with exit code {died.exitcode}"
                        yield RangeResult(seeds, [(seeds.first, text)], 0.0)
                    else:
                        retry.extend(SeedRange(seeds.first + n, 1) for n in range(seeds.rounds))
    finally:
        for worker, process in workers.items():
            process.terminate()
            worker.close()
        for process in workers.values():
            process.join(_STOP_WAIT_S)


def _start_worker(run: Run) -> tuple[Connection, SpawnProcess]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, run), daemon=True)
    process.start()
    there.close()
    return here, process


def _serve(there: Connection, run: Run) -> None:
    # The parent process handles an interrupt and ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            seeds = there.recv()
        except EOFError:
            return
        there.send(run_seeds(run, seeds))
