"""`headwater demo`: several processes, one directory, a kill in the middle, and a count.

The processes share nothing but the store. Each appends entries to one sequence and updates one
register; one of them is killed with SIGKILL while it works and is started again. What they
were told is then compared with what a reader finds.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from headwater.cli.advice import EXIT_NO, command
from headwater.cli.console import CommandConsole
from headwater.cli.demo_count import Count, count_entries, count_updates, read_reports
from headwater.cli.demo_worker import REGISTER, SEQUENCE, Updates
from headwater.cli.loop import run as run_loop
from headwater.core import runtime
from headwater.core.errors import HeadwaterError
from headwater.store import Entry, Register, Sequence, open_store

POLL_S: Final = 0.01
READ_AT_ONCE: Final = 1000
# Starting, and finishing what is under way, take a while beyond the time given for the work.
SPARE_S: Final = 8.0
VICTIM: Final = 1


@dataclass(slots=True)
class Worker:
    """One worker of the demo, in its first or second life."""

    name: str
    folder: Path
    life: int = 0
    process: subprocess.Popen[bytes] | None = None
    killed: set[str] = field(default_factory=set)

    @property
    def run(self) -> str:
        return f"{self.name}.{self.life}"

    def start(self, url: str, entries: int, seconds: float) -> None:
        self.life += 1
        report = str(self.folder / f"{self.run}.report")
        arguments = [url, self.run, str(entries), f"{seconds:.1f}", report]
        with (self.folder / f"{self.run}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headwater.cli.demo_worker", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """SIGKILL: no handler runs, no buffer is written."""
        if self.process is not None and self.process.poll() is None:
            self.killed.add(self.run)
            self.process.kill()
            self.process.wait()

    def is_done(self) -> bool:
        if self.process is None or self.process.poll() is None:
            return False
        if self.process.returncode != 0:
            log = (self.folder / f"{self.run}.log").read_text(errors="replace").strip()
            raise HeadwaterError(f"{self.run} failed: {log.splitlines()[-1] if log else 'no log'}")
        return True

    def accepted(self) -> int:
        return len(read_reports(self.reports()).entries)

    def reports(self) -> list[str]:
        return [path.read_text() for path in sorted(self.folder.glob(f"{self.name}.*.report"))]


class Bars:
    """A bar for each worker on a terminal; nothing in a pipe."""

    def __init__(self, console: Console, crew: list[Worker], entries: int) -> None:
        self._crew = crew
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks = [self._progress.add_task(worker.name, total=entries) for worker in crew]

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self) -> None:
        """Look at the reports again."""
        for worker, task in zip(self._crew, self._tasks, strict=True):
            self._progress.update(task, completed=worker.accepted())


def run_demo(*, workers: int, entries: int, seconds: float) -> int:
    """Run the demo and print its table; 0 if everything accepted is there once."""
    console = CommandConsole()
    root = Path(tempfile.mkdtemp(prefix="headwater-demo-"))
    reports = root / "reports"
    reports.mkdir()
    url = f"file://{root}/store"
    crew = [Worker(f"worker-{number}", reports) for number in range(1, workers + 1)]
    console.print(f"{workers} processes share nothing but [bold]{url}[/bold]", soft_wrap=True)
    try:
        run_loop(_write(console, url, crew, entries, seconds))
    finally:
        for worker in crew:
            worker.kill()
    found, updates = run_loop(_read(url))
    told = read_reports(text for worker in crew for text in worker.reports())
    killed = {run for worker in crew for run in worker.killed}
    rows = {
        "entries of the sequence": count_entries(told.entries, found, killed),
        "updates of the register": count_updates(told.updates, updates, killed),
    }
    _conclude(console, rows)
    _what_next(console, url, root)
    return 0 if all(row.is_exact for row in rows.values()) else EXIT_NO


async def _write(
    console: Console, url: str, crew: list[Worker], entries: int, seconds: float
) -> None:
    async with open_store(url) as store:
        await Sequence(store, SEQUENCE).create()
    started_s = runtime.monotonic_s()
    for worker in crew:
        worker.start(url, entries, seconds)
    victim = crew[VICTIM]
    with Bars(console, crew, entries) as bars:
        while not all(worker.is_done() for worker in crew):
            spent_s = runtime.monotonic_s() - started_s
            if spent_s > seconds + SPARE_S:
                raise HeadwaterError(f"the processes are not done after {spent_s:.0f} s")
            bars.show()
            accepted = victim.accepted()
            if victim.life == 1 and accepted > (0 if spent_s > seconds / 2 else entries // 3):
                victim.kill()
                kept = victim.accepted()
                console.print(f"[yellow]{victim.name} killed after {kept} entries[/yellow]")
                victim.start(url, entries - kept, max(1.0, seconds - spent_s))
                console.print(f"{victim.name} started again")
            await runtime.sleep(POLL_S)
        bars.show()


async def _read(url: str) -> tuple[list[Entry], Updates]:
    found: list[Entry] = []
    async with open_store(url) as store:
        sequence = Sequence(store, SEQUENCE)
        while page := await sequence.read(len(found), limit=READ_AT_ONCE):
            found += page
        return found, (await Register(store, REGISTER, Updates).read()).value


def _conclude(console: Console, rows: dict[str, Count]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    table.add_column("")
    for column in ("accepted", "found", "unreported", "lost", "doubled"):
        table.add_column(column, justify="right")
    for name, row in rows.items():
        numbers = (row.accepted, row.found, row.unreported, row.lost, row.doubled)
        table.add_row(name, *(f"{number:,}" for number in numbers))
    console.print()
    console.print(table)
    exact = all(row.is_exact for row in rows.values())
    answer = "[bold green]yes[/bold green]" if exact else "[bold red]NO[/bold red]"
    console.print(f"\nevery accepted entry is there exactly once: {answer}")
    console.print(
        "[dim]unreported: accepted just as its process was killed, before it could say so[/dim]"
    )


def _what_next(console: Console, url: str, root: Path) -> None:
    console.print("\nnext:")
    headwater, place = command(), shlex.quote(url)
    for line in (
        f"{headwater} store ls {place}",
        f"{headwater} store cat {place} {REGISTER}",
        f"{headwater} store check {place}",
        f"rm -r {shlex.quote(str(root))}",
    ):
        console.print(f"  {line}", soft_wrap=True, markup=False)
