"""What the write coordinator costs: `python -m bench.coordinator [--quick] [--json]`.

- small writes through one channel, each applied and its promise awaited in the end, against a bare
  asyncio queue that does the same hops: a producer task puts, a consumer task gets, applies, and
  resolves what the producer waits for;
- the cost per write as writes carry more rows, and the coordinator's share of it: the same apply
  and flush calls made by hand, without a coordinator, are the limit. Rows are numbers, of which
  applying adds each up and flushing copies each: hardly any state does less. Beside them records of
  100 bytes, of which applying takes a checksum: what a log does at least;
- a hundred channels against one.

Nothing here waits for a disk, and nothing asks the system for memory: a flush copies into a place
that is there, because pages that one candidate has to ask for and the next one finds are worth more
than a coordinator. Candidates take turns within one run, each after a collection; all figures are
medians of processor time.
"""

from __future__ import annotations

import asyncio
import statistics
import zlib
from array import array
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from bench._report import Goal, Section, Sections, in_turns, measure
from headwater.coordinator import (
    CoordinatorConfig,
    Durability,
    FrozenDelta,
    WriteCoordinator,
)

WRITES = 200_000
QUICK_WRITES = 20_000
ROUNDS = 7
ROWS = (1, 10, 100, 1_000, 10_000)
ROWS_TOTAL = 8_000_000
RECORD_BYTES = 100
FLUSH_BYTES = 8_000_000
CAPACITY = 10_000
NEVER_S = 3600.0


class Rows:
    """A delta of writes as they came: applying one looks at every row once."""

    look: Callable[[Any], int] = sum
    row_bytes = 8

    def __init__(self, total: int) -> None:
        self._writes: list[array[int] | bytes] = []
        self._total = total
        self._size_bytes = 0

    def apply(self, write: array[int] | bytes) -> int:
        self._writes.append(write)
        self._size_bytes += self.row_bytes * len(write)
        self._total += type(self).look(write)
        return self._total

    def estimate_size(self) -> int:
        return self._size_bytes

    def freeze(self) -> FrozenDelta[list[Any], list[Any], int]:
        return FrozenDelta(self._writes, self._writes, self._total)

    def reader(self) -> list[Any]:
        return self._writes


class Records(Rows):
    """A delta of bytes, of which applying takes the checksum."""

    look = zlib.crc32
    row_bytes = 1


class Memory:
    """A flusher that copies every row once, to a place that is there."""

    place = memoryview(bytearray(2 * FLUSH_BYTES))
    place[:] = bytes(2 * FLUSH_BYTES)

    async def flush_delta(self, frozen: list[Any], _: range) -> int:
        at, place = 0, self.place
        for write in frozen:
            rows = memoryview(write).cast("B")
            place[at : at + len(rows)] = rows
            at += len(rows)
        return at

    async def flush_storage(self) -> None:
        return None


class Work(NamedTuple):
    """What every candidate does, each in its way."""

    delta: type[Rows]
    write: array[int] | bytes
    writes: int


def numbers(rows: int, writes: int) -> Work:
    """Writes of so many numbers each."""
    return Work(Rows, array("q", range(rows)), writes)


def records(rows: int, writes: int) -> Work:
    """Writes of so many records of 100 bytes each."""
    return Work(Records, bytes(range(RECORD_BYTES)) * rows, writes)


Run = Callable[[Work], Coroutine[Any, Any, None]]


