"""`headwater demo`: the main job end to end on this machine, with kills, and the proof by counts.

Two producers write orders into a stream; one is killed and started again. A PySpark job turns the
stream into an Iceberg table and a windowed aggregate; it is killed between the commit of a snapshot
and the commit of its offsets, and started again. Then the accepted orders are compared with those
of the stream and of the table.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import typer

from headwater.buffer.stream import create_stream
from headwater.cli.advice import command
from headwater.cli.demo_orders import (
    PRODUCTS,
    SALES,
    STORED,
    STREAM,
    Sale,
    Verdict,
    accepted_orders,
    compare,
    orders_of,
    read_orders,
    stored_table,
)
from headwater.cli.doctor_checks import PACKAGES, Package
from headwater.cli.render import Progress, conclude, echo
from headwater.cli.report import Note, Report
from headwater.cli.terminal import run_loop
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
SLOW_WORKER: Final = "Python worker failed to connect back"
"""Spark gives a Python worker ten seconds to start. No setting changes that, and a busy machine
needs more: the job is started again."""
JOB_LIVES_MAX: Final = 6
STATEMENT: Final = (
    "SELECT product, count(*), sum(cents) / 100 FROM orders GROUP BY product ORDER BY product"
)


class Demo:
    """The processes and their reports."""

    def __init__(self, root: Path, *, orders: int, seconds: float) -> None:
        self.url = f"file://{root}/store"
        self.progress = Progress("starting")
        self._each = orders // len(PRODUCERS)
        self._folder = root / "reports"
        self._folder.mkdir()
        self.reports = {name: self._folder / f"{name}.report" for name in PRODUCERS}
        self.producers = {
            name: self._process(
                name,
                ["produce", self.url, name, str(self._each), str(seconds), str(self.reports[name])],
            )
            for name in PRODUCERS
        }
        self.job = self._process(
            "the PySpark job", ["query", self.url, str(self._folder), str(self.total)]
        )
        self._tails = {name: ReportFile(report) for name, report in self.reports.items()}
        self._stored_tail = ReportFile(self._folder / STORED)
        self.accepted = dict.fromkeys(PRODUCERS, 0)
        self.stored = 0
        self._job_was_killed = False

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
                        f"{name} learns that {self.accepted[name]:,} of its orders are accepted, "
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
        self._retry_slow_start()
        # All of them, also after one that is not done: a failure is reported at once.
        done = [one.is_done for one in (*self.producers.values(), self.job)]
        return all(done)

    def _strike(self) -> None:
        """Kill a producer at a third of its orders, and start again who was killed."""
        victim = self.producers[VICTIM]
        if victim.lives == 1 and self.accepted[VICTIM] > self._each // 3:
            victim.kill()
            self._say(
                f"{VICTIM} killed with {self.accepted[VICTIM]:,} orders accepted, and started "
                "again",
                "yellow",
            )
            victim.start()
        if not self._job_was_killed and self.job.was_killed:
            self._job_was_killed = True
            self.job.kill()
            self._say(
                f"the PySpark job killed with {self.stored:,} orders in the table, after the "
                "table's commit and before Spark's own, and started again",
                "yellow",
            )
            self.job.start()

    def _retry_slow_start(self) -> None:
        """Start the job again if the machine was too busy for Spark's limit."""
        if self.job.lives < JOB_LIVES_MAX and self.job.failed_with(SLOW_WORKER):
            self.job.kill()
            self._say(
                "this machine is too busy to start Spark's Python worker within Spark's limit of "
                "10 s: the PySpark job is started again"
            )
            self.job.start()

    def _process(self, name: str, arguments: list[str]) -> DemoProcess:
        log = self._folder / f"{name.rpartition(' ')[2]}.log"
        return DemoProcess(name, "headwater.cli.demo_orders", arguments, log)

    def _say(self, words: str, style: str = "") -> None:
        self.progress.say(Note(words, style), is_error=False)


def run_demo(*, orders: int, seconds: float) -> None:
    """Run the demo and print what came of it: is every order in the table exactly once?"""
    _check_installed()
    root = Path(tempfile.mkdtemp(prefix="headwater-demo-"))
    demo = Demo(root, orders=orders, seconds=seconds)
    echo(f"two producers and a PySpark job share nothing but {demo.url}")
    try:
        run_loop(_work(demo, seconds))
    except BaseException:
        typer.echo(f"what it wrote stays there until: rm -r {shlex.quote(str(root))}", err=True)
        raise
    finally:
        demo.kill()
    table = stored_table(demo.url)
    verdict = compare(accepted_orders(demo.reports), read_orders(demo.url), orders_of(table))
    parts = [
        describe_sales(demo.sales, list(PRODUCTS)),
        describe_query("DuckDB", STATEMENT, _query_duckdb(table)),
        describe_verdict(verdict),
    ]
    report = Report(parts=parts, notes=[Note(""), Note("next:")])
    place, headwater = shlex.quote(demo.url), command()
    report.say(f"  {headwater} read {place} {STREAM} --limit 5")
    report.say(f"  {headwater} lag {place} {STREAM}")
    report.say(f"  {headwater} stream describe {place} {STREAM}")
    report.say(f"  {headwater} inspect queue {place} --stream {STREAM}")
    report.say(f"  rm -r {shlex.quote(str(root))}")
    conclude(report, good=verdict.is_exact)


