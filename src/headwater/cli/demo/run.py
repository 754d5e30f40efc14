"""One run of the demo: its processes, what they have said so far, and whom to kill when."""

from __future__ import annotations

import importlib.util
import shlex
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec
import typer
from rich.console import Console

from headwater.buffer.stream import create_stream
from headwater.cli.advice import EXIT_NO, command
from headwater.cli.console import CommandConsole
from headwater.cli.demo.orders import PRODUCTS, SALES, STORED, STREAM, Sale
from headwater.cli.demo.process import DemoProcess, Tail
from headwater.cli.demo.verdict import (
    accepted_orders,
    compare,
    orders_of,
    read_orders,
    stored_table,
)
from headwater.cli.demo.view import DemoBars, show_next, show_query, show_sales, show_verdict
from headwater.cli.doctor.machine import PACKAGES, Package
from headwater.cli.loop import run as run_loop
from headwater.core import runtime
from headwater.core.errors import HeadwaterError, Refused
from headwater.store import open_store

PRODUCERS: Final = ("north", "south")
VICTIM: Final = "south"
"""Which producer is killed."""
DUCKDB: Final = Package("duckdb", (1, 4), "demo", why="the demo's question to the table")
POLL_S: Final = 0.1
# Spark starts twice, on a busy machine, beyond the time given for the work.
SPARE_S: Final = 300.0
STATEMENT: Final = (
    "SELECT product, count(*), sum(cents) / 100 FROM orders GROUP BY product ORDER BY product"
)


class Demo:
    """The processes and their reports."""

    def __init__(self, console: Console, root: Path, *, orders: int, seconds: float) -> None:
        self.url = f"file://{root}/store"
        self.console = console
        self._each = orders // len(PRODUCERS)
        self._folder = root / "reports"
        self._folder.mkdir()
        self.reports = {name: self._folder / f"{name}.report" for name in PRODUCERS}
        self.producers = {
            name: self._process(
                name,
                "headwater.cli.demo.producer",
                [self.url, name, str(self._each), str(seconds), str(self.reports[name])],
            )
            for name in PRODUCERS
        }
        self.job = self._process(
            "the PySpark job",
            "headwater.cli.demo.query",
            [self.url, str(self._folder), str(self.total)],
        )
        self._tails = {name: Tail(report) for name, report in self.reports.items()}
        self._stored_tail = Tail(self._folder / STORED)
        self.accepted = dict.fromkeys(PRODUCERS, 0)
        self.stored = 0

    @property
    def total(self) -> int:
        """All orders of all producers."""
        return self._each * len(PRODUCERS)

    @property
    def sales(self) -> list[Sale]:
        """The aggregate, as the job wrote it down."""
        return msgspec.json.decode((self._folder / SALES).read_bytes(), type=list[Sale])

    def start(self) -> None:
        """Start every process."""
        for process in (*self.producers.values(), self.job):
            process.start()

    def kill(self) -> None:
        """End whatever still runs."""
        for process in (*self.producers.values(), self.job):
            process.kill()

    def look(self) -> bool:
        """Take in what was written since the last look, and act on it; whether all are done."""
        for name, tail in self._tails.items():
            for line in tail.lines():
                word, *numbers = line.split()
                self.accepted[name] = max(self.accepted[name], int(numbers[-1]))
                if word == b"resumed" and int(numbers[0]):
                    self._say(
                        f"{name} is told that {self.accepted[name]:,} of its orders are accepted, "
                        "and goes on from there"
                    )
        for line in self._stored_tail.lines():
            number, stored, how = line.split()
            self.stored = int(stored)
            if how == b"again":
                self._say(
                    f"Spark runs micro-batch {int(number)} again, and the table has it already: "
                    "nothing is added"
                )
        self._strike()
        # Each is asked, also after one that is not done: a failure is told at once.
        done = [one.is_done for one in (*self.producers.values(), self.job)]
        return all(done)

    def _strike(self) -> None:
        """Kill a producer at a third of its orders, and start again who was killed."""
        victim = self.producers[VICTIM]
        if victim.lives == 1 and self.accepted[VICTIM] > self._each // 3:
            victim.kill()
            self._say(
                f"[yellow]{VICTIM} killed with {self.accepted[VICTIM]:,} orders accepted[/yellow], "
                "and started again"
            )
            victim.start()
        if self.job.lives == 1 and self.job.was_killed:
            self.job.kill()
            self._say(
                f"[yellow]the PySpark job killed with {self.stored:,} orders in the table[/yellow]"
                ", after the table's commit and before Spark's own, and started again"
            )
            self.job.start()

    def _process(self, name: str, module: str, arguments: list[str]) -> DemoProcess:
        log = self._folder / f"{module.rpartition('.')[2]}-{arguments[1].rpartition('/')[2]}.log"
        return DemoProcess(name, module, arguments, log)

    def _say(self, words: str) -> None:
        self.console.print(words, soft_wrap=True)


def run_demo(*, orders: int, seconds: float) -> int:
    """Run the demo and print what came of it; 0 if every order is in the table exactly once."""
    _check_installed()
    console = CommandConsole()
    root = Path(tempfile.mkdtemp(prefix="headwater-demo-"))
    demo = Demo(console, root, orders=orders, seconds=seconds)
    console.print(
        f"two producers and a PySpark job share nothing but [bold]{demo.url}[/bold]",
        soft_wrap=True,
    )
    try:
        run_loop(_work(demo, seconds))
    except BaseException:
        typer.echo(f"what it wrote stays there until: rm -r {shlex.quote(str(root))}", err=True)
        raise
    finally:
        demo.kill()
    table = stored_table(demo.url)
    verdict = compare(accepted_orders(demo.reports), read_orders(demo.url), orders_of(table))
    show_sales(console, demo.sales, list(PRODUCTS))
    show_query(console, "DuckDB", STATEMENT, _asked(table))
    show_verdict(console, verdict)
    place, headwater = shlex.quote(demo.url), command()
    show_next(
        console,
        [
            f"{headwater} read {place} {STREAM} --limit 5",
            f"{headwater} lag {place} {STREAM}",
            f"{headwater} stream describe {place} {STREAM}",
            f"{headwater} inspect queue {place} --stream {STREAM}",
            f"rm -r {shlex.quote(str(root))}",
        ],
    )
    return 0 if verdict.is_exact else EXIT_NO


def _check_installed() -> None:
    needed = [*(one for one in PACKAGES if one.extra), DUCKDB]
    missing = [one for one in needed if not importlib.util.find_spec(one.name)]
    if missing:
        raise Refused(
            f"the demo needs {', '.join(one.name for one in missing)}: "
            f"pip install {' '.join(one.requirement for one in missing)} "
            "(or, in a clone, make demo)"
        )


def _asked(orders: Any) -> list[tuple[Any, ...]]:
    import duckdb

    with duckdb.connect() as engine:
        engine.register("orders", orders)
        return list(engine.execute(STATEMENT).fetchall())


async def _work(demo: Demo, seconds: float) -> None:
    async with open_store(demo.url) as store:
        await create_stream(store, STREAM)
    started_s = runtime.monotonic_s()
    demo.start()
    with DemoBars(demo.console, list(PRODUCERS), demo.total) as bars:
        while not demo.look():
            spent_s = runtime.monotonic_s() - started_s
            if spent_s > seconds + SPARE_S:
                raise HeadwaterError(f"the processes are not done after {spent_s:.0f} s")
            bars.show(demo.accepted, demo.stored)
            await runtime.sleep(POLL_S)
        bars.show(demo.accepted, demo.stored)
