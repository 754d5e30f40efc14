"""A query on Spark, killed with SIGKILL and started again until it has read everything.

What is believed afterwards: the records that producers were told are accepted, what the sink
holds, and the queue's own word of what is acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import headwater
from headwater.buffer import Producer, create_stream, open_stream
from headwater.spark import versions
from headwater.store import open_store
from headwater.table.reference import load
from tests.spark.killed_driver import COPY, TABLE

REPOSITORY: Final = Path(__file__).parents[2]
POINTS: Final = {
    "files": ("begun", "read", "sunk", "done", "task", "time"),
    "stream": ("done", "task", "time", "time"),
    "table": ("done", "task", "time", "time"),
}
"""Where a query may die, by the sink that it writes to."""
LATEST_S: Final = 2.0
"""How long after a micro-batch was planned its driver may still be let live."""
PARTITIONS: Final = 2
RECORDS: Final = 150
BATCHES: Final = 4
"""Micro-batches with rows in them that a query of so many records has."""
DRIVER_MAX_S: Final = 240.0


async def _fill(url: str, random: Random) -> None:
    async with open_store(url) as store:
        await create_stream(store, "orders", partitions=PARTITIONS)
        await create_stream(store, COPY)
        async with Producer(store, "orders") as producer:
            number = 0
            while number < RECORDS:
                count = min(random.randint(1, 30), RECORDS - number)
                values = [b"%d" % one for one in range(number, number + count)]
                await producer.produce(values, partition=random.randrange(PARTITIONS))
                await producer.flush()
                number += count


async def _unacknowledged(url: str) -> int:
    async with open_store(url) as store:
        stream = await open_stream(store, "orders")
        states = [await stream.queue_reader(number).state() for number in range(PARTITIONS)]
        return sum(state.pending for state in states)


def _drive(**told: Any) -> int:
    command = [sys.executable, "-m", "tests.spark.killed_driver", json.dumps(told)]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, timeout=DRIVER_MAX_S, check=False
    )
    if done.returncode not in (0, -9) and told.get("point") != "task":
        raise AssertionError(f"the driver failed: {done.stderr.decode()[-3000:]}")
    return done.returncode


@dataclass(frozen=True)
class Kill:
    """Where a driver dies."""

    batch: int
    point: str
    after_s: float = 0.0


def run_killed(kills: list[Kill], sink: str = "files", seed: int = 0) -> None:
    """A query that dies at each of these points, and ends; raises unless it was exactly once."""
    folder = tempfile.mkdtemp(prefix="headwater-spark-kill-")
    told = {"url": f"file://{folder}/store", "folder": folder, "sink": sink}
    try:
        asyncio.run(_fill(told["url"], Random(seed)))
        for number, kill in enumerate(kills):
            status = _drive(**told, **asdict(kill))
            # One that dies by the clock may have come farther than where the next is to die.
            by_clock = any(earlier.point == "time" for earlier in kills[:number])
            assert status != 0 or by_clock, f"nobody died at {kill}"
        assert _drive(**told) == 0
        stored = {"files": _in_files, "stream": _in_stream, "table": _in_table}[sink](folder)
        check(stored, kills)
        if versions.HAS_LIMITS:  # others acknowledge the last micro-batch with the next
            left = asyncio.run(_unacknowledged(told["url"]))
            assert not left, f"{left} batches are not acknowledged after {kills}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _in_files(folder: str) -> list[int]:
    files = sorted(Path(folder, "sink").glob("*.json"))
    rows = [row for file in files for row in json.loads(file.read_text())]
    return [int(value) for _, _, value in rows]


def _in_stream(folder: str) -> list[int]:
    found = headwater.blocking.read(f"file://{folder}/store", COPY).to_table()
    return [int(value) for value in found.column("_value").to_pylist()]


def _in_table(folder: str) -> list[int]:
    found = load(TABLE, warehouse=f"file://{folder}/warehouse").scan().to_arrow()
    return [int(value) for value in found.column("value").to_pylist()]


def check(stored: list[int], kills: list[Kill]) -> None:
    """Raises unless each record is there once."""
    values = Counter(stored)
    missing = sorted(set(range(RECORDS)) - values.keys())
    doubled = sorted(number for number, count in values.items() if count > 1)
    assert not missing, f"missing after {kills}: {missing}"
    assert not doubled, f"doubled after {kills}: {doubled}"


def kill_round(seed: int) -> None:
    """One or two kills in micro-batches, and a sink, drawn from the seed."""
    random = Random(seed)
    sink = random.choice(list(POINTS))
    kills = [
        Kill(batch, random.choice(POINTS[sink]), random.uniform(0, LATEST_S))
        for batch in sorted(random.sample(range(BATCHES), random.randint(1, 2)))
    ]
    run_killed(kills, sink, seed)