def _check_installed() -> None:
    needed = [*(one for one in PACKAGES if one.extra), DUCKDB]
    missing = [one for one in needed if not importlib.util.find_spec(one.name)]
    if missing:
        raise Refused(
            f"the demo needs {', '.join(one.name for one in missing)}: "
            f"pip install {' '.join(one.requirement for one in missing)} "
            "(or, in a clone, make demo)"
        )


def _query_duckdb(orders: Any) -> list[tuple[Any, ...]]:
    import duckdb

    with duckdb.connect() as engine:
        engine.register("orders", orders)
        return list(engine.execute(STATEMENT).fetchall())


async def _work(demo: Demo, seconds: float) -> None:
    async with open_store(demo.url) as store:
        await create_stream(store, STREAM)
    started_s = runtime.monotonic_s()
    demo.start()
    with demo.progress:
        while not demo.look():
            spent_s = runtime.monotonic_s() - started_s
            if spent_s > seconds + SPARE_S:
                raise HeadwaterError(f"the processes are not done after {spent_s:.0f} s")
            accepted = ", ".join(f"{name} {orders:,}" for name, orders in demo.accepted.items())
            words = f"accepted: {accepted}; in the table"
            demo.progress.show(words, demo.stored, demo.total)
            await runtime.sleep(POLL_S)


class ReportFile:
    """The whole lines of a file that others append to, each read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def lines(self) -> list[bytes]:
        """What was added since the last time."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        return data[:whole].splitlines()


@dataclass(slots=True)
class DemoProcess:
    """A module that runs with arguments; its complaints go to a log."""

    name: str
    module: str
    arguments: list[str]
    log: Path
    lives: int = 0
    process: subprocess.Popen[bytes] | None = None
    log_start_bytes: int = 0
    """Where the log of this life begins."""

    def start(self) -> None:
        """Begin a life, in a group of its own: whatever it starts ends with it."""
        self.lives += 1
        with self.log.open("ab") as log:
            self.log_start_bytes = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL: no handler runs, no buffer is written."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    @property
    def was_killed(self) -> bool:
        """Whether it ended by SIGKILL."""
        return self.process is not None and self.process.poll() == -signal.SIGKILL

    def failed_with(self, text: str) -> bool:
        """Whether it ended with an error, and its log of this life contains `text`."""
        if self.process is None or self.process.poll() in (None, 0):
            return False
        return text.encode() in self.log.read_bytes()[self.log_start_bytes :]

    @property
    def is_done(self) -> bool:
        """Whether it came to its end; raises if that was an error."""
        if self.process is None or self.process.poll() is None:
            return False
        if self.process.returncode != 0:
            text = self.log.read_text(errors="replace").strip()
            last_line = text.splitlines()[-1] if text else "no word"
            raise HeadwaterError(f"{self.name} failed: {last_line} (all of it: {self.log})")
        return True


def describe_verdict(verdict: Verdict) -> Report:
    """Counts and fingerprints, and the answer."""
    meant = {
        "accepted": "what producers learned",
        "read": "what the stream holds",
        "stored": "what the Iceberg table holds",
    }
    rows = [
        {"": f"{name} ({meant[name]})", "orders": one.rows, "fingerprint": str(one)}
        for name, one in verdict.found.items()
    ]
    report = Report()
    report.table("counts", rows)
    exact = verdict.is_exact
    report.say(f"exactly once: {'yes' if exact else 'NO'}", "green" if exact else "red")
    for problem in verdict.problems:
        report.say(f"  {problem}", "red")
    return report


def describe_sales(sales: list[Sale], products: list[str]) -> Report:
    """The windowed aggregate: a row for each half hour."""
    rows: list[dict[str, Any]] = []
    for window in sorted({sale.window for sale in sales}):
        by_product = {sale.product: sale for sale in sales if sale.window == window}
        euros = {
            f"{one} €": f"{by_product[one].euros:,.2f}" if one in by_product else ""
            for one in products
        }
        orders = sum(sale.orders for sale in by_product.values())
        rows.append({"half hour": window, **euros, "orders": orders})
    report = Report()
    numbers = [f"{one} €" for one in products]
    report.table("sales, aggregated by the streaming job", rows, numbers=numbers)
    return report


def describe_query(engine: str, statement: str, rows: list[tuple[Any, ...]]) -> Report:
    """The same table through another engine."""
    shown = [
        {"product": product, "orders": orders, "€": f"{euros:,.2f}"}
        for product, orders, euros in rows
    ]
    report = Report()
    report.table(f"the table, read by {engine}: {statement}", shown, numbers=("€",))
    return report
