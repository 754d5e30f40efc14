"""The truth of a history of tables, and the store, clocks and processes that its actors share.

The truth sees every write and delete that the store applies. Checked at the instant it happens:

- a table has one name, but for the moment of a rename in which both are taken;
- a table loses its name only where an actor asked to drop it;
- a pointer shows a table of which every file is there, down to the data;
- no file is deleted that the last state of any table names, dropped or not.

Checked in the end, by reading every table there ever was:

- rows of an attempt are in one table, once, all of them or none, each value in its own column;
- they are there if its writer was told so, and are not if it was told that nothing was changed;
- of the attempts at one version of an application a table has one.
"""

from __future__ import annotations

import contextvars
import io
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.io import InputFile, InputStream
from pyiceberg.manifest import ManifestFile, read_manifest_list
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata

from headwater.core import runtime
from headwater.core.retry import RetryPolicy
from headwater.core.runtime import installed
from headwater.store import MemoryBackend, Store, Version
from headwater.store.backend import Condition
from headwater.store.locations import FileRoot
from headwater.store.objects import Buffer
from headwater.table.catalog import RegisterCatalog
from headwater.table.file_io import StoreFileIO
from headwater.table.pointers import TablePointer
from headwater.testing import Faults, Process, Simulation
from tests.torture.recording import register_value
from tests.torture.surroundings import DAY_S, SKEWS_MS, EchoingStore, require

POINTERS = "catalog/tables/"
WAREHOUSE = "memory://warehouse"
STEPS_MS = (-3 * 86_400_000, -3_600_000, -60_000, 60_000, 3_600_000, 3 * 86_400_000)


@dataclass
class Tried:
    """An attempt to write rows, and what its writer was told."""

    app: str
    version: int
    number: int
    rows: int
    told: str = ""
    """committed, there, nothing, or nothing at all: then it may have landed."""

    def values(self) -> list[str]:
        """What names each of its rows."""
        return [f"{self.number}.{row}" for row in range(self.rows)]


@dataclass
class Known:
    """A table there ever was: where its metadata was when it was last seen."""

    location: str
    names: set[str] = field(default_factory=set)
    is_dropped: bool = False


class _Memory(InputFile):
    """A file as it is in the store at this instant."""

    def __init__(self, data: bytes, location: str) -> None:
        super().__init__(location)
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> InputStream:
        return io.BytesIO(self._data)


class _Files(StoreFileIO):
    """The files of the truth."""

    def __init__(self, truth: TableTruth) -> None:
        super().__init__({"warehouse": WAREHOUSE})
        self._truth = truth

    def new_input(self, location: str) -> InputFile:
        key = self.root.key(location)
        self._truth.check(key in self._truth._objects, f"{key} is needed, and is not there")
        return _Memory(bytes(self._truth._objects[key].data), location)


