"""CSV as columns: cells are read as text, and become what their column is if all of them can.

The stream says what its columns are. Of a column that it does not have yet, the first block decides
the type, as the stream will record it: a number, a truth value, a date or a time where every cell
is one and comes back the same, else text. So `00007` and a number of more digits than a double has
stay text.

Always holds: a cell arrives as it is or is refused, with its row, and the rows before it are sent.
An empty cell is null, and one in quotes (`""`) is empty text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.records import OPERATION, PLACES, RESERVED, from_arrow
from headwater.cli.json_columns import are_exact
from headwater.cli.stream_columns import StreamColumns, first_refused
from headwater.core.errors import Refused

_COLUMNS_MAX: Final = 10_000
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

    def __init__(self, stream: StreamColumns, *, delimiter: str) -> None:
        self._stream = stream
        self._types = stream.types
        """Of the stream's columns, and of those that earlier rows brought."""
        self._empty: set[str] = set()
        self._delimiter = delimiter

    @property
    def left_out(self) -> str:
        """What to say of columns that were empty throughout; nothing if there are none."""
        names = sorted(self._empty - self._types.keys())
        if not names:
            return ""
        return (
            f"{', '.join(map(repr, names))}: empty throughout, which has no type, so no such "
            f"column was sent. To have it there as null, declare a schema with it: "
            f"{self._stream.alter}"
        )

    def read(self, name: str, source: Any, block_bytes: int) -> Iterator[pa.RecordBatch]:
        """The rows of one file, which begins with a line of names."""
        from pyarrow import csv

        # Read as text, under names that are known before the file is: types are decided here.
        kinds = {f"f{number}": pa.string() for number in range(_COLUMNS_MAX)}
        names: list[str] | None = None
        row = 1
        with csv.open_csv(
            source,
            read_options=csv.ReadOptions(block_size=block_bytes, autogenerate_column_names=True),
            parse_options=csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                column_types=kinds,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        ) as reader:
            for batch in reader:
                cells = batch
                if names is None:
                    if not batch.num_rows:
                        continue
                    names = [column[0].as_py() or "" for column in batch.columns]
                    _check_names(name, names)
                    cells = batch.slice(1)
                good, error = self._taken(name, cells.rename_columns(names), row)
                if good is not None:
                    yield good
                if error is not None:
                    raise error
                row += cells.num_rows

    def _taken(
        self, name: str, cells: pa.RecordBatch, row: int
    ) -> tuple[pa.RecordBatch | None, Refused | None]:
        """The rows up to the first that the stream does not take, once it has their columns."""
        self._types |= self._stream.types
        made, error = self._checked(name, cells, row)
        if made is not None and self._types != self._stream.types:
            try:
                self._stream.record(made)
            except Refused:
                # Another producer decided meanwhile: again, so that the row can be named.
                self._types |= self._stream.types
                made, error = self._checked(name, cells, row)
        return made, error

    def _checked(
        self, name: str, cells: pa.RecordBatch, row: int
    ) -> tuple[pa.RecordBatch | None, Refused | None]:
        made, error = self._converted(name, cells, row)
        if made is None or self._error_of(made) is None:
            return made, error
        count, wrong = first_refused(
            made.num_rows, lambda start, end: self._error_of(made.slice(start, end - start))
        )
        refused = Refused(
            f"{name}, row {row + count:,}: {wrong}. It was not sent, nor was what follows"
        )
        return (made.slice(0, count) if count else None), refused

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
            is_open = not (self._stream.is_declared or column in RESERVED or column in PLACES)
            fits = _fits(texts.slice(0, rows), kind, is_guessed=is_open)
            if fits < rows and is_open and (wide := _widest(kind)) != kind:
                kind = self._types[column] = wide
                fits = _fits(texts.slice(0, rows), kind, is_guessed=True)
            if fits < rows:
                declare = f". Earlier rows decided that: {self._stream.alter} decides otherwise"
                error = Refused(
                    f"{name}, row {row + fits:,}, column {column!r}: {texts[fits].as_py()!r} is no "
                    f"{kind}{declare if is_open else ''}. It was not sent, nor was "
                    "what follows"
                )
                rows = fits
            columns[column] = (texts, kind)
        if rows and not columns:
            raise Refused(f"{name}, row {row:,}: nothing but empty cells is no row")
        made = {
            column: _cast(texts.slice(0, rows), kind) for column, (texts, kind) in columns.items()
        }
        return (pa.record_batch(made) if rows else None), error

    def _kind(self, column: str, texts: pa.Array) -> pa.DataType | None:
        if column == OPERATION or column in PLACES:
            return _guess(texts)
        known = RESERVED.get(column) or self._types.get(column)
        if known is None and (known := _guess(texts)) is not None:
            self._types[column] = known
        return known


def _check_names(name: str, names: list[str]) -> None:
    twice = [one for number, one in enumerate(names) if one in names[:number]]
    if twice:
        raise Refused(f"{name} names the column {twice[0]!r} twice")


def _guess(texts: pa.Array) -> pa.DataType | None:
    """What all the cells of a column are; None if all of them are empty."""
    known = texts.drop_null()
    if not len(known):
        return None
    for pattern, kind in _GUESSES:
        matches = pc.all(pc.match_substring_regex(known, pattern)).as_py()
        if matches and _fits(known, kind, is_guessed=True) == len(known):
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
    low, high = 0, len(texts)
    while high - low > 1:
        middle = (low + high) // 2
        if _do_fit(texts.slice(low, middle - low), kind, is_guessed=is_guessed):
            low = middle
        else:
            high = middle
    return low


def _do_fit(texts: pa.Array, kind: pa.DataType, *, is_guessed: bool) -> bool:
    if pa.types.is_string(kind):
        return True
    if is_guessed and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        # Arrow takes 00007 for 7, which is what a declared number means and a guessed one may not.
        pattern = _WHOLE if pa.types.is_integer(kind) else _NUMBER
        if pc.any(pc.invert(pc.match_substring_regex(texts, pattern))).as_py():
            return False
    try:
        found = _cast(texts, kind)
    except pa.ArrowException:
        return False
    if not pa.types.is_floating(kind):
        return True
    if is_guessed and kind == pa.float32() and found.cast(pa.float64()) != texts.cast(pa.float64()):
        return False
    if pc.any(pc.invert(pc.is_finite(found))).as_py():
        return False
    rounded = texts.filter(pc.match_substring_regex(texts, _ROUNDED))
    return are_exact(rounded.cast(pa.binary()).to_pylist())


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), kind)
    if kind == pa.float32():
        return texts.cast(pa.float64()).cast(kind)
    return texts.cast(kind)
