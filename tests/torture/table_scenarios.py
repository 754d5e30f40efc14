"""Histories of tables: writers, renames, drops, sweeps and orphans under every fault.

Each history has two writers (a query, an application with versions, or jobs that name nothing) that
write through `to_table`'s own steps, a clerk that renames, creates and, in some, drops tables, and
a janitor that removes orphans. Lives are killed and frozen, and go on beside their successors when
they wake up; clocks are wrong by days, and jump; answers are lost, requests land hours later, and
after a lost answer about a pointer the store may be away for longer than any client tries. What
must hold is said in `table_world`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import Table
from pyspark.sql.types import StringType, StructType

from headwater.core import runtime
from headwater.core.errors import NotFound, OutcomeUnknown, Refused, Unavailable
from headwater.spark import table_columns, table_io
from headwater.spark.table_io import TableOptions
from headwater.store.locations import FileRoot
from headwater.table import commit as commits
from headwater.table import metadata_sweep
from headwater.table.orphans import remove_orphan_files
from headwater.table.reference import TableReference
from headwater.testing import Process, Scenario, Simulation, simulate
from tests.torture.blocking import Threads
from tests.torture.surroundings import Replacement, replaced
from tests.torture.table_world import (
    CATALOG,
    STALLS,
    STORE,
    WAREHOUSE,
    TableWorld,
    Tried,
    store_of_process,
)

LIVES = 3
VERSIONS = 3
TRIES_A_LIFE = 5
STEPS_MAX = 1_000_000
ORDERS = "shop.orders"
NAMES = ("shop.orders", "shop.sales", "shop.archive")
COLUMNS = (("id", "name"), ("name", "id"))
OPTIONS = TableOptions(properties={}, evolve=True, keep_snapshots=2, file_bytes=1 << 20)
NOTHING = (
    *(Unavailable, Refused, NotFound),
    *(CommitFailedException, NoSuchTableError, NoSuchNamespaceError),
)
"""What says that nothing was changed."""
UNKNOWN = (OutcomeUnknown, CommitStateUnknownException)


class Frame:
    """As much of a DataFrame as writing one takes."""

    def __init__(self, tried: Tried, stalls: Callable[[], None]) -> None:
        self.schema = StructType().add("id", StringType()).add("name", StringType())
        self._values = tried.values()
        self._stalls = stalls
        self._out: list[dict[str, Any]] = []

    def mapInArrow(self, work: Any, _: str) -> Frame:
        columns = table_columns.arrow_columns(self.schema)
        rows = {
            letter: [f"{letter[0]}{value}" for value in self._values] for letter in columns.names
        }
        self._stalls()
        batch = pa.RecordBatch.from_pydict(rows, schema=columns)
        self._out = [row for out in work(iter([batch])) for row in out.to_pylist()]
        self._stalls()
        return self

    def collect(self) -> list[dict[str, Any]]:
        return self._out


class Actor:
    """An actor with processes of its own."""

    def __init__(self, world: TableWorld, threads: Threads, name: str) -> None:
        self.world = world
        self.threads = threads
        self.name = name

    async def work(self) -> None:
        """One life."""
        raise NotImplementedError

    async def blocking(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run something that blocks, with a catalog of this life's own."""
        catalog = self.world.catalog()
        CATALOG.set(catalog)
        assert catalog._store is not None
        STORE.set(catalog._store)
        STALLS.set(self.stalls)
        return await self.threads.run(function, *arguments)

    def stalls(self) -> None:
        """From within what blocks: some time passes, now and then, and clocks jump."""
        random = self.world.random
        if self.world.network.calm or random.random() < 0.6:
            return
        wait_s = random.choice((1.0, 60.0, 3600.0, 100_000.0)) * random.random()
        portal_call(runtime.sleep(wait_s))
        here = runtime.current()
        if not self.world.gentle and random.random() < 0.2:
            here.jump(random.choice((-86_400_000, 86_400_000)))  # type: ignore[attr-defined]


