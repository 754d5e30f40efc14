"""What is inspected, and the report of it: facts, tables and problems, for people and machines.

The bytes come from a file, an object of a store, or standard input. Hexadecimal digits on standard
input are read as hexadecimal text: no object of the buffer consists of such digits alone.
"""

from __future__ import annotations

import contextlib
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headwater.buffer.queue.v1 import batch_format, manifest_format
from headwater.cli.advice import advice_for, command
from headwater.cli.options import open_with_options
from headwater.cli.render import bytes_words, cut_text, json_value, print_table, time_words, visible
from headwater.cli.terminal import check_input, run_loop
from headwater.core.errors import (
    BadUrl,
    Corrupt,
    Denied,
    HeadwaterError,
    LimitExceeded,
    NotFound,
    Refused,
)
from headwater.core.limits import GIB
from headwater.tier.event_codec import decode_event
from headwater.tier.segments.seal import PARQUET_MAGIC, is_sealed

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


STANDARD_INPUT: Final = "-"
READ_MAX_BYTES: Final = 1 * GIB
"""More than any object of the buffer has."""
_HEX: Final = re.compile(rb"[0-9A-Fa-f]+")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class InspectedObject(NamedTuple):
    """The bytes of an object, and what it is called, where that is known."""

    name: str
    data: bytes

    @property
    def key(self) -> str:
        """The last part of the name: what the object itself says it is called."""
        return self.name.rpartition("/")[2]


def read_source(place: str, options: list[str]) -> InspectedObject:
    """Read an object; what cannot be read at all is `NotFound` or `Refused`."""
    if place == STANDARD_INPUT:
        return InspectedObject("", _from_standard_input())
    if _SCHEME.match(place) and not place.startswith("file://"):
        return _from_store(place, options)
    path = unquote(urlsplit(place).path) if place.startswith("file://") else place
    return InspectedObject(path, _from_file(Path(path)))


def split_key(url: str) -> tuple[str, str]:
    """The address of a store and a key in it, from the address of an object."""
    parts = urlsplit(url)
    root, _, key = parts.path.rpartition("/")
    if not key:
        raise BadUrl(f"{url} is the address of a store or a folder: name an object in it")
    return urlunsplit(parts._replace(path=root)), key


def _from_store(url: str, options: list[str]) -> InspectedObject:
    root, key = split_key(url)
    store = open_with_options(root, options)

    async def read() -> bytes:
        async with store:
            try:
                meta = await store.head(key)
                _check_size(meta.size_bytes)
                return bytes((await store.get(key)).data)
            except NotFound:
                raise NotFound(f"{url} does not exist") from None

    return InspectedObject(urlsplit(url).path, run_loop(read()))


def _from_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(READ_MAX_BYTES + 1)
    except FileNotFoundError:
        raise Refused(f"there is no file {path}") from None
    except IsADirectoryError:
        raise Refused(f"{path} is a directory: name a file in it") from None
    except PermissionError:
        raise Denied(f"{path} may not be read") from None
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
    _check_size(len(data))
    return data


def _from_standard_input() -> bytes:
    if sys.stdin.isatty():
        raise Refused(
            "nothing to look at: name a file or the address of an object, or send its bytes, or "
            "their hexadecimal digits, to standard input"
        )
    check_input()
    data = sys.stdin.buffer.read(READ_MAX_BYTES + 1)
    _check_size(len(data))
    if not data:
        raise Refused("nothing came through standard input: look at what was to send it")
    digits = b"".join(data.split()).removeprefix(b"0x")
    if not digits or not _HEX.fullmatch(digits):
        return data
    if len(digits) % 2:
        raise Refused(f"{len(digits):,} hexadecimal digits are not whole bytes: one is missing")
    return bytes.fromhex(digits.decode("ascii"))


def _check_size(size_bytes: int) -> None:
    if size_bytes > READ_MAX_BYTES:
        raise LimitExceeded(
            f"{size_bytes:,} bytes or more: no object of the buffer is larger than "
            f"{READ_MAX_BYTES:,}"
        )


class ObjectFormat(NamedTuple):
    """What an object is, and which word after `inspect` shows it, if any does."""

    what: str
    word: str = ""


_BEGINNINGS: Final[dict[bytes, ObjectFormat]] = {
    b"HWB1": ObjectFormat("a native batch", "batch"),
    b"HWC": ObjectFormat("a chunk of a native queue", "queue"),
    b"HWA1": ObjectFormat("a segment of acknowledged entries of a published v1 queue", "queue"),
    b'{"register":': ObjectFormat("a register", "queue"),
    b'{"dead_letter":': ObjectFormat("a dead letter, which is JSON and says itself what it tells"),
    b"RDLW": ObjectFormat("a segment of a log", "wal"),
    b"HWE1": ObjectFormat("an event of the tier's log", "event"),
    b"HWT1": ObjectFormat("a snapshot of the tier's events", "event"),
    b"HWX1": ObjectFormat("the index of a segment of a log, which is made again when it is gone"),
    b"PAR1": ObjectFormat("a Parquet file"),
    b"ARROW1": ObjectFormat("an Arrow file"),
}


def recognise(data: bytes) -> ObjectFormat | None:
    """What these bytes look like; None if that cannot be told."""
    if data.startswith(PARQUET_MAGIC) and is_sealed(data):
        return ObjectFormat("a segment of the tier", "segment")
    for beginning, kind in _BEGINNINGS.items():
        if data.startswith(beginning):
            return kind
    with contextlib.suppress(HeadwaterError):
        manifest_format.decode_manifest(data)
        return ObjectFormat("a published v1 manifest", "manifest")
    with contextlib.suppress(HeadwaterError):
        batch_format.decode_batch(data)
        return ObjectFormat("a published v1 batch", "batch")
    with contextlib.suppress(HeadwaterError):
        decode_event(data)
        return ObjectFormat("a metadata event", "event")
    return None


def empty_object(asked: str) -> Problem:
    """That there are no bytes: no object of the buffer is written so."""
    part = {"queue": "part of a queue", "wal": "segment of a log", "event": "metadata event"}.get(
        asked, asked
    )
    return Problem(
        "length",
        f"it has no bytes: no {part} is written so, so it was cut off, or something else made it",
        None,
        advice_for(Corrupt("")),
        "Corrupt",
    )


def wrong_kind(data: bytes, asked: str) -> Problem | None:
    """That these bytes are something else than was asked for, if they are."""
    kind = recognise(data)
    if kind is None or kind.word == asked:
        return None
    advice = f"Look at it with: {command()} inspect {kind.word} …" if kind.word else None
    message = f"this is no part of a {asked}: it looks like {kind.what}"
    if asked == "wal":
        message = f"this is no segment of a log: it looks like {kind.what}"
    elif asked != "queue":
        message = f"this is no {asked}: it looks like {kind.what}"
    return Problem("kind", message, 0, advice, "Corrupt")