class TableTruth(MemoryBackend):
    """The store itself, which sees every change that it applies."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(versions_by_content=True)
        self.simulation = simulation
        self.clock = simulation.runtime.skewed(0)
        """The store's."""
        self.files = _Files(self)
        self.tables: dict[str, Known] = {}
        """By UUID."""
        self.may_drop: set[str] = set()
        """Names that an actor asked to drop."""
        self._pointers: dict[str, TablePointer] = {}
        self._metadata: dict[str, TableMetadata] = {}
        self._data_files: dict[str, frozenset[str]] = {}
        self._lists: dict[str, list[ManifestFile]] = {}
        self._needed: dict[str, frozenset[str]] = {}

    def check(self, holds: bool, message: str) -> None:
        """A promise."""
        require(self.simulation, holds, message)

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        with installed(self.clock):
            version = await super().put(key, data, condition)
        if key.startswith(POINTERS):
            name = key.removeprefix(POINTERS).removesuffix(".json").replace("/", ".")
            self._pointed(name, register_value(key, bytes(data), TablePointer))
        return version

    async def delete(self, key: str) -> None:
        if key in self._objects:
            location = self.files.root.location(key)
            for uuid, known in self.tables.items():
                needed = location in self.needed(known.location)
                self.check(not needed, f"{key} is deleted, and {uuid} {known.names} needs it")
        await super().delete(key)

    def _pointed(self, name: str, pointer: TablePointer) -> None:
        before = self._pointers.get(name)
        self._pointers[name] = pointer
        if pointer.metadata_location is not None:
            uuid = str(self.metadata(pointer.metadata_location).table_uuid)
            known = self.tables.setdefault(uuid, Known(pointer.metadata_location))
            # A rename brings the place that it left with: nothing is committed in between.
            self.needed(pointer.metadata_location)
            known.location = pointer.metadata_location
            known.names.add(name)
        if before is not None and before.metadata_location is not None:
            self._left(name, before, pointer)
        self._check_names()

    def _left(self, name: str, before: TablePointer, pointer: TablePointer) -> None:
        """A name that showed a table shows another one, or none."""
        assert before.metadata_location is not None
        uuid = str(self.metadata(before.metadata_location).table_uuid)
        now = pointer.metadata_location
        if now is not None and str(self.metadata(now).table_uuid) == uuid:
            return
        known = self.tables[uuid]
        known.names.discard(name)
        if not known.names:
            self.check(name in self.may_drop, f"{uuid} is under no name: {name} was {before}")
            known.is_dropped = True

    def _check_names(self) -> None:
        for uuid, known in self.tables.items():
            if len(known.names) < 2:
                continue
            leaving = [name for name in known.names if self._pointers[name].leaving is not None]
            arrived = [name for name in known.names if self._pointers[name].arrived is not None]
            right = len(known.names) == 2 and len(leaving) == len(arrived) == 1
            self.check(right, f"{uuid} is called {sorted(known.names)}")

    def metadata(self, location: str) -> TableMetadata:
        """A table's metadata, which never changes."""
        if location not in self._metadata:
            file = self.files.new_input(location)
            self._metadata[location] = FromInputFile.table_metadata(file)
        return self._metadata[location]

    def needed(self, location: str) -> frozenset[str]:
        """Every file that a state of a table names; all of them are there when it is first seen."""
        if location in self._needed:
            return self._needed[location]
        metadata = self.metadata(location)
        found = {location}
        for snapshot in metadata.snapshots:
            found.add(snapshot.manifest_list)
            for manifest in self._manifests(snapshot.manifest_list):
                found |= {manifest.manifest_path, *self._files_of(manifest)}
        for one in found:
            self.files.new_input(one)
        self._needed[location] = frozenset(found)
        return self._needed[location]

    def _manifests(self, location: str) -> list[ManifestFile]:
        if location not in self._lists:
            self._lists[location] = list(read_manifest_list(self.files.new_input(location)))
        return self._lists[location]

    def _files_of(self, manifest: ManifestFile) -> frozenset[str]:
        path = manifest.manifest_path
        if path not in self._data_files:
            entries = manifest.fetch_manifest_entry(self.files)
            self._data_files[path] = frozenset(one.data_file.file_path for one in entries)
        return self._data_files[path]


