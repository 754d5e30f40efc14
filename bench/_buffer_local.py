"""Produce and consume on a local directory, against the same bytes through the store alone."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from bench._buffer_breakdown import Clock, breakdown, watched
from bench._report import Goal, Section
from headwater.buffer.consumer import Consumer
from headwater.buffer.producer import Producer
from headwater.buffer.stream import create_stream
from headwater.core import runtime
from headwater.core.limits import MIB, READ_AHEAD_BATCHES
from headwater.store import open_store

LIST_RECORDS = 1000
BATCH_BYTES = 8 * MIB
IN_FLIGHT = 8  # a producer's uploads, and the raw writes that it is compared with
PRODUCE_GOAL = 0.9
CONSUME_GOAL = 0.8
GROUP = "bench"

GOAL_RECORD_BYTES = 1024
RAW_PUT = f"store.put, {IN_FLIGHT} at once"
JOIN_AND_PUT = f"join records, store.put, {IN_FLIGHT} at once"
RAW_GET = f"store.get, {READ_AHEAD_BATCHES} at once"
LISTS = f"produce lists of {LIST_RECORDS:,}"
TO_ARROW = "consume to Arrow"

Run = Callable[[], Awaitable[None]]
Candidate = Callable[[Path], Awaitable[Run]]
"""Opens what it needs in a folder, and gives what is timed."""


@dataclass(frozen=True)
class Load:
    """What is moved in one round."""

    size_bytes: int
    values: list[bytes]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def total_bytes(self) -> int:
        """Without anything that frames them."""
        return self.size_bytes * len(self.values)

    def lists(self) -> Iterator[list[bytes]]:
        """As a caller has them who gathers."""
        for at in range(0, len(self.values), LIST_RECORDS):
            yield self.values[at : at + LIST_RECORDS]

    def groups(self) -> Iterator[list[bytes]]:
        """As many records together as a batch has."""
        count = BATCH_BYTES // self.size_bytes
        for at in range(0, len(self.values), count):
            yield self.values[at : at + count]

    def objects(self) -> Iterator[bytes]:
        """The same bytes in objects of the size of a batch."""
        return map(b"".join, self.groups())


async def local(root: Path, load: Load, rounds: int) -> list[Section]:
    """Both directions, in interleaved rounds."""
    objects = list(load.objects())
    columns = [pa.array(values, pa.binary()) for values in load.lists()]
    arrow = [pa.record_batch([column], names=["_value"]) for column in columns]

    async def lists(producer: Producer) -> None:
        for values in load.lists():
            await producer.produce(values)

    async def batches(producer: Producer) -> None:
        for batch in arrow:
            await producer.produce_arrow(batch)

    async def each(producer: Producer) -> None:
        for value in load.values:
            await producer.produce(value)

    producing: dict[str, Candidate] = {
        RAW_PUT: lambda folder: _putting(folder, objects),
        JOIN_AND_PUT: lambda folder: _putting(folder, list(load.groups()), join=True),
        "files, one by one": lambda folder: _writing(folder, objects),
        LISTS: lambda folder: _producing(folder, lists),
        f"produce_arrow of {LIST_RECORDS:,}": lambda folder: _producing(folder, batches),
        "produce one a call": lambda folder: _producing(folder, each),
    }
    spent = await _interleaved(root, producing, rounds)
    section = _section("Produce until accepted", load, spent, rounds)
    if load.size_bytes == GOAL_RECORD_BYTES:
        ratio = spent[RAW_PUT].median_s / spent[LISTS].median_s
        section.goals.append(Goal(f"{LISTS} ÷ {RAW_PUT}", PRODUCE_GOAL, ratio, timed=True))
    section.notes.append(
        f"{RAW_PUT}: objects that are bytes already; the goal is against this. Records have to be "
        "put together first, by anybody: the row below it does that. Headwater's rows moreover "
        "checksum every byte, and queue and number what they write"
    )
    kept = Path(tempfile.mkdtemp(dir=root))
    for prepare in (producing[RAW_PUT], producing[LISTS]):
        await (await prepare(kept))()
    consuming: dict[str, Candidate] = {
        RAW_GET: lambda _: _getting(kept, len(objects)),
        TO_ARROW: lambda _: _consuming(kept, load, as_bytes=False),
        "consume to bytes": lambda _: _consuming(kept, load, as_bytes=True),
    }
    spent = await _interleaved(root, consuming, rounds)
    reading = _section("Consume (page cache)", load, spent, rounds)
    ratio = spent[RAW_GET].median_s / spent[TO_ARROW].median_s
    reading.goals.append(Goal(f"{TO_ARROW} ÷ {RAW_GET}", CONSUME_GOAL, ratio, timed=True))
    shutil.rmtree(kept)

    async def step_by_step(clock: Clock) -> float:
        def watching() -> contextlib.AbstractContextManager[None]:
            return watched(clock)

        _, cpu_s = await _timed(root, producing[LISTS], watching)
        return cpu_s

    what = f"{LISTS}, {load.size_bytes:,} B"
    return [section, await breakdown(what, len(load), rounds, step_by_step), reading]


async def _producing(folder: Path, work: Callable[[Producer], Awaitable[None]]) -> Run:
    store = open_store(f"file://{folder}")
    await create_stream(store, "bench")
    opened = Producer(store, "bench", batch_bytes=BATCH_BYTES, max_in_flight=IN_FLIGHT).open()
    producer = await opened

    async def run() -> None:
        await work(producer)
        await producer.close()

    return run


async def _consuming(folder: Path, load: Load, *, as_bytes: bool) -> Run:
    consumer = await Consumer.open(open_store(f"file://{folder}"), "bench", group=GROUP)

    async def run() -> None:
        count = 0
        while batch := await consumer.next_batch():
            count += len(batch.entries) if as_bytes else batch.records.num_rows
        assert count == len(load.values)
        await consumer.close()

    return run


async def _putting(folder: Path, objects: list[Any], *, join: bool = False) -> Run:
    store, gate = open_store(f"file://{folder}"), asyncio.Semaphore(IN_FLIGHT)

    async def one(number: int, data: Any) -> None:
        async with gate:
            whole = await runtime.run_blocking(b"".join, data) if join else data
            await store.put(f"objects/{number}", whole)

    async def run() -> None:
        await asyncio.gather(*itertools.starmap(one, enumerate(objects)))

    return run


async def _getting(folder: Path, count: int) -> Run:
    store, gate = open_store(f"file://{folder}"), asyncio.Semaphore(READ_AHEAD_BATCHES)

    async def one(number: int) -> None:
        async with gate:
            assert len((await store.get(f"objects/{number}")).data)

    async def run() -> None:
        await asyncio.gather(*map(one, range(count)))

    return run


async def _writing(folder: Path, objects: list[bytes]) -> Run:
    async def run() -> None:
        _write_synced(folder, objects)

    return run


def _write_synced(folder: Path, objects: list[bytes]) -> None:
    """The operating system's own calls, in the order that makes a file and its name durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    for number, data in enumerate(objects):
        staged = folder / f"{number}.staged"
        with staged.open("xb", buffering=0) as file:
            file.write(data)
            os.fsync(file.fileno())
        staged.rename(folder / str(number))
        os.fsync(descriptor)
    os.close(descriptor)


