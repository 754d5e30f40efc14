"""How the demo looks: a bar for each process while it runs, tables and a verdict at the end."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from headwater.cli.demo.orders import Sale
from headwater.cli.demo.verdict import Verdict


class DemoBars:
    """A bar for each producer and one for the job on a terminal; nothing in a pipe."""

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
        self._job = self._progress.add_task("PySpark job", total=total, doing="in the table")

    def __enter__(self) -> DemoBars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, accepted: dict[str, int], stored: int) -> None:
        """How far everybody is."""
        for name, orders in accepted.items():
            self._progress.update(self._tasks[name], completed=orders)
        self._progress.update(self._job, completed=stored)


def show_verdict(console: Console, verdict: Verdict) -> None:
    """Counts and fingerprints, and the answer."""
    table = _table("", "orders", "fingerprint")
    meant = {
        "accepted": "what producers were told",
        "read": "what the stream holds",
        "stored": "what the Iceberg table holds",
    }
    for name, found in verdict.found.items():
        table.add_row(f"{name} [dim]({meant[name]})[/dim]", f"{found.rows:,}", str(found))
    console.print()
    console.print(table)
    answer = "[bold green]yes[/bold green]" if verdict.is_exact else "[bold red]NO[/bold red]"
    console.print(f"\nexactly once: {answer}")
    for problem in verdict.problems:
        console.print(f"  [red]{problem}[/red]", soft_wrap=True)


def show_sales(console: Console, sales: list[Sale], products: list[str]) -> None:
    """The windowed aggregate: a row for each half hour."""
    table = _table("half hour", *(f"{product} €" for product in products), "orders")
    for window in sorted({sale.window for sale in sales}):
        mine = {sale.product: sale for sale in sales if sale.window == window}
        euros = [f"{mine[one].euros:,.2f}" if one in mine else "" for one in products]
        table.add_row(window, *euros, f"{sum(sale.orders for sale in mine.values()):,}")
    console.print("\nsales, aggregated by the streaming job:")
    console.print(table)


def show_query(console: Console, engine: str, statement: str, rows: list[tuple[Any, ...]]) -> None:
    """The same table through another engine."""
    table = _table("product", "orders", "€")
    for product, orders, euros in rows:
        table.add_row(product, f"{orders:,}", f"{euros:,.2f}")
    console.print(f"\nthe table, read by {engine}: [dim]{statement}[/dim]", soft_wrap=True)
    console.print(table)


def show_next(console: Console, commands: list[str]) -> None:
    """What to try now."""
    console.print("\nnext:")
    for line in commands:
        console.print(f"  {line}", soft_wrap=True, markup=False)


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column(first)
    for column in numbers:
        table.add_column(column, justify="right")
    return table