class TableWorld:
    """What all actors of a history share."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.random = simulation.random
        self.truth = TableTruth(simulation)
        self.gentle = self.random.random() < 0.1
        self._outside = contextvars.copy_context()
        swarm = simulation.random_source("swarm")
        faults = Faults() if self.gentle else Faults.swarm(swarm)
        if not self.gentle and swarm.random() < 0.7:
            faults = faults.with_outages(swarm)
        self.network = EchoingStore(
            self.truth,
            faults,
            simulation.random_source("faults"),
            echo=0.0 if self.gentle else self.random.choice((0.0, 0.1)),
            echo_after_s=3600.0,
            record=simulation.record,
            spawn=self._spawn_outside,
        )
        self.network.slow_keys = POINTERS
        self.network.slow = 0.0 if self.gentle else self.random.choice((0.0, 0.3, 0.6))
        patient = self.random.random() < 0.3
        self.policy = (
            RetryPolicy(attempts=12, deadline_s=1e9, attempt_timeout_s=1e8)
            if patient
            else RetryPolicy(attempts=3, deadline_s=40, attempt_timeout_s=10)
        )
        self.over = False
        self.drops = not self.gentle and self.random.random() < 0.4
        """Whether tables are dropped, too: where they are, less can be told of those that go."""
        self.tried: list[Tried] = []

    def catalog(self) -> RegisterCatalog:
        """One with a client of its own, over the shared network."""
        store = Store(self.network, url=WAREHOUSE, policy=self.policy)
        return RegisterCatalog("world", store=store, warehouse=WAREHOUSE)

    def process(self, name: str) -> Process:
        """A process whose clock is off by up to days."""
        skew_ms, drift_ppm = self.random.choice(SKEWS_MS), self.random.choice((0, 500))
        return self.simulation.process(name, skew_ms=skew_ms, drift_ppm=drift_ppm)

    def attempt(self, app: str, version: int) -> Tried:
        """One more attempt at a version."""
        one = Tried(app, version, len(self.tried), self.random.randint(1, 3))
        self.tried.append(one)
        return one

    async def step_clocks(self) -> None:
        """Let the store's clock jump now and then."""
        jumps = 0 if self.gentle else self.random.choice((0, 3, 20))
        for _ in range(jumps):
            await runtime.sleep(
                self.random.expovariate(1 / 600) * self.random.choice((0.1, 1, 100))
            )
            if not self.over:
                step_ms = self.random.choice(STEPS_MS)
                self.truth.clock.jump(step_ms)
                self.simulation.record("the store's clock jumps", ms=step_ms)

    async def settle(self) -> None:
        """No more faults, and every request under way has landed or failed."""
        self.network.calm = True
        await runtime.sleep(30 * DAY_S)

    def check_outcome(self, rows: dict[str, list[dict[str, Any]]]) -> None:
        """Compare what is in every table with what writers were told."""
        check = self.truth.check
        found: dict[int, list[tuple[str, str]]] = defaultdict(list)
        for uuid, there in rows.items():
            for row in there:
                right = row["id"][:1] == "i" and row["name"][:1] == "n"
                check(right and row["id"][1:] == row["name"][1:], f"columns are exchanged: {row}")
                found[int(row["id"][1:].partition(".")[0])].append((uuid, row["id"][1:]))
        versions: dict[tuple[str, str, int], list[int]] = defaultdict(list)
        for one in self.tried:
            there_at = found.pop(one.number, [])
            label = f"attempt {one.number} at {one.app} {one.version}, told {one.told!r}"
            values = sorted(value for _, value in there_at)
            tables = {uuid for uuid, _ in there_at}
            check(len(tables) <= 1, f"{label}: its rows are in {tables}")
            check(values in ([], sorted(one.values())), f"{label}: there are {values}")
            check(bool(values) or one.told != "committed", f"{label}: its rows are not there")
            check(not values or one.told != "nothing", f"{label}: its rows are there")
            for uuid in tables:
                versions[(uuid, one.app, one.version)].append(one.number)
        check(not found, f"rows of attempts that were never made: {found}")
        for key, numbers in versions.items():
            check(len(numbers) == 1 or not key[1], f"{key} is there {len(numbers)} times")
        for uuid, known in self.truth.tables.items():
            check(known.is_dropped or len(known.names) == 1, f"{uuid} is called {known.names}")

    def _spawn_outside(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> object:
        return self._outside.copy().run(self.simulation.spawn, coroutine, name=name)


STORE: contextvars.ContextVar[Store] = contextvars.ContextVar("store of this process")
CATALOG: contextvars.ContextVar[RegisterCatalog] = contextvars.ContextVar("catalog of it")


STALLS: contextvars.ContextVar[Callable[[], None]] = contextvars.ContextVar("pauses of it")


def store_of_process(_: FileRoot) -> Store:
    """In the place of `FileRoot.store`: every process has a client of its own."""
    return STORE.get()
