"""CSV as columns: cells are read as text, and converted if every cell of the column allows it.

The stream's columns decide the types. For a column that the stream does not have yet, the first
block decides: a number, a boolean, a date or a time if every cell is one and reads back the same,
else text. So `00007`, and a number with more digits than a double has, stay text, while `0.10` is
the number 0.1.

Always holds: a cell arrives as it is, or is refused with its row, and the rows before it are sent.
Refused are also rows with more or fewer cells than there are names, and unclosed quotes. An empty
cell is null, and one in quotes (`""`) is empty text.
"""

from __future__ import annotations

import csv as one_row
import io
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.records import OPERATION, POSITION_COLUMNS, RESERVED, from_arrow
from headwater.cli.json_lines import are_exact
from headwater.cli.produce_input import TargetColumns, count_good, first_refused
from headwater.core.errors import Refused

_COLUMNS_MAX: Final = 10_000
_END: Final = b"\nend of input"
"""Begins a row of more cells than any has. It follows the input, and is text of a quote left open.

Only the parser knows whether one is: counting would take a quote within a cell for one that opens.
"""
_SHOWN_CHARACTERS: Final = 80
_NOT_SENT: Final = "It was not sent, nor was what follows"
_WHOLE: Final = r"^-?(0|[1-9][0-9]*)$"
_NUMBER: Final = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$"
_ROUNDED: Final = r"^.{16,}$|[eE]"
"""Numbers of which a double may not hold every digit."""
_TIME: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
_GUESSES: Final = (
    (_WHOLE, pa.int64()),
    (_NUMBER, pa.float64()),
    (r"^(true|false|True|False|TRUE|FALSE)$", pa.bool_()),
    (r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", pa.date32()),
    (_TIME + "$", pa.timestamp("us")),
    (_TIME + "(Z|[-+][0-9]{2}:?[0-9]{2})$", pa.timestamp("us", "UTC")),
)


class CsvColumns:
    """Turns the cells of CSV files into columns of the same types throughout."""

    def __init__(self, stream: TargetColumns, *, delimiter: str) -> None:
        self._stream = stream
        self._types = stream.types
        """Of the stream's columns, and of those that earlier rows brought."""
        self._empty: set[str] = set()
        self._delimiter = delimiter

    @property
    def left_out(self) -> str:
        """What to say of columns that were empty throughout; nothing if there are none."""
        return self._stream.left_out(self._empty - self._types.keys(), "empty")

    def read(self, name: str, source: Any, block_bytes: int) -> Iterator[pa.RecordBatch]:
        """The rows of one file, which begins with a line of names."""
        from pyarrow import csv

        # Read as bytes, under names that are known before the file is: types are decided here.
        kinds = {f"f{number}": pa.binary() for number in range(_COLUMNS_MAX)}
        names: list[str] | None = None
        row = 1
        parsed = _CsvInput(name, source, self._delimiter)
        reading = csv.ReadOptions(
            # Threads would leave rows without a number, and only convert, which is done here.
            use_threads=False,
            block_size=block_bytes + len(parsed.end),
            autogenerate_column_names=True,
        )
        parsing = csv.ParseOptions(
            delimiter=self._delimiter,
            newlines_in_values=True,
            invalid_row_handler=parsed.take_unequal,
        )
        converting = csv.ConvertOptions(
            column_types=kinds,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        try:
            with csv.open_csv(parsed, reading, parsing, converting) as reader:
                for batch in reader:
                    cells = batch
                    if names is None:
                        if not batch.num_rows:
                            continue
                        names = parsed.names(batch)
                        cells = batch.slice(1)
                    texts, wrong = parsed.whole(cells.rename_columns(names), row)
                    good, error = self._taken(name, texts, row)
                    if good is not None:
                        yield good
                    if error is not None:
                        raise error
                    if wrong is not None:
                        raise wrong
                    row += cells.num_rows
        except pa.ArrowInvalid as error:
            if names is None and "infer number of columns" in str(error):
                raise Refused(
                    f"{name} has no line of names, or a quote opens in it and is not closed"
                ) from error
            if "straddling" not in str(error):
                raise
            raise Refused(
                f"{name}, row {row:,}: a quote opens in it and is not closed, or it has more than "
                f"{block_bytes:,} bytes. {_NOT_SENT}"
            ) from error

    def _taken(
        self, name: str, cells: pa.RecordBatch, row: int
    ) -> tuple[pa.RecordBatch | None, Refused | None]:
        """The rows up to the first that the stream does not take, once it has their columns."""
        self._types |= self._stream.types
        converted, error = self._checked(name, cells, row)
        if converted is not None and self._types != self._stream.types:
            try:
                self._stream.record(converted)
            except Refused:
                # Another producer decided meanwhile: again, so that the row can be named.
                self._types |= self._stream.types
                converted, error = self._checked(name, cells, row)
        return converted, error

    def _checked(
        self, name: str, cells: pa.RecordBatch, row: int
    ) -> tuple[pa.RecordBatch | None, Refused | None]:
        converted, error = self._converted(name, cells, row)
        if converted is None or self._error_of(converted) is None:
            return converted, error
        count, wrong = first_refused(
            converted.num_rows,
            lambda start, end: self._error_of(converted.slice(start, end - start)),
        )
        refused = Refused(f"{name}, row {row + count:,}: {wrong}. {_NOT_SENT}")
        return (converted.slice(0, count) if count else None), refused

    def _error_of(self, rows: pa.RecordBatch) -> Refused | None:
        """Why the stream would not take these rows; trying them records nothing."""
        try:
            for batch in from_arrow(rows):
                self._stream.check(batch)
        except Refused as error:
            return error
        return None

    def _converted(
        self, name: str, cells: pa.RecordBatch, row: int
    ) -> tuple[pa.RecordBatch | None, Refused | None]:
        """The rows up to the first that does not fit, and what is wrong with that one."""
        columns: dict[str, tuple[pa.Array, pa.DataType]] = {}
        rows, error = cells.num_rows, None
        for column, texts in zip(cells.schema.names, cells.columns, strict=True):
            kind = self._kind(column, texts)
            if kind is None:
                self._empty.add(column)
                continue
            is_open = not (
                self._stream.is_declared or column in RESERVED or column in POSITION_COLUMNS
            )
            fits = _fits(texts.slice(0, rows), kind, is_guessed=is_open)
            if fits < rows and is_open and (wide := _widest(kind)) != kind:
                kind = self._types[column] = wide
                fits = _fits(texts.slice(0, rows), kind, is_guessed=True)
            if fits < rows:
                declare = f". Earlier rows decided that: {self._stream.alter} decides otherwise"
                error = Refused(
                    f"{name}, row {row + fits:,}, column {column!r}: {texts[fits].as_py()!r} is no "
                    f"{kind}{declare if is_open else ''}. {_NOT_SENT}"
                )
                rows = fits
            columns[column] = (texts, kind)
        if rows and not columns:
            raise Refused(f"{name}, row {row:,}: a row needs a cell that is not empty")
        arrays = {
            column: _cast(texts.slice(0, rows), kind) for column, (texts, kind) in columns.items()
        }
        return (pa.record_batch(arrays) if rows else None), error

    def _kind(self, column: str, texts: pa.Array) -> pa.DataType | None:
        if column == OPERATION or column in POSITION_COLUMNS:
            return _guess(texts)
        kind = RESERVED.get(column) or self._types.get(column)
        if kind is None and (kind := _guess(texts)) is not None:
            self._types[column] = kind
        return kind


class _UnequalRow(NamedTuple):
    """A row of more or fewer cells than there are names."""

    row: int
    expected: int
    cells: int
    text: str


class _CsvInput:
    """An input for Arrow's parser with a row after its end, and what the parser says of its rows.

    Reading from it and taking rows happen on a thread of Arrow's, ahead of the batches.
    """

    closed = False

    def __init__(self, name: str, source: Any, delimiter: str) -> None:
        self._name = name
        self._source = source
        self._delimiter = delimiter
        self.end = _END + delimiter.encode() * _COLUMNS_MAX
        """Follows the input."""
        self._line_ends = 0
        self._is_begun = self._is_ended = False
        self._unequal: _UnequalRow | None = None

    def readable(self) -> bool:
        """It can be read, and only that."""
        return True

    def close(self) -> None:
        """The source belongs to the caller."""

    def read(self, size: int) -> bytes:
        """A block, and with the last one the row that ends the input."""
        if self._is_ended:
            return b""
        wanted_bytes = size - len(self.end)
        block: bytes = self._source.read(wanted_bytes)
        while len(block) < wanted_bytes and not self._is_ended:
            more = self._source.read(wanted_bytes - len(block))
            self._is_ended = not more
            block += more
        self._line_ends += block.count(b"\n")
        self._is_begun = self._is_begun or bool(block)
        return block + self.end if self._is_ended and self._is_begun else block

    def take_unequal(self, row: Any) -> str:
        """Keep the first row that is wrong; the batch with the rows before it is still made."""
        text = row.text
        if self._unequal is None and not text.startswith(self.end[1:].decode()):
            self._unequal = _UnequalRow(
                row.number - 1, row.expected_columns, row.actual_columns, text
            )
        return "skip"

    def names(self, batch: pa.RecordBatch) -> list[str]:
        """The first line."""
        if batch.num_columns > _COLUMNS_MAX:
            raise Refused(f"{self._name} has more than {_COLUMNS_MAX:,} columns")
        try:
            names = [(column[0].as_py() or b"").decode() for column in batch.columns]
        except UnicodeDecodeError as error:
            raise Refused(f"{self._name}, line 1 is not UTF-8: {error}") from error
        twice = [one for number, one in enumerate(names) if one in names[:number]]
        if twice:
            raise Refused(f"{self._name} names the column {twice[0]!r} twice")
        return names

    def whole(self, cells: pa.RecordBatch, row: int) -> tuple[pa.RecordBatch, Refused | None]:
        """The rows of a batch as text, up to the first that is wrong, and what is wrong with it."""
        error: Refused | None = None
        if (wrong := self._unequal) is not None and wrong.row <= row + cells.num_rows:
            cells, error = cells.slice(0, wrong.row - row), self._error_of(wrong)
        if cells.num_rows and error is None:
            try:
                self._check_closed(cells.slice(cells.num_rows - 1), row + cells.num_rows - 1)
            except Refused as found:
                cells, error = cells.slice(0, cells.num_rows - 1), found
        texts: dict[str, pa.Array] = {}
        rows = cells.num_rows
        for name, column in zip(cells.schema.names, cells.columns, strict=True):
            try:
                texts[name] = column.cast(pa.string())
            except pa.ArrowInvalid:
                fits = _fits(column, pa.string(), is_guessed=False)
                texts[name] = column.slice(0, fits).cast(pa.string())
                if fits < rows:
                    rows = fits
                    error = self._refused(row + rows, f"column {name!r} is not UTF-8")
        return pa.record_batch({name: one.slice(0, rows) for name, one in texts.items()}), error

    def _error_of(self, wrong: _UnequalRow) -> Refused:
        if wrong.text.endswith(self.end.decode()):
            one_row.field_size_limit(len(wrong.text))
            rows = one_row.reader(io.StringIO(wrong.text, newline=""), delimiter=self._delimiter)
            return self._not_closed(wrong.row, next(rows)[-1].encode())
        shown = wrong.text[:_SHOWN_CHARACTERS]
        return self._refused(
            wrong.row,
            f"the line of names has {wrong.expected:,} cells, and this one {wrong.cells:,}: "
            f"{shown!r}{'' if shown == wrong.text else ' …'}",
        )

    def _check_closed(self, last: pa.RecordBatch, row: int) -> None:
        """Refuse a row whose last cell has what follows the input."""
        cell = last.columns[-1][0].as_py()
        if cell is not None and cell.endswith(self.end):
            raise self._not_closed(row, cell)

    def _not_closed(self, row: int, cell: bytes) -> Refused:
        line = self._line_ends + 1 - cell[: -len(self.end)].count(b"\n")
        return self._refused(row, f"a quote opens in line {line:,} and is not closed")

    def _refused(self, row: int, why: str) -> Refused:
        return Refused(f"{self._name}, row {row:,}: {why}. {_NOT_SENT}")


def _guess(texts: pa.Array) -> pa.DataType | None:
    """What all the cells of a column are; None if all of them are empty."""
    cells = texts.drop_null()
    if not len(cells):
        return None
    for pattern, kind in _GUESSES:
        matches = pc.all(pc.match_substring_regex(cells, pattern)).as_py()
        if matches and _fits(cells, kind, is_guessed=True) == len(cells):
            return kind
    return pa.string()


def _widest(kind: pa.DataType) -> pa.DataType:
    """The number that holds most, among those that hold all of this type."""
    if pa.types.is_signed_integer(kind):
        return pa.int64()
    return pa.float64() if pa.types.is_floating(kind) else kind


def _fits(texts: pa.Array, kind: pa.DataType, *, is_guessed: bool) -> int:
    """How many cells, from the first on, become values of the type as they are."""
    if _do_fit(texts, kind, is_guessed=is_guessed):
        return len(texts)
    return count_good(
        len(texts),
        lambda low, end: _do_fit(texts.slice(low, end - low), kind, is_guessed=is_guessed),
    )


def _do_fit(texts: pa.Array, kind: pa.DataType, *, is_guessed: bool) -> bool:
    if texts.type == kind:
        return True
    if is_guessed and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        # Arrow takes 00007 for 7, which is what a declared number means and a guessed one may not.
        pattern = _WHOLE if pa.types.is_integer(kind) else _NUMBER
        if pc.any(pc.invert(pc.match_substring_regex(texts, pattern))).as_py():
            return False
    try:
        values = _cast(texts, kind)
    except pa.ArrowException:
        return False
    if not pa.types.is_floating(kind):
        return True
    if (
        is_guessed
        and kind == pa.float32()
        and values.cast(pa.float64()) != texts.cast(pa.float64())
    ):
        return False
    if pc.any(pc.invert(pc.is_finite(values))).as_py():
        return False
    rounded = texts.filter(pc.match_substring_regex(texts, _ROUNDED))
    return are_exact(rounded.cast(pa.binary()).to_pylist())


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), kind)
    if kind == pa.float32():
        return texts.cast(pa.float64()).cast(kind)
    return texts.cast(kind)
