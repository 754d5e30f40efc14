"""How fast the store is, against what the machine can do: `python -m bench.store [--quick]`.

Measured here, on one directory of this machine:

- put and get of 1 KiB, 1 MiB and 64 MiB objects, one at a time and sixteen at a time,
  through Headwater's `Store` on file://;
- the same with raw calls of the operating system with the same durability: create a temporary
  file, write, fsync, rename, fsync the folder. Plain synchronous Python, one after the other;
- the same through obstore's LocalStore, which syncs nothing: what it "puts" may be gone after a
  power loss. Its ratio shows what durability costs, not who is faster;
- put-if-absent and put-if-unchanged of 1 KiB;
- how many requests an append to a numbered log and a change of a register take at 0, 100 and 10,000
  existing entries (memory; constant is right);
- how many simulated histories a second the simulator runs.

What limits it: a durable put waits for two syncs, so small puts are bound by how fast the disk
syncs (raw does the same two), large ones by its bandwidth. Reads come from the page cache and
show overhead, not the disk. Ratios are of medians of interleaved rounds in the same run: a disk
that gets slower half-way slows all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import obstore
from obstore.store import LocalStore

from bench._report import Section, Sections, measure, seconds
from headwater.core.lease import Lease
from headwater.core.limits import FLOOR_LEASE_S, KIB, MIB
from headwater.store import (
    LeasedFloor,
    LogFloor,
    MemoryBackend,
    NumberedLog,
    Register,
    Store,
    open_store,
)
from headwater.testing import simulate

SIZES = {"1 KiB": KIB, "1 MiB": MIB, "64 MiB": 64 * MIB}
ROUNDS = {"1 KiB": 200, "1 MiB": 60, "64 MiB": 7}
QUICK_ROUNDS = {"1 KiB": 20, "1 MiB": 6, "64 MiB": 2}
BATCH = 16
LENGTHS = (0, 100, 10_000)

Call = Callable[[str], Awaitable[object]]


@dataclass
class Times:
    """Seconds of each round of one candidate."""

    seconds: list[float]
    calls: int

    @property
    def each_s(self) -> float:
        """The median, per call."""
        return statistics.median(self.seconds) / self.calls


class Raw:
    """The operating system's calls, in the order that makes a file durable."""

    def __init__(self, root: Path) -> None:
        self._root = root
        (root / "tmp").mkdir(parents=True)

    async def put(self, key: str, data: bytes) -> None:
        """As durable as Headwater's put."""
        staged = self._root / "tmp" / key
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(staged, self._root / key)
        folder = os.open(self._root, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    async def get(self, key: str) -> bytes:
        """The whole file."""
        descriptor = os.open(self._root / key, os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            data = os.read(descriptor, size)
            assert len(data) == size
            return data
        finally:
            os.close(descriptor)


class Obstore:
    """obstore on a directory: no sync."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True)
        self._store = LocalStore(root)

    async def put(self, key: str, data: bytes) -> None:
        """Not durable."""
        await obstore.put_async(self._store, key, data, use_multipart=False)

    async def get(self, key: str) -> object:
        """The whole file."""
        return await (await obstore.get_async(self._store, key)).bytes_async()


class Headwater:
    """The store under test."""

    def __init__(self, root: Path) -> None:
        self.store = open_store(f"file://{root}")

    async def put(self, key: str, data: bytes) -> None:
        """Durable."""
        await self.store.put(key, data)

    async def get(self, key: str) -> object:
        """The whole file."""
        return (await self.store.get(key)).data


Candidates = dict[str, Raw | Obstore | Headwater]


def rate(size: int, each_s: float) -> str:
    """Megabytes a second."""
    return f"{size / each_s / 1e6:,.1f}"


async def interleaved(candidates: dict[str, Call], rounds: int, parallel: int) -> dict[str, Times]:
    """One round of each candidate after the other, in an order that turns with every round."""
    times = {name: Times([], parallel) for name in candidates}
    names = list(candidates)
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            keys = [f"{parallel}-{number}-{one}" for one in range(parallel)]
            began_s = time.perf_counter()
            if parallel == 1:
                await candidates[name](keys[0])
            else:
                await asyncio.gather(*(candidates[name](key) for key in keys))
            if number:  # the first round warms up
                times[name].seconds.append(time.perf_counter() - began_s)
    return times


@contextlib.asynccontextmanager
async def fresh(root: Path) -> AsyncIterator[Candidates]:
    """Each candidate in a directory of its own, which is removed."""
    folder = Path(tempfile.mkdtemp(dir=root))
    try:
        yield {
            "headwater": Headwater(folder / "headwater"),
            "raw": Raw(folder / "raw"),
            "obstore": Obstore(folder / "obstore"),
        }
    finally:
        shutil.rmtree(folder)


async def put_and_get(root: Path, rounds: dict[str, int]) -> Section:
    """Put and get against raw calls and obstore."""
    section = Section(
        "Put and get on a local directory (medians per object)",
        "operation size at-once headwater raw obstore MB/s raw-MB/s ours/raw ours/obstore".split(),
    )
    for name, size in SIZES.items():
        for parallel in (1, BATCH):
            if size * parallel > 256 * MIB:
                continue  # 1 GiB in flight measures memory, not the store
            count = max(2, rounds[name] // (1 if parallel == 1 else 4))
            async with fresh(root) as candidates:
                section.rows += await _put_get(candidates, name, size, parallel, count)
    return section


async def _put_get(
    candidates: Candidates, name: str, size: int, parallel: int, rounds: int
) -> list[list[str]]:
    data = os.urandom(size)

    def putting(candidate: Raw | Obstore | Headwater) -> Call:
        return lambda key: candidate.put(key, data)

    rows = []
    puts = {one: putting(candidate) for one, candidate in candidates.items()}
    gets: dict[str, Call] = {one: candidate.get for one, candidate in candidates.items()}
    for operation, calls in (("put", puts), ("get", gets)):
        times = await interleaved(calls, rounds, parallel)
        ours, raw, other = (times[one].each_s for one in ("headwater", "raw", "obstore"))
        row = [operation, name, str(parallel), seconds(ours), seconds(raw), seconds(other)]
        row += [rate(size, ours), rate(size, raw), f"{ours / raw:.2f}", f"{ours / other:.2f}"]
        rows.append(row)
    return rows


async def conditional_writes(root: Path, rounds: int) -> Section:
    """Both conditional writes of 1 KiB, against a raw put."""
    async with fresh(root) as candidates:
        ours, raw = candidates["headwater"], candidates["raw"]
        assert isinstance(ours, Headwater)
        assert isinstance(raw, Raw)
        store = ours.store
        data = os.urandom(KIB)
        version = await store.put("replaced", data)

        async def create(key: str) -> None:
            await store.put_if_absent(f"created/{key}", data, token=data[:16])

        async def replace(_: str) -> None:
            nonlocal version
            version = await store.put_if_unchanged("replaced", data, version, token=data[:16])

        async def raw_put(key: str) -> None:
            await raw.put(key, data)

        calls: dict[str, Call] = {"create": create, "replace": replace, "raw": raw_put}
        times = await interleaved(calls, rounds, 1)
    base = times["raw"].each_s
    rows = [
        [name, seconds(times[call].each_s), f"{times[call].each_s / base:.2f}"]
        for name, call in (
            ("put_if_absent", "create"),
            ("put_if_unchanged", "replace"),
            ("raw put, no condition", "raw"),
        )
    ]
    head = ["operation", "median", "ours/raw"]
    return Section("Conditional writes of 1 KiB, one at a time", head, rows)


class _Log(NumberedLog):
    """A log whose floor never rises."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, "log", LeasedFloor(FLOOR_LEASE_S))

    async def read_floor(self) -> LogFloor:
        self.leased_floor.learn(LogFloor(0, 0), Lease())
        return self.leased_floor.floor


def _entry(_: int, token: bytes) -> bytes:
    return token


async def growth(lengths: tuple[int, ...]) -> Section:
    """Requests of an append and of a change, by what is there already."""
    rows = []
    for length in lengths:
        backend = MemoryBackend()
        writer = _Log(Store(backend))
        register: Register[int] = Register(Store(backend), "register", int)
        await register.update(lambda _: 0)
        for _ in range(length):
            await writer.append(_entry)
            await register.update(lambda now: (now or 0) + 1)
        first, warm = await _append_cost(backend)
        rows.append([f"{length:,}", str(first), f"{warm:g}", f"{await _update_cost(backend):g}"])
    head = ["existing", "first append of a client", "append", "update"]
    return Section("Requests per operation, by existing entries or changes (memory)", head, rows)


async def _append_cost(backend: MemoryBackend) -> tuple[int, float]:
    store = Store(backend)
    log = _Log(store)
    await log.append(_entry)
    first = store.stats.requests
    for _ in range(10):
        await log.append(_entry)
    return first, (store.stats.requests - first) / 10


async def _update_cost(backend: MemoryBackend) -> float:
    store = Store(backend)
    handle: Register[int] = Register(store, "register", int)
    for _ in range(10):
        await handle.update(lambda now: (now or 0) + 1)
    return store.stats.requests / 10


def simulator(histories: int) -> Section:
    """Histories of four writers on one register, in virtual time."""
    steps = 0
    began_s = time.perf_counter()
    for seed in range(histories):
        steps += simulate(_history, seed=seed).steps
    spent_s = time.perf_counter() - began_s
    row = [f"{histories}", f"{histories / spent_s:,.0f}", f"{steps / spent_s:,.0f}"]
    head = ["histories", "histories/s", "steps/s"]
    return Section("Simulator: four writers with ten changes each", head, [row])


async def _history(_: object) -> None:
    backend = MemoryBackend()

    async def work() -> None:
        handle: Register[int] = Register(Store(backend), "register", int)
        for _ in range(10):
            await handle.update(lambda now: (now or 0) + 1)

    await asyncio.gather(*(work() for _ in range(4)))


def sections(root: Path, quick: bool) -> Sections:
    """Name → what measures it."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    return {
        "objects": lambda: [asyncio.run(put_and_get(root, rounds))],
        "conditions": lambda: [asyncio.run(conditional_writes(root, rounds["1 KiB"]))],
        "growth": lambda: [asyncio.run(growth(LENGTHS[:2] if quick else LENGTHS))],
        "simulator": lambda: [simulator(20 if quick else 200)],
    }


if __name__ == "__main__":
    measure(__doc__, sections)