async def through_coordinator(work: Work, channels: int = 1) -> None:
    """Everything written through, and everybody answered."""
    config = CoordinatorConfig(
        queue_capacity=CAPACITY, flush_interval_s=NEVER_S, flush_size_bytes=FLUSH_BYTES
    )
    names = [f"ch{number}" for number in range(channels)]
    coordinator = WriteCoordinator(config, names, 0, 0, Memory(), delta=work.delta)

    async def produce(name: str) -> None:
        handle, write = coordinator.handle(name), work.write
        promise = None
        for _ in range(work.writes // channels):
            promise = await handle.write(write)
        if promise is not None:
            await promise.wait(Durability.APPLIED)

    async with coordinator:
        await asyncio.gather(*(produce(name) for name in names))


async def through_queue(work: Work) -> None:
    """The same hops through a bare queue: put, get, apply, answer."""
    queue: asyncio.Queue[tuple[Any, asyncio.Future[int]] | None] = asyncio.Queue(CAPACITY)
    delta, memory, write = work.delta(0), Memory(), work.write
    loop = asyncio.get_running_loop()

    async def consume() -> None:
        nonlocal delta
        while (item := await queue.get()) is not None:
            item[1].set_result(delta.apply(item[0]))
            if delta.estimate_size() >= FLUSH_BYTES:
                froze = delta.freeze()
                await memory.flush_delta(froze.frozen, range(0))
                delta = work.delta(froze.context)
        await memory.flush_delta(delta.freeze().frozen, range(0))

    consuming = loop.create_task(consume())
    promise: asyncio.Future[int] | None = None
    for _ in range(work.writes):
        promise = loop.create_future()
        await queue.put((write, promise))
    if promise is not None:
        await promise
    await queue.put(None)
    await consuming


async def by_hand(work: Work) -> None:
    """Apply and flush alone: what cannot be saved."""
    delta, memory, write = work.delta(0), Memory(), work.write
    for _ in range(work.writes):
        delta.apply(write)
        if delta.estimate_size() >= FLUSH_BYTES:
            froze = delta.freeze()
            await memory.flush_delta(froze.frozen, range(0))
            delta = work.delta(froze.context)
    await memory.flush_delta(delta.freeze().frozen, range(0))


async def hundred_channels(work: Work) -> None:
    """As through one channel, from a hundred writers."""
    await through_coordinator(work, channels=100)


def timed(candidates: dict[str, Run], work: Work, rounds: int) -> dict[str, list[float]]:
    """Processor seconds of each, round by round."""

    def running(run: Run) -> Callable[[], None]:
        return lambda: asyncio.run(run(work))

    spent = in_turns({name: running(run) for name, run in candidates.items()}, rounds)
    return {name: seconds.cpu for name, seconds in spent.items()}


def small_writes(writes: int, rounds: int) -> Section:
    """One row a write."""
    candidates: dict[str, Run] = {
        "bare asyncio queue": through_queue,
        "coordinator, one channel": through_coordinator,
        "coordinator, 100 channels": hundred_channels,
    }
    rounds_s = timed(candidates, numbers(1, writes), rounds)
    spent = {name: statistics.median(times) for name, times in rounds_s.items()}
    base = spent["bare asyncio queue"]
    section = Section(
        f"Small writes: {writes:,} of one row, processor time, medians of {rounds}",
        ["way", "writes/s", "µs a write", "speed ÷ bare queue"],
    )
    for name, seconds in spent.items():
        section.rows.append(
            [
                name,
                f"{writes / seconds:,.0f}",
                f"{1e6 * seconds / writes:.2f}",
                f"{base / seconds:.2f}",
            ]
        )
    ratio = base / spent["coordinator, one channel"]
    section.goals.append(Goal("one channel ÷ bare queue", 0.5, ratio, timed=True))
    return section


def growing_writes(total: int, most: int, rounds: int) -> Section:
    """The same rows in ever larger writes."""
    section = Section(
        f"Cost per write as writes grow: up to {total:,} rows, processor time, medians of {rounds}",
        ["rows a write", "µs a write", "by hand, µs", "the coordinator's, µs", "overhead"],
    )
    shares: dict[str, float] = {}
    kinds = [(f"{rows:,} numbers", numbers, rows) for rows in ROWS]
    kinds.append(("1,000 records", records, 1_000))
    for name, kind, rows in kinds:
        writes = min(most, total // rows)
        work = kind(rows, writes)
        ours, hand = timed({"": through_coordinator, "by hand": by_hand}, work, rounds).values()
        # Of each round's pair: what else the machine does changes from round to round.
        pairs = list(zip(ours, hand, strict=True))
        shares[name] = statistics.median(100 * (through / bare - 1) for through, bare in pairs)
        own_us = statistics.median(1e6 * (through - bare) / writes for through, bare in pairs)
        section.rows.append(
            [
                name,
                f"{1e6 * statistics.median(ours) / writes:.2f}",
                f"{1e6 * statistics.median(hand) / writes:.2f}",
                f"{own_us:.2f}",
                f"{shares[name]:.1f} %",
            ]
        )
    for name in ("1,000 numbers", "1,000 records"):
        what = f"overhead at {name} a write"
        section.goals.append(Goal(what, 5, shares[name], at_least=False, unit="%", timed=True))
    return section


def sections(_: Path, quick: bool) -> Sections:
    """Name → what measures it."""
    rounds = 3 if quick else ROUNDS
    writes = QUICK_WRITES if quick else WRITES
    total = ROWS_TOTAL // 10 if quick else ROWS_TOTAL
    return {
        "small": lambda: [small_writes(writes, rounds)],
        "growing": lambda: [growing_writes(total, writes, rounds)],
    }


if __name__ == "__main__":
    measure(__doc__, sections)
