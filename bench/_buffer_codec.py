"""The codecs alone: records a second, to and from the bytes of a batch."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import pyarrow as pa

from bench._report import Goal, Section, in_turns
from headwater.buffer import batch
from headwater.buffer.batch import Call, Calls
from headwater.buffer.compression import Compression
from headwater.buffer.queue.v1 import batch_format
from headwater.buffer.records import from_values
from headwater.core import runtime

RECORDS = 80_000  # about 8 MiB, a batch as a busy producer makes them
LENGTHS_BYTES = (50, 150)
GOAL_RECORDS_PER_S = 5e6


def codec(rounds: int) -> Section:
    """Native beside v1, uncompressed; each from Arrow, to Arrow and to a list of bytes."""
    chance = random.Random(3)
    values = [chance.randbytes(chance.randint(*LENGTHS_BYTES)) for _ in range(RECORDS)]
    column = pa.array(values, pa.binary())
    calls = Calls.of([Call(0, runtime.wall_ms(), None)])
    whole = batch.Batch(runtime.new_ulid(), from_values(column), calls)
    native, v1 = batch.encode_parts(whole).together(), batch_format.encode_batch(column)
    candidates: dict[str, Callable[[], object]] = {
        "native encode": lambda: batch.encode_parts(whole).together(),
        "native decode": lambda: batch.decode_batch(native),
        "v1 encode": lambda: batch_format.encode_batch(column),
        "v1 decode": lambda: batch_format.decode_batch(v1),
        "list of bytes → Arrow": lambda: from_values(values),
        "Arrow → list of bytes": lambda: column.to_pylist(),
        "native encode, zstd": lambda: batch.encode_parts(whole, Compression.ZSTD).together(),
    }
    spent = in_turns(candidates, rounds, warm_up=True)
    rates = {name: RECORDS / statistics.median(seconds.wall) for name, seconds in spent.items()}
    low, high = LENGTHS_BYTES
    section = Section(
        f"Codecs: {RECORDS:,} records of {low}–{high} B a batch, medians of {rounds}",
        ["what", "M records/s", "MB/s"],
    )
    size_bytes = sum(map(len, values)) / RECORDS
    for name, rate in rates.items():
        section.rows.append([name, f"{rate / 1e6:.1f}", f"{rate * size_bytes / 1e6:,.0f}"])
    for name in ("native encode", "native decode"):
        section.goals.append(
            Goal(name, GOAL_RECORDS_PER_S / 1e6, rates[name] / 1e6, unit="M records/s", timed=True)
        )
    section.notes.append("from Arrow and to Arrow; v1's chain of lengths is the one loop allowed")
    return section
