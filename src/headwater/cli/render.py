"""Prints a report as text or JSON, and the progress of long work.

On a terminal, text has colours and fits the width. In a pipe, a row of a table stays on one line,
unless COLUMNS gives a width.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, Final, Self

import typer

from headwater.cli.command_line import EXIT_NO, output_problem
from headwater.cli.report import (
    Note,
    Problem,
    Report,
    ReportTable,
    Size,
    bytes_words,
    cut_text,
    size_words,
    time_words,
    visible,
)
from headwater.core import runtime

MARKS: Final = {"✓": "green", "✗": "red", "–": "yellow", "?": "yellow", "note:": "dim"}
GAP: Final = "  "
INDENT: Final = "  "
CELL_MAX: Final = 48
TEXT_MAX: Final = 400
_UNITS: Final = ("_ms", "_us", "_bytes")
_STYLE: Final = re.compile(r"\x1b\[\d*m")


def show(
    report: Report, *, as_json: bool = False, indent: int | None = 2, is_error: bool = False
) -> int:
    """Print a report; how many rows of a terminal it takes."""
    width = _width()
    if as_json:
        lines = [json.dumps(report.to_json(), indent=indent, ensure_ascii=False)]
    else:
        lines = list(report_lines(report, width))
    for line in lines:
        echo(line, is_error=is_error)
    widths = [cell_width(_STYLE.sub("", line)) for line in lines]
    return sum(1 if not one or width is None else -(-one // width) for one in widths)


def conclude(report: Report, *, good: bool, as_json: bool = False) -> None:
    """Print what a command looked at; the exit status says whether that is good."""
    show(report, as_json=as_json)
    if not good:
        raise typer.Exit(EXIT_NO)


def conclude_change(report: Report, *, good: bool = True, as_json: bool = False) -> None:
    """Print what a command changed.

    If the report cannot be written, standard error says so and the exit status stays that of the
    work: a user who reads that it failed would do it again.
    """
    try:
        show(report, as_json=as_json)
        sys.stdout.flush()
    except OSError as error:
        why = output_problem(error)
        typer.echo(f"note: the report of what was done cannot be written: {why}", err=True)
        # Python would complain of what is left to be written once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not good:
        raise typer.Exit(EXIT_NO)


def echo(line: str, *, is_error: bool = False, newline: bool = True) -> None:
    """Print a line, in colour only on a terminal that wants it."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    typer.echo(line, err=is_error, nl=newline, color=False if plain else None)


def report_lines(report: Report, width: int | None) -> Iterator[str]:
    """A report as people read it; its tables and facts fit the width, if there is one."""
    if report.title:
        yield note_line(report.heading)
    for problem in report.problems:
        yield from _problem_lines(problem)
    rows = [(_label(name), _words(name, value, TEXT_MAX)) for name, value in report.facts.items()]
    yield from _fact_lines(rows, width)
    is_below = bool(report.facts)
    for table in report.tables:
        if table.rows:
            if is_below or table.name:
                yield ""
            yield from _table_lines(table, width)
            is_below = True
    for part in report.parts:
        yield from report_lines(part, width)
    yield from map(note_line, report.notes)


def note_line(note: Note) -> str:
    """A line with its mark, in their colours."""
    text = _styled(note.text, note.style)
    return f"{_styled(note.mark, MARKS[note.mark])} {text}" if note.mark else text


def _problem_lines(problem: Problem) -> Iterator[str]:
    where = "" if problem.offset is None else f", at offset {problem.offset:,}"
    yield _styled(f"failed check: {problem.check}{where}", "red")
    yield f"{INDENT}{problem.message}"
    if problem.advice:
        yield INDENT + _styled(problem.advice, "yellow")


def _fact_lines(rows: Sequence[tuple[str, str]], width: int | None) -> Iterator[str]:
    names = max((cell_width(name) for name, _ in rows), default=0)
    for name, words in rows:
        before = " " * (names - cell_width(name))
        left = INDENT + name + before + GAP
        room = None if width is None else max(20, width - cell_width(left))
        first, *more = (room and textwrap.wrap(words, room)) or [words]
        yield (INDENT + _styled(name, "dim") + before + GAP + first).rstrip()
        for line in more:
            yield " " * cell_width(left) + line


