"""The `Report`: the one structure that every command shows, as text for people or as JSON.

Each object that the command line shows has a function or a method `describe…` that returns a
report; `render` prints it. Loaded with every command: nothing here imports Arrow.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from headwater.cli.advice import advice_for
from headwater.core.errors import HeadwaterError

_UNITS_MS: Final = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000))
_UNITS_BYTES: Final = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_OFFSET: Final = re.compile(r"\boffset ([0-9][0-9,]*)|\(byte ([0-9]+)\)")


def offset_in(message: str) -> int | None:
    """The offset that a message names."""
    match = _OFFSET.search(message)
    digits = match and (match[1] or match[2])
    return int(digits.replace(",", "")) if digits else None


class Note(NamedTuple):
    """A line of a report, or a cell that is shown as it is."""

    text: str
    style: str = ""
    mark: str = ""
    """✓, ✗ or –, in its own colour before the text."""


UNKNOWN: Final = Note("?")
NONE: Final = Note("-")


class Size(int):
    """Bytes, in the unit that fits: 1.5 KiB."""


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


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table: each row has the same names, which end in the unit that says how to show a value."""

    name: str
    """Its title; none is shown without one."""
    rows: Sequence[dict[str, Any]]
    total: int | None = None
    """How many rows there are, where not all are shown."""
    numbers: Collection[str] = ()
    """Columns at the right, besides those of numbers."""
    is_data: bool = False
    """Its columns are those of a stream: names and values are shown as they are."""
    has_labels: bool = True


@dataclass(slots=True)
class Report:
    """What a command shows of one object, or of what was done with it."""

    title: str = ""
    mark: str = ""
    problems: list[Problem] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    tables: list[ReportTable] = field(default_factory=list)
    parts: list[Report] = field(default_factory=list)
    """Of several partitions, for example."""
    notes: list[Note] = field(default_factory=list)
    record: Any = None
    """What JSON has in place of the facts: the object itself, with all of its fields."""

    @property
    def heading(self) -> Note:
        """The first line."""
        return Note(self.title, mark=self.mark)

    def say(self, text: str, style: str = "", mark: str = "") -> None:
        """Add a line at the end."""
        self.notes.append(Note(text, style, mark))

    def table(
        self,
        name: str,
        rows: Sequence[dict[str, Any]],
        count: int | None = None,
        *,
        numbers: Collection[str] = (),
        is_data: bool = False,
    ) -> None:
        """Add a table; `count` is how many rows there are, if these are only the first."""
        total = count if count is not None and count > len(rows) else None
        self.tables.append(ReportTable(name, rows, total, numbers, is_data))

    def remark(self, text: str) -> None:
        """Add something that is worth knowing."""
        self.say(text, "dim", "note:")

    def to_json(self) -> Any:
        """Everything, for programs."""
        if self.record is not None:
            import msgspec

            return msgspec.to_builtins(self.record)
        return {name: json_value(value) for name, value in self.facts.items()}


@dataclass(slots=True)
class InspectionReport(Report):
    """What one object, or one partition, holds, and whether it is as it was written."""

    size_bytes: int | None = None

    def fail(
        self,
        error: HeadwaterError,
        check: str,
        *,
        offset: int | None = None,
        detail: str = "",
        advice: str | None = None,
    ) -> None:
        """Add what a reader raised; the offset is taken from its message unless it is given."""
        message = str(error)
        if offset is None and " of the block" not in message:
            offset = offset_in(message)
        if detail:
            message = f"{message.removesuffix('.')}. {detail}"
        advice = advice or advice_for(error)
        self.problems.append(Problem(check, message, offset, advice, type(error).__name__))

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    @property
    def heading(self) -> Note:
        """What it is, and whether it is good."""
        size = "" if self.size_bytes is None else f", {self.size_bytes:,} bytes"
        verdict, mark = ("good", "✓") if self.is_good else ("BAD", "✗")
        return Note(f"{self.title}{size}: {verdict}", mark=mark)

    def to_json(self) -> dict[str, Any]:
        """Facts, tables and problems by their names."""
        shown: dict[str, Any] = {"kind": self.title, "good": self.is_good}
        if self.size_bytes is not None:
            shown["size_bytes"] = self.size_bytes
        shown |= {name: json_value(value) for name, value in self.facts.items()}
        for table in self.tables:
            shown[table.name] = [json_value(row) for row in table.rows]
            if table.total is not None:
                shown[f"{table.name}_total"] = table.total
        shown["notes"] = [note.text for note in self.notes]
        shown["problems"] = [asdict(problem) for problem in self.problems]
        return shown


SHOWN_MAX: Final = 60
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def bytes_words(data: bytes, max_shown: int = SHOWN_MAX) -> str:
    """Text in quotes where the bytes are text, else hexadecimal digits; cut where it is long."""
    text = text_of(data)
    if text is None:
        cut = data[: max_shown // 2]
        return f"0x{cut.hex()}" + ("…" if len(cut) < len(data) else "")
    return f'"{cut_text(visible(text), max_shown)}"'


def bytes_json(data: bytes) -> str | dict[str, str]:
    """Text where the bytes are UTF-8, else {"base64": …}: JSON has no bytes."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def text_of(data: bytes) -> str | None:
    """The bytes as text, if they are text that can be printed."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if all(c.isprintable() or c in "\t\r\n" for c in text) else None


def visible(text: str) -> str:
    """The text with everything that would move a cursor or colour a screen spelled out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cut_text(text: str, max_shown: int) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= max_shown else text[: max_shown - 1] + "…"


def time_words(time_ms: int) -> str:
    """A time in milliseconds since 1970 as a person reads it; as a number if it is no date."""
    try:
        time = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return f"{time_ms:,} ms since 1970"
    return f"{time:%Y-%m-%d %H:%M:%S}.{time.microsecond // 1000:03d} UTC"


def json_value(value: Any) -> Any:
    """A value as JSON has it: what it cannot hold becomes text."""
    if isinstance(value, bytes):
        return bytes_json(value)
    if isinstance(value, dict):
        return {str(name): json_value(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(one) for one in value]
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    return str(value)


def duration_words(ms: int) -> str:
    """A time span as one says it; below zero, without an end."""
    if ms < 0:
        return "forever"
    for unit, unit_ms in _UNITS_MS:
        if ms >= unit_ms and ms % unit_ms == 0:
            return f"{ms // unit_ms:,} {unit}{'' if ms == unit_ms else 's'}"
    return f"{ms:,} ms"


def size_words(size_bytes: int) -> str:
    """A size as one says it."""
    for unit, unit_bytes in _UNITS_BYTES:
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:,.1f}".removesuffix(".0") + f" {unit}"
    return f"{size_bytes:,} B"