def portal_call(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Through the portal that is installed."""
    from headwater.core import portal

    return portal.shared().call(coroutine)


class Writer(Actor):
    """An application: its versions one after the other, each tried until it is there."""

    def __init__(self, world: TableWorld, threads: Threads, name: str, kind: str) -> None:
        super().__init__(world, threads, name)
        self.kind = kind
        self.next_version = 0
        """Its checkpoint, which survives every life."""

    async def work(self) -> None:
        for _ in range(TRIES_A_LIFE):
            version = self.next_version
            if version >= VERSIONS:
                return
            if await self._try(
                self.world.attempt("" if self.kind == "jobs" else self.name, version)
            ):
                if self.world.random.random() < 0.1 and not self.world.network.calm:
                    return  # dead between the commit and the checkpoint
                self.next_version = max(self.next_version, version + 1)
            elif not self.world.network.calm:
                await runtime.sleep(self.world.random.expovariate(0.1))

    async def _try(self, tried: Tried) -> bool:
        target = TableReference(ORDERS, WAREHOUSE, None, {})
        app = tried.app or None
        frame: Any = Frame(tried, self.stalls)
        write = functools.partial(table_io.write_batch_to_table, is_query=self.kind == "query")
        try:
            done = await self.blocking(write, frame, target, OPTIONS, app, tried.version)
        except NOTHING:
            tried.told = "nothing"
            return False
        except UNKNOWN:
            # A job that names nothing must not be run again on a guess.
            return self.kind == "jobs"
        tried.told = "there" if done.already_committed else "committed"
        return True


class Clerk(Actor):
    """Renames tables, creates them with their columns in any order, drops some."""

    async def work(self) -> None:
        for _ in range(5):
            if self.world.over:
                return
            await runtime.sleep(self.world.random.expovariate(0.05))
            await self._tried(self.world.random.choice((self._rename, self._rename, self._create)))
            if self.world.drops and self.world.random.random() < 0.5:
                await self._tried(self._drop)

    async def _tried(self, act: Callable[[], None]) -> None:
        try:
            await self.blocking(act)
        except (*NOTHING, *UNKNOWN, TableAlreadyExistsError, NamespaceAlreadyExistsError):
            self.world.simulation.record("in vain")

    def _rename(self) -> None:
        old, new = self.world.random.sample(NAMES, 2)
        CATALOG.get().rename_table(old, new)

    def _create(self) -> None:
        self.create(self.world.random.choice(NAMES))

    def create(self, name: str) -> None:
        """A table of this name, unless there is one."""
        columns = pa.schema([(name, pa.string()) for name in self.world.random.choice(COLUMNS)])
        catalog = CATALOG.get()
        catalog.create_namespace_if_not_exists("shop")
        with contextlib.suppress(TableAlreadyExistsError):
            catalog.create_table(name, columns)

    def _drop(self) -> None:
        name = self.world.random.choice(NAMES)
        self.world.truth.may_drop.add(name)
        CATALOG.get().drop_table(name)


class Janitor(Actor):
    """Removes orphans, with less patience than anybody should have."""

    async def work(self) -> None:
        random = self.world.random
        for _ in range(4):
            if self.world.over:
                return
            await runtime.sleep(random.expovariate(0.02) * random.choice((1, 10)))
            try:
                await self.blocking(self._remove)
            except (*NOTHING, *UNKNOWN):
                self.world.simulation.record("in vain")

    def _remove(self) -> None:
        random, name, catalog = self.world.random, self.world.random.choice(NAMES), CATALOG.get()

        def loaded() -> Table:
            self.stalls()
            return catalog.load_table(name)

        hours = random.choice((0.0, 0.01, 1.0, 24.0))
        remove_orphan_files(loaded, loaded(), catalog.root, hours, dry_run=random.random() < 0.1)


def table_history(seed: int, *bug: Replacement) -> str:
    """One history of tables; returns its fingerprint."""
    threads = Threads()

    async def main(simulation: Simulation) -> None:
        world = TableWorld(simulation)
        grace_ms = world.random.choice((-1, 0, 60_000, 3_600_000))
        swept = functools.partial(vars(metadata_sweep)["sweep"], grace_ms=grace_ms)
        with replaced(
            (metadata_sweep, "sweep", _stalling(swept)),
            (commits, "to_data_files", _stalling(vars(commits)["to_data_files"])),
            (metadata_sweep, "SWEEP_EVERY", world.random.choice((1, 2, 50))),
        ):
            await _run(world, threads)

    replay = "make torture PACKAGE=spark SCENARIO=tables SEED={seed} ROUNDS=1"
    ours = (
        (FileRoot, "store", store_of_process),
        (TableReference, "open_catalog", lambda _: CATALOG.get()),
    )
    with threads.installed(), replaced(*ours, *bug):
        return simulate(main, seed=seed, replay=replay, max_steps=STEPS_MAX).fingerprint


def _stalling(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step of a commit before which its process may stand still."""

    def stalling(*asked: Any) -> Any:
        STALLS.get()()
        return step(*asked)

    return stalling


async def _run(world: TableWorld, threads: Threads) -> None:
    random, spawn = world.random, world.simulation.spawn
    kinds = [random.choice(("query", "app", "jobs")) for _ in range(2)]
    writers = [Writer(world, threads, f"w{n}", kind) for n, kind in enumerate(kinds)]
    clerks = [Clerk(world, threads, f"clerk{n}") for n in range(random.randint(1, 3))]
    others = [*clerks, Janitor(world, threads, "janitor")]
    writing_ = [spawn(_lives(world, one), name=one.name) for one in writers]
    beside = [spawn(_lives(world, one), name=one.name) for one in others]
    beside.append(spawn(world.step_clocks(), name="clocks"))
    for task in writing_:
        await task
    world.over = True
    for task in beside:
        await task
    await world.settle()
    for one in writers:
        await one.work()
        world.truth.check(one.next_version == VERSIONS, f"{one.name} could not go on")
    for name in NAMES:  # which finishes the renames that were cut short
        await clerks[0].blocking(clerks[0].create, name)
    reader = Actor(world, threads, "reader")
    rows = {
        uuid: await reader.blocking(_rows, world, known.location)
        for uuid, known in world.truth.tables.items()
    }
    world.check_outcome(rows)


def _rows(world: TableWorld, location: str) -> list[dict[str, Any]]:
    """Every row of a table, whether it has a name or not."""
    metadata = world.truth.metadata(location)
    world.truth.needed(location)
    catalog = CATALOG.get()
    table = Table(("shop", "any"), metadata, location, world.truth.files, catalog)
    tasks = table.scan().plan_files()
    scan = ArrowScan(metadata, world.truth.files, table.schema(), AlwaysTrue())
    return [row for task in tasks for row in scan.to_table([task]).to_pylist()]


async def _lives(world: TableWorld, actor: Actor) -> None:
    """Lives one after the other; one that is frozen may wake up beside its successor."""
    random = world.random
    for _ in range(LIVES):
        process = world.process(actor.name)
        process.spawn(_then_exit(process, actor.work()))
        if not world.gentle and random.random() < 0.5:
            await runtime.sleep(random.expovariate(1.0) * random.choice((1, 10, 100)))
            if random.random() < 0.4:
                process.kill()
            else:
                process.freeze(random.choice((1.0, 30.0, 1000.0, 200_000.0)))
                if random.random() < 0.7:
                    continue
        await process.wait()


async def _then_exit(process: Process, work: Coroutine[Any, Any, None]) -> None:
    await work
    process.kill()


SCENARIOS = [Scenario("spark", "tables", table_history, rounds=2000, sample=6)]
