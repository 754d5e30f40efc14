"""A query on Spark, killed with SIGKILL and started again until it has read everything.

What is believed afterwards: the records that producers were told are accepted, the files of the
sink, and the queue's own word of what is acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Final

from headwater.buffer import Producer, create_stream, open_stream
from headwater.store import open_store

REPOSITORY: Final = Path(__file__).parents[2]
POINTS: Final = ("begun", "read", "sunk", "done", "task")
PARTITIONS: Final = 2
RECORDS: Final = 150
BATCHES: Final = 4
"""Micro-batches with rows in them that a query of so many records has."""
DRIVER_MAX_S: Final = 240.0


async def _fill(url: str, random: Random) -> None:
    async with open_store(url) as store:
        await create_stream(store, "orders", partitions=PARTITIONS)
        async with await Producer.open(store, "orders") as producer:
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
        states = [await stream.looker(number).state() for number in range(PARTITIONS)]
        return sum(state.pending for state in states)


def _drive(**told: Any) -> int:
    command = [sys.executable, "-m", "tests.spark.killed_driver", json.dumps(told)]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, timeout=DRIVER_MAX_S, check=False
    )
    if done.returncode not in (0, -9) and told.get("point") != "task":
        raise AssertionError(f"the driver failed: {done.stderr.decode()[-3000:]}")
    return done.returncode


def run_killed(kills: list[tuple[int, str]], seed: int = 0) -> None:
    """A query that dies at each of these points, and ends; raises unless it was exactly once."""
    folder = tempfile.mkdtemp(prefix="headwater-spark-kill-")
    try:
        url = f"file://{folder}/store"
        asyncio.run(_fill(url, Random(seed)))
        for batch, point in kills:
            status = _drive(url=url, folder=folder, batch=batch, point=point)
            assert status != 0, f"nobody died at {point} of batch {batch}"
        assert _drive(url=url, folder=folder) == 0
        _check(folder, kills)
        left = asyncio.run(_unacknowledged(url))
        assert not left, f"{left} batches are not acknowledged after {kills}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check(folder: str, kills: list[tuple[int, str]]) -> None:
    files = sorted(Path(folder, "sink").glob("*.json"))
    rows = [row for file in files for row in json.loads(file.read_text())]
    values = Counter(int(value) for _, _, value in rows)
    missing = sorted(set(range(RECORDS)) - values.keys())
    doubled = sorted(number for number, count in values.items() if count > 1)
    assert not missing, f"missing after {kills}: {missing}"
    assert not doubled, f"doubled after {kills}: {doubled}"


def kill_round(seed: int) -> None:
    """Two kills in micro-batches drawn from the seed."""
    random = Random(seed)
    first = random.randrange(BATCHES - 1)
    second = random.randrange(first + 1, BATCHES)
    run_killed([(first, random.choice(POINTS)), (second, random.choice(POINTS))], seed)