def _table_lines(table: ReportTable, width: int | None) -> Iterator[str]:
    if table.name:
        more = "" if table.total is None else f", {len(table.rows):,} of {table.total:,}"
        yield _styled(_label(table.name) + more, "bold")
    columns = list(table.rows[0])
    labels = columns if table.is_data else [_label(name) for name in columns]
    cells = [
        [_cell("" if table.is_data else name, value) for name, value in row.items()]
        for row in table.rows
    ]
    numbers = [_is_number(table, name) for name in columns]
    heads = [[Note(label, "dim") for label in labels]] if table.has_labels else []
    listed = [*heads, *cells]
    widths = [max(cell_width(row[at].text) for row in listed) for at in range(len(columns))]
    if width is None or sum(widths) + len(GAP) * (len(widths) - 1) <= width:
        for row in listed:
            padded = zip(row, widths, numbers, strict=True)
            yield GAP.join(_padded(*one) for one in padded).rstrip()
        return
    # Columns too narrow to read are worse than none.
    for row in cells:
        words = GAP.join(f"{label} {cell.text}" for label, cell in zip(labels, row, strict=True))
        yield from textwrap.wrap(words, width, initial_indent=INDENT, subsequent_indent=INDENT)


def _padded(cell: Note, width: int, is_number: bool) -> str:
    blanks = " " * (width - cell_width(cell.text))
    text = _styled(cell.text, cell.style)
    return blanks + text if is_number else text + blanks


def _cell(name: str, value: Any) -> Note:
    return value if isinstance(value, Note) else Note(_words(name, value, CELL_MAX))


def _is_number(table: ReportTable, name: str) -> bool:
    """Whether a column is aligned at the right: one of numbers that are no times."""
    if name in table.numbers:
        return True
    is_time = name.endswith(("_ms", "_us")) and not table.is_data
    types = {type(row[name]) for row in table.rows} - {type(None), Note}
    return bool(types) and types <= {int, float, Size} and not is_time


def _label(name: str) -> str:
    for unit in _UNITS:
        name = name.removesuffix(unit)
    return name.replace("_", " ").replace("lsn", "LSN")


def _words(name: str, value: Any, max_shown: int) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Size):
        return size_words(value)
    if isinstance(value, int):
        if name.endswith("_ms"):
            return time_words(value)
        if name.endswith("_us"):
            return time_words(value // 1000)
        return f"{value:,} B" if name.endswith("_bytes") else f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, bytes):
        return bytes_words(value, max_shown)
    return cut_text(visible(str(value)), TEXT_MAX)


def _styled(text: str, style: str) -> str:
    if not text or not style:
        return text
    if style in ("bold", "dim"):
        return typer.style(text, **{style: True})
    return typer.style(text, fg=style)


def cell_width(text: str) -> int:
    """How many cells of a terminal a text takes: two for a character of Chinese."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(one) in "WF" for one in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))


def _width() -> int | None:
    """The columns of the terminal; None where nothing limits a line."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal():
        return int(columns)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


class Progress:
    """How far long work is: a line on standard error that is drawn again; only on a terminal."""

    BAR_WIDTH: Final = 24
    FRAME_S: Final = 0.1

    def __init__(self, work: str = "opening", *, quiet: bool = False) -> None:
        self.is_shown = not quiet and sys.stderr.isatty()
        self.steps = 0
        """Calls so far, each of which is a step of the work."""
        self._line = work
        self._drawn_s = 0.0

    def __enter__(self) -> Self:
        self._draw(self._line)
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()
        self.is_shown = False

    def show(
        self, work: str, done: int | None = None, total: int | None = None, unit: str = ""
    ) -> None:
        """Replace the line: so much of the work is done; with a total, it has a bar.

        A `Size` is shown in the unit that fits, another number with its `unit`.
        """
        self.steps += 1
        if not self.is_shown or runtime.monotonic_s() - self._drawn_s < self.FRAME_S:
            return
        line = work
        if total:
            full = min(self.BAR_WIDTH, self.BAR_WIDTH * (done or 0) // total)
            bar = "━" * full + " " * (self.BAR_WIDTH - full)
            counts = f"{_words('', done or 0, 0)} of {_words('', total, 0)} {unit}"
            line = f"{work}{GAP}{bar}{GAP}{counts.rstrip()}"
        elif done is not None:
            line = f"{work}: {_words('', done, 0)} {unit}".rstrip()
        self._draw(line)

    def step(self, work: str, total: int, unit: str) -> None:
        """One more of so many is done."""
        self.show(work, self.steps + 1, total, unit)

    def say(self, note: Note, *, is_error: bool = True) -> None:
        """Print a line that stays, above the one that is drawn again."""
        self._clear()
        echo(note_line(note), is_error=is_error)
        self._draw(self._line)

    def _draw(self, line: str) -> None:
        self._line = line
        if self.is_shown:
            self._drawn_s = runtime.monotonic_s()
            width = shutil.get_terminal_size().columns
            sys.stderr.write(f"\r\x1b[K{cut_text(line, width - 1)}")
            sys.stderr.flush()

    def _clear(self) -> None:
        if self.is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
