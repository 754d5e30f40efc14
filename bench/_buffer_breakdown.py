"""Where the processor time of a produced record goes, step by step.

Each step is the time of its own thread inside one function, so that waiting (for the disk, for
Python's lock, for the other candidates of this machine) counts nowhere. Taking the times costs some
time itself: compare the steps with each other, and totals with the table of the run.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import xxhash

from bench._report import Section
from headwater.buffer import arrow_stream, batch
from headwater.buffer.producer import accumulator, record_batch, sender, serializer
from headwater.core import disk
from headwater.store import local

GATHER = "check and gather calls"
BUILD = "frame the batch"
JOIN = "put values together"
CHECKSUM = "checksum"
WRITE = "write to the file"
SYNC = "sync"
NAME = "name files: locks, renames, folders"
REST = "everything else: tasks, threads, waiting for room"


class Clock:
    """Adds up, by step, what threads spend; a step inside another counts for itself alone."""

    def __init__(self) -> None:
        self.spent_s: defaultdict[str, float] = defaultdict(float)
        self._inner: defaultdict[int, list[float]] = defaultdict(list)

    def timed(self, step: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, watched."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            with self.step(step):
                return call(*args, **kwargs)

        return watched

    def each(self, step: str, call: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """The same generator, watched while it computes."""

        def watched(*args: Any) -> Iterator[Any]:
            given = call(*args)
            while True:
                with self.step(step):
                    found = next(given, None)
                if found is None:
                    return
                yield found

        return watched

    @contextlib.contextmanager
    def step(self, step: str) -> Iterator[None]:
        """What happens inside belongs to this step."""
        inner = self._inner[threading.get_ident()]
        inner.append(0.0)
        began_s = time.thread_time()
        try:
            yield
        finally:
            took_s = time.thread_time() - began_s
            self.spent_s[step] += took_s - inner.pop()
            if inner:
                inner[-1] += took_s


@contextlib.contextmanager
def watched(clock: Clock) -> Iterator[None]:
    """Whatever a producer on a local store does inside is added up."""

    class Checksum:
        def __init__(self) -> None:
            self._hash = xxhash.xxh3_64()
            self.update = clock.timed(CHECKSUM, self._hash.update)
            self.intdigest = self._hash.intdigest

    class Hashes:
        xxh3_64 = Checksum

    changes: list[tuple[Any, str, Any]] = [(batch, "xxhash", Hashes)]
    changes.append(
        (arrow_stream.ValuesColumn, "pieces", clock.each(JOIN, arrow_stream.ValuesColumn.pieces))
    )
    for owner, name, step in (
        (serializer.RecordSerializer, "values", GATHER),
        (accumulator.RecordAccumulator, "append", GATHER),
        (record_batch.ProducerBatch, "build", BUILD),
        (sender.PartitionSender, "_encode", BUILD),
        (disk.OsFile, "append", WRITE),
        (disk.OsFile, "sync", SYNC),
        (disk.OsDisk, "sync_dir", SYNC),
        (local.LocalBackend, "_put", NAME),
    ):
        changes.append((owner, name, clock.timed(step, getattr(owner, name))))
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


async def breakdown(
    what: str, records: int, rounds: int, run: Callable[[Clock], Awaitable[float]]
) -> Section:
    """The steps of some runs, each of so many records; a run gives the processor time it took."""
    clock, total_s = Clock(), 0.0
    for _ in range(rounds):
        total_s += await run(clock)
    clock.spent_s[REST] = total_s - sum(clock.spent_s.values())
    section = Section(
        f"Where the processor time goes: {what}, {rounds} runs",
        ["step", "CPU µs/record", "share"],
    )
    for step in (GATHER, BUILD, JOIN, CHECKSUM, WRITE, SYNC, NAME, REST):
        spent_s = clock.spent_s[step]
        cost = f"{spent_s / records / rounds * 1e6:.3f}"
        section.rows.append([step, cost, f"{spent_s / total_s:.0%}"])
    section.rows.append(["all of it", f"{total_s / records / rounds * 1e6:.3f}", "100%"])
    return section
