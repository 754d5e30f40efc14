"""How the rebuilding of a log of the tier's events looks."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from headwater.cli.tables import print_table
from headwater.tier.rebuild import Rebuilt, RebuiltPartition

_SHOWN = 20


class RebuildBar:
    """A bar on a terminal while it takes long."""

    def __init__(self, metadata_partitions: int) -> None:
        console = Console(stderr=True, highlight=False)
        self._read = 0
        self._progress = Progress(
            SpinnerColumn(style="cyan"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("listing", total=metadata_partitions)

    def __enter__(self) -> RebuildBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def step(self, done: int) -> None:
        """One more thing was read, and so many metadata partitions are done."""
        self._read += 1
        self._progress.update(self._task, description=f"{self._read:,} read", completed=done)


def show_rebuilt(console: Console, rebuilt: Rebuilt, prefix: str) -> None:
    """What the new log has, what the old one lacks, and what is to be looked at."""
    rows = [
        [
            one.stream,
            str(one.partition),
            f"{one.first_lsn:,}" if one.pieces else "-",
            f"{one.last_lsn:,}" if one.pieces else "-",
            f"{one.pieces:,}",
            f"{len(one.from_objects):,}",
            f"{one.log_start:,}" if one.log_start else "-",
            f"{one.leader_epoch:,}",
        ]
        for one in rebuilt.partitions
        if one.pieces or one.log_start
    ]
    if rows:
        labels = ("stream", "partition", "from", "to", "pieces", "by objects", "begins", "epoch")
        print_table(console, labels, rows, numbers=labels[2:])
    _lines(console, "missing", list(rebuilt.missing), "yellow")
    for one in rebuilt.partitions:
        _findings(console, one)
    if not rebuilt.missing:
        console.print("nothing was missing: the new log comes to what the old one does")
    console.print(f"{prefix} begins with this; the old log refuses whoever opens it")


def _findings(console: Console, one: RebuiltPartition) -> None:
    where = f"{one.stream}, partition {one.partition}: "
    gaps = [f"{where}LSN {first:,} to {last:,} are in no segment" for first, last in one.gaps]
    _lines(console, "✗", gaps, "red")
    _lines(console, "✗", [f"{where}left out: {what}" for what in one.unreadable], "red")
    _lines(console, "left out", [f"{where}not its own: {key}" for key in one.foreign], "dim")
    if one.deletion_stopped:
        what = "it was being deleted, which may have ended: delete it again, or keep it"
        _lines(console, "✗", [where + what], "yellow")


def _lines(console: Console, mark: str, lines: list[str], style: str) -> None:
    for line in lines[:_SHOWN]:
        console.print(Text.assemble((f"{mark} ", style), line), soft_wrap=True)
    if len(lines) > _SHOWN:
        console.print(f"{mark} … and {len(lines) - _SHOWN:,} more, which --json shows")
