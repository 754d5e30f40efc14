"""How good the buffer is, against its goals: `python -m bench.buffer [--quick] [--json]`.

- codecs: records a second to and from the bytes of a batch, native and published v1;
- produce until accepted, and consume, on a local directory, against the same bytes put and got
  through the store alone, with the same syncs;
- `headwater produce` of lines and of JSON, against Arrow's JSON reader alone;
- processor time of commands that need neither Arrow nor Spark, against the bare interpreter;
- a store at 50 ms a request, in the simulator's virtual time: what several uploads in flight and
  grouped appends bring, and what 1, 4, 16 and 64 producers on one partition cost each other;
- what an append, a poll and a dequeue move at 10, 1,000 and 100,000 pending batches;
- what finding a time takes among as many, against reading every entry;
- requests and their S3 price per million records, and a month of them;
- requests per batch on the steady path, whatever the stream says of its columns;
- memory while a producer outruns its store.

Each section prints its goals beside what was measured. Times depend on the machine, and the disk
sets the pace of everything that syncs: where a goal is a ratio, both sides ran in turns in the same
run. Figures in virtual time are the same on every machine.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path

from bench._buffer_codec import codec
from bench._buffer_command import command, startup
from bench._buffer_distance import contention, pipelining
from bench._buffer_growth import growth
from bench._buffer_local import Load, local
from bench._buffer_memory import memory
from bench._buffer_price import price, steady
from bench._buffer_times import times
from bench._report import Section, Sections, measure
from headwater.core.limits import KIB, MIB


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    rounds: int
    records: int
    pending: tuple[int, ...]
    pending_v1: tuple[int, ...]
    batches: int
    flushes: int
    rates: tuple[int, ...]
    memory_bytes: tuple[int, int]


FULL = Scale(
    rounds=5,
    records=200_000,
    pending=(10, 1000, 100_000),
    pending_v1=(10, 1000, 10_000),
    batches=1000,
    flushes=60,
    rates=(1000, 10_000),
    memory_bytes=(256 * MIB, 1024 * MIB),
)
QUICK = Scale(
    rounds=2,
    records=20_000,
    pending=(10, 1000, 10_000),
    pending_v1=(10, 1000),
    batches=200,
    flushes=10,
    rates=(10_000,),
    memory_bytes=(192 * MIB, 576 * MIB),
)


def load(size_bytes: int, count: int) -> Load:
    """Random records, which no compression makes smaller."""
    chance = random.Random(11)
    return Load(size_bytes, [chance.randbytes(size_bytes) for _ in range(count)])


def sections(root: Path, quick: bool) -> Sections:
    """Name → what measures it."""
    scale = QUICK if quick else FULL

    def on_disk() -> list[Section]:
        large = asyncio.run(local(root, load(KIB, scale.records), scale.rounds))
        return large + asyncio.run(local(root, load(100, 5 * scale.records), scale.rounds))

    def by_pending() -> list[Section]:
        native = asyncio.run(growth("native", scale.pending))
        return [native, asyncio.run(growth("v1", scale.pending_v1))]

    return {
        "codec": lambda: [codec(scale.rounds)],
        "local": on_disk,
        "command": lambda: [command(root, 5 * scale.records, scale.rounds)],
        "startup": lambda: [startup(root, scale.rounds)],
        "pipelining": lambda: [pipelining(scale.batches)],
        "contention": lambda: [contention(scale.flushes)],
        "growth": by_pending,
        "times": lambda: [asyncio.run(times(scale.pending))],
        "price": lambda: [price(scale.rates)],
        "steady": lambda: [steady(scale.batches)],
        "memory": lambda: [memory(scale.memory_bytes)],
    }


if __name__ == "__main__":
    measure(__doc__, sections)
