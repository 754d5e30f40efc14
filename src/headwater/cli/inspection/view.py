"""How a report looks: words and tables; the narrower the screen, the shorter the words."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headwater.cli.byte_text import bytes_words, cut_text, time_words, visible
from headwater.cli.inspection.report import Problem, Report, Rows
from headwater.cli.tables import print_table

CELL_MAX: Final = 48
TEXT_MAX: Final = 200
_RECORD_TABLE: Final = "first_records"


def show_report(console: Console, report: Report) -> None:
    """Print a report."""
    size = "" if report.size_bytes is None else f", {report.size_bytes:,} bytes"
    mark, verdict = (("✓ ", "green"), "good") if report.is_good else (("✗ ", "red"), "BAD")
    title = Text.assemble(mark, (report.kind, "bold"), size, ": ", (verdict, mark[1]))
    console.print(title, soft_wrap=True)
    for problem in report.problems:
        _show_problem(console, problem)
    if report.facts:
        console.print(_facts(report))
    for table in report.tables:
        if table.rows:
            _show_rows(console, table)
    for note in report.notes:
        console.print(Text(f"note: {note}", style="dim"), soft_wrap=not console.is_terminal)


def _show_problem(console: Console, problem: Problem) -> None:
    where = "" if problem.offset is None else f", at offset {problem.offset:,}"
    wrap = not console.is_terminal
    console.print(
        Text.assemble(("failed check: ", "red"), (f"{problem.check}{where}", "bold red")),
        soft_wrap=wrap,
    )
    console.print(Text(f"  {problem.message}"), soft_wrap=wrap)
    if problem.advice:
        console.print(Text(f"  {problem.advice}", style="yellow"), soft_wrap=wrap)


def _facts(report: Report) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in report.facts.items():
        table.add_row(f"  {_label(name)}", _words(name, value, TEXT_MAX))
    return table


def _show_rows(console: Console, rows: Rows) -> None:
    console.print()
    more = "" if rows.total is None else f", {len(rows.rows):,} of {rows.total:,}"
    console.print(Text(f"{_label(rows.name)}{more}", style="bold"))
    of_records = rows.name == _RECORD_TABLE
    labels = [name if of_records else _label(name) for name in rows.columns]
    cells = [
        [
            _words("" if of_records else name, value, CELL_MAX)
            for name, value in zip(rows.columns, row, strict=True)
        ]
        for row in rows.rows
    ]
    numbers = []
    for index, label in enumerate(labels):
        kinds = {type(row[index]) for row in rows.rows} - {type(None)}
        if kinds == {int} and not rows.columns[index].endswith(("_ms", "_us")):
            numbers.append(label)
    print_table(console, labels, cells, numbers=numbers)


def _label(name: str) -> str:
    for unit in ("_ms", "_us", "_bytes"):
        name = name.removesuffix(unit)
    return name.replace("_", " ").replace("lsn", "LSN")


def _words(name: str, value: Any, max_shown: int) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        if name.endswith("_ms"):
            return time_words(value)
        if name.endswith("_us"):
            return time_words(value // 1000)
        return f"{value:,} B" if name.endswith("_bytes") else f"{value:,}"
    if isinstance(value, bytes):
        return bytes_words(value, max_shown)
    return cut_text(visible(str(value)), TEXT_MAX)
