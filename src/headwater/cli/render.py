"""How commands print: the console, tables, and values as words or JSON."""

from __future__ import annotations

import base64
import os
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headwater.buffer.stream.config import UNLIMITED

# In a pipe a table row stays on one line, unless COLUMNS is set.
PIPE_WIDTH: Final = 400
_UNITS_MS: Final = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000))
_UNITS_BYTES: Final = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
PADDING: Final = 2


class CommandConsole(Console):
    """Tells of a closed pipe, where rich's own would end the program with a status that says no.

    In a pipe, lines end where their words end: columns are not filled up with blanks.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(highlight=False, emoji=False, quiet=quiet)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does, and in a pipe without blanks at the ends of lines."""
        if self.is_terminal or self.quiet:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write("\n".join(line.rstrip() for line in captured.get().split("\n")))
        self.file.flush()

    def on_broken_pipe(self) -> None:
        """Let the command decide its exit status."""
        raise  # noqa: PLE0704  called while the BrokenPipeError is handled


def new_console() -> Console:
    """A console on standard output."""
    console = CommandConsole()
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdecimal():
        console.width = PIPE_WIDTH
    return console


class StatusLine:
    """How far a command is: a line on standard error that is drawn again; only on a terminal."""

    def __init__(self, words: str = "opening") -> None:
        self.console = Console(stderr=True, highlight=False)
        self.is_shown = self.console.is_terminal
        self._status = self.console.status(words) if self.is_shown else None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, words: str) -> None:
        """Replace the line."""
        if self._status is not None:
            self._status.update(words)


def print_table(
    console: Console,
    labels: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    *,
    numbers: Collection[str] = (),
) -> None:
    """Print rows below their labels; the columns named in `numbers` stand to the right."""
    cells = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, PADDING, 0, 0))
    for label in labels:
        table.add_column(label, justify="right" if label in numbers else "left", no_wrap=True)
    for row in cells:
        table.add_row(*row)
    heads = [Text(label) for label in labels]
    widths = [max(cell.cell_len for cell in column) for column in zip(heads, *cells, strict=True)]
    if sum(widths) + PADDING * (len(widths) - 1) <= console.width:
        console.print(table)
        return
    # Columns too narrow to read are worse than none.
    for row in cells:
        line = Text()
        for label, cell in zip(labels, row, strict=True):
            line.append(f"{label} ", style="dim").append_text(cell).append("  ")
        console.print(Padding(line, (0, 0, 0, 2)))


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
    """A time span as one says it."""
    if ms == UNLIMITED:
        return "for ever"
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
