"""What was found in an object: facts, tables and problems, the same for people and machines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headwater.cli.advice import advice_for
from headwater.cli.render import bytes_words, cut_text, json_value, print_table, time_words, visible
from headwater.core.errors import HeadwaterError

if TYPE_CHECKING:
    import pyarrow as pa

_OFFSET: Final = re.compile(r"\boffset ([0-9][0-9,]*)|\(byte ([0-9]+)\)")


def offset_in(message: str) -> int | None:
    """The offset that a message names."""
    found = _OFFSET.search(message)
    digits = found and (found[1] or found[2])
    return int(digits.replace(",", "")) if digits else None


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    check: str
    """Which check failed, in a word or two."""
    message: str
    offset: int | None = None
    """Where in the object, if that is known."""
    advice: str | None = None
    error: str = ""
    """The kind of error that a reader raises."""

    @classmethod
    def of(
        cls,
        error: HeadwaterError,
        check: str,
        *,
        offset: int | None = None,
        detail: str = "",
        advice: str | None = None,
    ) -> Problem:
        """From what a reader raised; the offset is taken from its message unless it is given."""
        message = str(error)
        if offset is None and " of the block" not in message:
            offset = offset_in(message)
        return cls(
            check=check,
            message=f"{message.removesuffix('.')}. {detail}" if detail else message,
            offset=offset,
            advice=advice or advice_for(error),
            error=type(error).__name__,
        )


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table. Names end in their unit, which says how values are shown."""

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    total: int | None = None
    """How many there are, where not all are shown."""


@dataclass(slots=True)
class InspectionReport:
    """What one object, or one partition, holds."""

    kind: str
    size_bytes: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    tables: list[ReportTable] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Everything, for machines."""
        found: dict[str, Any] = {"kind": self.kind, "good": self.is_good}
        if self.size_bytes is not None:
            found["size_bytes"] = self.size_bytes
        found |= {name: json_value(value) for name, value in self.facts.items()}
        for table in self.tables:
            found[table.name] = [
                {
                    column: json_value(value)
                    for column, value in zip(table.columns, row, strict=True)
                }
                for row in table.rows
            ]
            if table.total is not None:
                found[f"{table.name}_total"] = table.total
        found["notes"] = self.notes
        found["problems"] = [
            {
                "check": problem.check,
                "error": problem.error,
                "message": problem.message,
                "offset": problem.offset,
                "advice": problem.advice,
            }
            for problem in self.problems
        ]
        return found


CELL_MAX: Final = 48
TEXT_MAX: Final = 200
_RECORD_TABLE: Final = "first_records"


def show_report(console: Console, report: InspectionReport) -> None:
    """Print a report."""
    size = "" if report.size_bytes is None else f", {report.size_bytes:,} bytes"
    mark, verdict = (("✓ ", "green"), "good") if report.is_good else (("✗ ", "red"), "BAD")
    title = Text.assemble(mark, (report.kind, "bold"), size, ": ", (verdict, mark[1]))
    console.print(title, soft_wrap=True)
    for problem in report.problems:
        _show_problem(console, problem)
    if report.facts:
        console.print(_facts_table(report))
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


def _facts_table(report: InspectionReport) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in report.facts.items():
        table.add_row(f"  {_label(name)}", _value_text(name, value, TEXT_MAX))
    return table


def _show_rows(console: Console, rows: ReportTable) -> None:
    console.print()
    more = "" if rows.total is None else f", {len(rows.rows):,} of {rows.total:,}"
    console.print(Text(f"{_label(rows.name)}{more}", style="bold"))
    of_records = rows.name == _RECORD_TABLE
    labels = [name if of_records else _label(name) for name in rows.columns]
    cells = [
        [
            _value_text("" if of_records else name, value, CELL_MAX)
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


def _value_text(name: str, value: Any, max_shown: int) -> str:
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


def record_rows(
    records: pa.RecordBatch, shown: int, total: int, *, first_lsn: int | None = None
) -> list[ReportTable]:
    """The first records of so many, by their LSNs where those are known, or counted from 0.

    No table where there is nothing to show.
    """
    if not shown or not records.num_rows:
        return []
    from headwater.cli.read_output import python_values

    columns = ("record" if first_lsn is None else "_lsn", *records.schema.names)
    listed = [python_values(column) for column in records.slice(0, shown).columns]
    rows = [(number, *row) for number, row in enumerate(zip(*listed, strict=True), first_lsn or 0)]
    return [ReportTable("first_records", columns, rows, total if total > len(rows) else None)]
