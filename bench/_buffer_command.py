"""`headwater produce` of lines and of JSON, against Arrow's own reader over the same file.

And what commands take that need neither Arrow nor Spark, against the start of the interpreter.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from typer.testing import CliRunner

from bench._report import Goal, Section, in_turns
from headwater.buffer.stream import create_stream
from headwater.cli.app import app
from headwater.store import open_store

STARTUP_GOAL_S = 0.2
"""Processor time, user and system, of a command that needs neither Arrow nor Spark."""
RATE_GOAL = 500_000
RATIO_GOAL = 0.5
"""Of Arrow's reader alone to all of it: checking, copying, encoding and writing is the rest."""


def _write(path: Path, records: int, *, long_floats: bool) -> None:
    chance = random.Random(11)
    with path.open("w") as file:
        for number in range(records):
            amount = chance.random() * 100
            row = {
                "id": number,
                "customer": f"c{chance.randrange(1000)}",
                "amount": amount if long_floats else round(amount, 2),
                "at": "2026-01-02T03:04:05Z",
            }
            file.write(json.dumps(row, separators=(",", ":")) + "\n")


def command(root: Path, records: int, rounds: int) -> Section:
    """Each way in turns, in processor time as well: the command has threads."""
    url = f"file://{root}/command"
    short, long = root / "short.jsonl", root / "long.jsonl"
    _write(short, records, long_floats=False)
    _write(long, records, long_floats=True)

    async def make() -> None:
        async with open_store(url) as store:
            for name in ("lines", "json", "long"):
                await create_stream(store, name)

    asyncio.run(make())

    def produced(stream: str, *arguments: str) -> Callable[[], None]:
        def run() -> None:
            done = CliRunner().invoke(app, ["produce", url, stream, *arguments])
            assert done.exit_code == 0, done.output

        return run

    def read() -> None:
        from pyarrow import json as arrow_json

        arrow_json.read_json(pa.OSFile(str(short)))

    ways = {
        "produce, lines": produced("lines", str(short)),
        "produce --json": produced("json", str(short), "--json"),
        "produce --json, floats of 16 digits": produced("long", str(long), "--json"),
        "pyarrow.json alone, which rounds": read,
    }
    spent = in_turns(ways, rounds, warm_up=True)
    wall = {name: records / statistics.median(seconds.wall) for name, seconds in spent.items()}
    cpu = {name: statistics.median(seconds.cpu) / records for name, seconds in spent.items()}
    _, fast, _, alone = ways
    return Section(
        f"headwater produce, {records:,} records a file",
        ["", "records/s", "processor, µs/record"],
        rows=[[name, f"{wall[name]:,.0f}", f"{cpu[name] * 1e6:.2f}"] for name in ways],
        goals=[
            Goal("produce --json", RATE_GOAL, wall[fast], unit="records/s", timed=True),
            Goal("pyarrow.json ÷ --json, processor time", RATIO_GOAL, cpu[alone] / cpu[fast]),
        ],
    )


def startup(root: Path, rounds: int) -> Section:
    """Processor time of commands as processes of their own, in turns with a bare interpreter."""
    url = f"file://{root}/startup"
    asyncio.run(create_stream(url, "orders"))
    commands = ["version", "--help", f"store ls {url}", f"stream list {url}"]
    commands += [f"stream describe {url} orders", f"lag {url} orders"]
    commands += [f"stream create {url} orders --exists-ok", f"gc {url} orders"]
    started = {"(python -c pass)": [sys.executable, "-c", "pass"]}
    started |= {
        one.replace(url, "URL"): [sys.executable, "-m", "headwater.cli", *one.split()]
        for one in commands
    }
    # As installed: Python keeps its bytecode. The first round compiles it and is not counted.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": f"{root}/bytecode"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    spent: dict[str, list[float]] = {name: [] for name in started}
    for number in range(rounds + 1):
        for name, arguments in started.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(arguments, env=environment, stdout=subprocess.DEVNULL, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            if number:
                used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                spent[name].append(used_s)
    medians = {name: statistics.median(times) for name, times in spent.items()}
    bare_s, *others_s = medians.values()
    return Section(
        "Processor time of a command, user and system",
        ["command", "median", "÷ bare interpreter"],
        [[name, f"{used_s:.3f} s", f"{used_s / bare_s:.1f}"] for name, used_s in medians.items()],
        [
            Goal(
                "the slowest of these commands",
                STARTUP_GOAL_S,
                max(others_s),
                at_least=False,
                unit="s",
                timed=True,
            )
        ],
    )