class Spent(NamedTuple):
    """What a candidate took."""

    median_s: float
    best_s: float
    """What a machine that others use too can do when they rest."""
    cpu_s: float
    """Processor time of the median round, all threads."""


async def _interleaved(
    root: Path, candidates: dict[str, Candidate], rounds: int
) -> dict[str, Spent]:
    """Each candidate in turns, in an order that turns; the first round warms up."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in candidates}
    names = list(candidates)
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            spent = await _timed(root, candidates[name])
            if number:
                found[name].append(spent)
    return {name: _spent(times) for name, times in found.items()}


async def _timed(
    root: Path,
    candidate: Candidate,
    watching: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> tuple[float, float]:
    """What one run takes, in time and in time of processors."""
    folder = Path(tempfile.mkdtemp(dir=root))
    run = await candidate(folder)
    gc.collect()
    # What one candidate leaves to be written back would be paid for by the next.
    os.sync()
    with watching():
        began_s, cpu_began_s = time.perf_counter(), time.process_time()
        await run()
        spent = time.perf_counter() - began_s, time.process_time() - cpu_began_s
    shutil.rmtree(folder)
    return spent


def _spent(times: list[tuple[float, float]]) -> Spent:
    walls, cpus = zip(*times, strict=True)
    return Spent(statistics.median(walls), min(walls), statistics.median(cpus))


def _section(title: str, load: Load, spent: dict[str, Spent], rounds: int) -> Section:
    base = next(iter(spent))
    head = ["what", "median", "M records/s", "MB/s", "best", "CPU µs/record"]
    section = Section(
        f"{title}: {len(load.values):,} records of {load.size_bytes:,} B, local store, {rounds} "
        "rounds",
        [*head, f"speed ÷ {base}", "of the best"],
    )
    for name, taken in spent.items():
        rate, megabytes = (total / taken.median_s / 1e6 for total in (len(load), load.total_bytes))
        row = [name, f"{taken.median_s:.3f} s", f"{rate:.2f}", f"{megabytes:,.0f}"]
        row += [f"{taken.best_s:.3f} s", f"{taken.cpu_s / len(load) * 1e6:.2f}"]
        ratios = (spent[base].median_s / taken.median_s, spent[base].best_s / taken.best_s)
        section.rows.append([*row, *(f"{ratio:.2f}" for ratio in ratios)])
    return section
