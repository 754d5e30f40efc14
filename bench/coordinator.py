"""What the write coordinator costs: `python -m bench.coordinator [--quick] [--json]`.

- small writes through one channel, each applied and its promise awaited in the end, against a bare
  asyncio queue that does the same hops: a producer task puts, a consumer task gets, applies, and
  resolves what the producer waits for;
- the cost per write as writes carry more rows, and the coordinator's share of it: the same apply
  and flush calls made by hand, without a coordinator, are the limit;
- a hundred channels against one.

Nothing here waits for a disk: the flusher keeps rows in memory, so that all that is measured is
the coordinator. Candidates take turns within one run; ratios are of medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from array import array
from collections.abc import Awaitable, Callable

from bench._findings import Goal, Section
from bench._report import machine
from headwater.coordinator import (
    CoordinatorConfig,
    Durability,
    Froze,
    WriteCoordinator,
)

WRITES = 200_000
QUICK_WRITES = 20_000
ROUNDS = 7
ROWS = (1, 10, 100, 1_000, 10_000)
ROWS_TOTAL = 2_000_000
CAPACITY = 10_000
NEVER_S = 3600.0


class Rows:
    """A delta of rows: applying one touches every row once.

    In an array and not in a list, which Python's garbage collector would walk through again and
    again while handles are made: with lists of a thousand rows that takes as long as applying half
    of them, and the coordinator has no part in it.
    """

    def __init__(self, total: int) -> None:
        self._rows = array("q")
        self._total = total

    def apply(self, write: array[int]) -> int:
        self._rows.extend(write)
        self._total += sum(write)
        return self._total

    def estimate_size(self) -> int:
        return 8 * len(self._rows)

    def freeze(self) -> Froze[array[int], array[int], int]:
        return Froze(self._rows, self._rows, self._total)

    def reader(self) -> array[int]:
        return self._rows


class Memory:
    """A flusher that copies every row once."""

    def __init__(self) -> None:
        self.kept: list[array[int]] = []

    async def flush_delta(self, frozen: array[int], _: range) -> int:
        self.kept.append(frozen[:])
        return len(self.kept)

    async def flush_storage(self) -> None:
        return None


Run = Callable[[int, int], Awaitable[None]]


async def through_coordinator(writes: int, rows: int, channels: int = 1) -> None:
    """Everything written through, and everybody answered."""
    config = CoordinatorConfig(
        queue_capacity=CAPACITY, flush_interval_s=NEVER_S, flush_size_bytes=8 * 1_000_000
    )
    names = [f"ch{number}" for number in range(channels)]
    write = array("q", range(rows))
    coordinator = WriteCoordinator(config, names, 0, 0, Memory(), delta=Rows)

    async def produce(name: str) -> None:
        handle = coordinator.handle(name)
        promise = None
        for _ in range(writes // channels):
            promise = await handle.write(write)
        if promise is not None:
            await promise.wait(Durability.APPLIED)

    async with coordinator:
        await asyncio.gather(*(produce(name) for name in names))


async def through_queue(writes: int, rows: int) -> None:
    """The same hops through a bare queue: put, get, apply, answer."""
    queue: asyncio.Queue[tuple[array[int], asyncio.Future[int]] | None] = asyncio.Queue(CAPACITY)
    delta, memory = Rows(0), Memory()
    loop = asyncio.get_running_loop()
    write = array("q", range(rows))

    async def consume() -> None:
        nonlocal delta
        while (item := await queue.get()) is not None:
            item[1].set_result(delta.apply(item[0]))
            if delta.estimate_size() >= 8 * 1_000_000:
                froze = delta.freeze()
                await memory.flush_delta(froze.frozen, range(0))
                delta = Rows(froze.context)
        await memory.flush_delta(delta.freeze().frozen, range(0))

    consuming = loop.create_task(consume())
    promise: asyncio.Future[int] | None = None
    for _ in range(writes):
        promise = loop.create_future()
        await queue.put((write, promise))
    if promise is not None:
        await promise
    await queue.put(None)
    await consuming


async def by_hand(writes: int, rows: int) -> None:
    """Apply and flush alone: what cannot be saved."""
    delta, memory = Rows(0), Memory()
    write = array("q", range(rows))
    for _ in range(writes):
        delta.apply(write)
        if delta.estimate_size() >= 8 * 1_000_000:
            froze = delta.freeze()
            await memory.flush_delta(froze.frozen, range(0))
            delta = Rows(froze.context)
    await memory.flush_delta(delta.freeze().frozen, range(0))


async def hundred_channels(writes: int, rows: int) -> None:
    """As through one channel, from a hundred writers."""
    await through_coordinator(writes, rows, channels=100)


def timed(candidates: dict[str, Run], writes: int, rows: int, rounds: int) -> dict[str, float]:
    """Median processor seconds of each, taken in turns."""
    spent: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            started_s = time.process_time()
            asyncio.run(run(writes, rows))  # type: ignore[arg-type]
            spent[name].append(time.process_time() - started_s)
    return {name: statistics.median(times) for name, times in spent.items()}


def small_writes(writes: int, rounds: int) -> Section:
    """One row a write."""
    candidates: dict[str, Run] = {
        "bare asyncio queue": through_queue,
        "coordinator, one channel": through_coordinator,
        "coordinator, 100 channels": hundred_channels,
    }
    spent = timed(candidates, writes, 1, rounds)
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


def growing_writes(total: int, rounds: int) -> Section:
    """The same rows in ever larger writes."""
    section = Section(
        f"Cost per write as writes grow: {total:,} rows in all, processor time",
        ["rows a write", "µs a write", "ns a row", "by hand, µs", "overhead"],
    )
    shares: dict[int, float] = {}
    for rows in ROWS:
        writes = max(1, total // rows)
        spent = timed({"ours": through_coordinator, "hand": by_hand}, writes, rows, rounds)
        shares[rows] = spent["ours"] / spent["hand"] - 1
        section.rows.append(
            [
                f"{rows:,}",
                f"{1e6 * spent['ours'] / writes:.2f}",
                f"{1e9 * spent['ours'] / (writes * rows):.1f}",
                f"{1e6 * spent['hand'] / writes:.2f}",
                f"{100 * shares[rows]:.1f} %",
            ]
        )
    section.goals.append(
        Goal(
            "overhead at 1,000 rows a write",
            5,
            100 * shares[1_000],
            at_least=False,
            unit="%",
            timed=True,
        )
    )
    return section


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description="Measure the write coordinator.")
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--json", action="store_true", help="figures for machines, on one line")
    options = parser.parse_args()
    rounds = 3 if options.quick else ROUNDS
    writes = QUICK_WRITES if options.quick else WRITES
    total = ROWS_TOTAL // 10 if options.quick else ROWS_TOTAL
    if not options.json:
        print(__doc__)
        print(machine())
    sections = [small_writes(writes, rounds), growing_writes(total, rounds)]
    if options.json:
        print(json.dumps([section.as_json() for section in sections]))
        return
    for section in sections:
        section.show()


if __name__ == "__main__":
    main()
