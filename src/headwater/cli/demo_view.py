"""How the demo looks: a bar for each process while it runs, a table and a verdict at the end."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from headwater.cli.demo_count import Count


class DemoBars:
    """A bar for each producer and one for the consumer on a terminal; nothing in a pipe."""

    def __init__(self, console: Console, producers: list[str], total: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[doing]}", style="dim"),
            console=console,
            disable=not console.is_terminal,
        )
        each = total // len(producers)
        self._tasks = {
            name: self._progress.add_task(name, total=each, doing="accepted") for name in producers
        }
        self._consumer = self._progress.add_task("consumer", total=total, doing="delivered")

    def __enter__(self) -> DemoBars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, accepted: dict[str, int], delivered: int) -> None:
        """How far everybody is."""
        for name, records in accepted.items():
            self._progress.update(self._tasks[name], completed=records)
        self._progress.update(self._consumer, completed=delivered)


def show_counts(console: Console, counts: dict[str, Count], killed: set[str]) -> None:
    """The table, and the answer."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("")
    for column in ("accepted", "delivered", "lost", "doubled", "out of\norder"):
        table.add_column(column, justify="right")
    for name, row in counts.items():
        table.add_row(f"{name}*" if name in killed else name, *(f"{number:,}" for number in row))
    sums = [sum(column) for column in zip(*counts.values(), strict=True)]
    table.add_row("total", *(f"{number:,}" for number in sums), style="bold")
    console.print()
    console.print(table)
    exact = all(row.is_exact for row in counts.values())
    answer = "[bold green]yes[/bold green]" if exact else "[bold red]NO[/bold red]"
    console.print(f"\nevery accepted record delivered once, in order: {answer}")
    console.print("[dim]* killed half-way, as was the consumer[/dim]")


def show_next(console: Console, commands: list[str]) -> None:
    """What to try now."""
    console.print("\nnext:")
    for line in commands:
        console.print(f"  {line}", soft_wrap=True, markup=False)
