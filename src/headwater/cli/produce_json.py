"""Lines of JSON as rows of typed columns.

The stream's columns decide the types. For a column that the stream does not have yet, the first
value that is not null decides, and the stream records that type.

Arrow reads lines whose columns are known (`json_lines`); lines that it cannot read, or would
change, are decoded one by one, with an error that names the line.

Always holds: a value is sent as it is or refused, and everything before the refused line is sent.
(Given a type, Arrow alone turns 1.5 into 1, and drops unknown fields of an object.)
"""

from __future__ import annotations

import codecs
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from headwater.buffer.conversion import Inexact, exact_cast, extended_type, fill_untyped
from headwater.buffer.producer.rows import check_exact, table_of
from headwater.buffer.records import KEY, RESERVED, from_arrow
from headwater.cli.json_lines import MINUS_ZERO, JsonColumns, read_back, row_of, suspicious_numbers
from headwater.cli.produce_input import DecodedRows, LineBlock, TargetColumns, first_refused
from headwater.core.errors import Refused

_HINT: Final = ". Earlier records decided the type; declare another if all of them fit it: {alter}"


_DECIMAL_DIGITS: Final = 100
"""More than any decimal has: a number of more is refused, and not written out."""
_FIRST_LINES: Final = 256
"""Lines that decide the types where no schema is declared; the rest of their block is read fast."""

_JSON_KINDS: Final[dict[type, str]] = {
    bool: "true or false",
    bytes: "bytes",
    dict: "objects",
    float: "numbers",
    int: "numbers",
    list: "lists",
    str: "text",
}
"""What the values of a line are, in the words of JSON."""


class JsonRows:
    """Turns blocks of lines into tables of the same columns throughout."""

    def __init__(self, stream: TargetColumns) -> None:
        self._stream = stream
        self._is_declared = stream.is_declared
        self._hint = _HINT.format(alter=stream.alter)
        self._left_out: set[str] = set()
        self._types = stream.types
        """Of the stream's columns, and of those that earlier lines brought."""
        self._key_types: dict[str, pa.DataType] = {}
        self._columns_reader: JsonColumns | None = None

    @property
    def left_out(self) -> str:
        """What to say of columns that were null wherever they stood; nothing if there are none."""
        return self._stream.left_out(self._left_out - self._types.keys(), "null")

    def decode(self, name: str, block: LineBlock) -> DecodedRows:
        """The rows of a block, up to the first that is wrong; an empty line is none."""
        self._learn()
        decoded = self._decoded(name, block)
        if decoded.table.num_rows and self._types != self._stream.types:
            try:
                self._stream.record(decoded.table)
            except Refused:
                # Another producer decided meanwhile: again, so that the line can be named.
                self._learn()
                decoded = self._decoded(name, block)
        return decoded

    def _learn(self) -> None:
        """Take the types of all columns that the stream has by now."""
        known = self._types | self._stream.types
        if known != self._types:
            self._types, self._columns_reader = known, None

    def _decoded(self, name: str, block: LineBlock) -> DecodedRows:
        columns = self._read_fast(block.data)
        if columns is not None:
            return DecodedRows(pa.table(columns), None)
        lines = block.data.split(b"\n", _FIRST_LINES)
        if self._is_declared or len(lines) <= _FIRST_LINES:
            return self._decode_lines(name, block)
        first = LineBlock(block.first_line, b"\n".join(lines[:_FIRST_LINES]), 0)
        try:
            first_rows = self._decode_lines(name, first)
        except Refused:
            return self._decode_lines(name, block)  # nothing but nulls, so far
        if first_rows.error is not None:
            return self._decode_lines(name, block)  # a later line may say what `[]` is a list of
        rest = LineBlock(block.first_line + _FIRST_LINES, lines[-1], 0)
        columns = self._read_fast(rest.data)
        more = (
            self._decode_lines(name, rest)
            if columns is None
            else DecodedRows(pa.table(columns), None)
        )
        tables = [table for table in (first_rows.table, more.table) if table.num_columns]
        try:
            united = (
                pa.concat_tables(tables, promote_options="default") if tables else first_rows.table
            )
        except pa.ArrowException:
            # The rest made the type of a column wider: all of them in that one.
            return self._decode_lines(name, block)
        return DecodedRows(united, more.error)

    def _read_fast(self, data: bytes) -> dict[str, pa.Array] | None:
        """The columns as Arrow reads them; None if that does not do."""
        if self._columns_reader is None:
            self._columns_reader = JsonColumns(
                self._types | self._key_types, self._left_out, may_round=self._is_declared
            )
        columns = self._columns_reader.read(data)
        if not columns:
            return None
        try:
            self._stream.check(pa.record_batch(columns))
        except Refused:
            return None  # line by line, so that the line can be named
        return columns

    def _decode_lines(self, name: str, block: LineBlock) -> DecodedRows:
        exact = bool(suspicious_numbers(block.data))
        rows, numbers, wrong = _rows(name, block, exact=exact)
        try:
            columns = self._columns(rows)
        except Refused:
            source = rows
            count, error = first_refused(
                len(source), lambda start, end: self._error_of(source[start:end])
            )
            rows, wrong = (
                rows[:count],
                Refused(
                    f"{name}, line {numbers[count]:,}: {error}. It was not sent, nor was what "
                    "follows"
                ),
            )
            columns = self._columns(rows)
        # All columns that are known, so that batches do not differ by what their lines leave out.
        # One that is null throughout has no type yet, and is null without being there.
        typed = {name: pa.nulls(len(rows), kind) for name, kind in self._types.items() if rows}
        typed |= {name: one for name, one in columns.items() if not pa.types.is_null(one.type)}
        self._left_out |= columns.keys() - typed.keys()
        self._columns_reader = None
        if rows and not typed:
            raise Refused(
                f"{name}, line {block.first_line:,}: a row needs a value that is not null"
            )
        return DecodedRows(pa.table(typed), wrong)

    def _error_of(self, rows: list[dict[str, Any]]) -> Refused | None:
        """Why these rows make no columns; trying them decides nothing."""
        before = dict(self._types)
        try:
            self._columns(rows)
        except Refused as error:
            return error
        finally:
            self._types = before
        return None

    def _columns(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """The rows as columns; what they decide about types holds only if all of them fit."""
        before = dict(self._types)
        names = dict.fromkeys(name for row in rows for name in row)
        reserved = [name for name in names if name in RESERVED]
        try:
            columns: dict[str, Any] = {
                name: self._column(name, [row.get(name) for row in rows])
                for name in names
                if name not in RESERVED
            }
            if reserved:
                special = table_of(
                    [{name: row.get(name) for name in reserved} for row in rows], None
                )
                columns |= {name: special.column(name) for name in reserved}
            self._check(columns)
        except Refused:
            self._types = before
            raise
        if KEY in reserved:
            self._key_types = {KEY: RESERVED[KEY]}
        return columns

    def _check(self, columns: dict[str, Any]) -> None:
        """Refuse what the producer would: there, no line is known any more."""
        typed = {name: one for name, one in columns.items() if not pa.types.is_null(one.type)}
        for batch in from_arrow(pa.table(typed)) if typed else ():
            self._stream.check(batch)

    def _column(self, name: str, values: list[Any]) -> pa.Array:
        known_type = self._types.get(name)
        if any(isinstance(value, dict | list | Decimal) or value is MINUS_ZERO for value in values):
            kind = known_type
            if kind is None and any(isinstance(value, float | Decimal) for value in values):
                kind = pa.float64()
            try:
                values = [read_back(value, kind) for value in values]
            except Refused as error:
                raise Refused(f"column {name!r}: {error}") from error
        if known_type is not None and pa.types.is_decimal(known_type):
            values = [_decimal_text(value) for value in values]
        if known_type is not None and pa.types.is_integer(known_type):
            # Beside 1.0, Arrow would take the whole numbers of the column for doubles.
            values = [_whole(value) for value in values]
        try:
            found = pa.array(values)
        except OverflowError as error:
            raise Refused(
                f"column {name!r}: a whole number beyond int64: write it as text, or declare a "
                "decimal(38, 0) for it"
            ) from error
        except pa.ArrowException as error:
            kinds = sorted({_JSON_KINDS[type(value)] for value in values if value is not None})
            mixed = f" has {' and '.join(kinds)}, and a column has one type" if kinds[1:] else ""
            raise Refused(f"column {name!r}{mixed or f': {error}'}") from error
        if pa.types.is_null(found.type):
            return pa.nulls(len(values), self._types.get(name, pa.null()))
        found = exact_cast(
            found, fill_untyped(found.type, known_type, may_drop=not self._is_declared)
        )
        kind = self._types.setdefault(name, found.type)
        if found.type == kind:
            return found
        if not self._is_declared:
            try:
                return exact_cast(found, kind)
            except (Inexact, pa.ArrowException):
                kind = self._types[name] = extended_type(kind, found.type)
        hint = "" if self._is_declared else self._hint
        if not _may_become(found.type, kind):
            raise Refused(f"column {name!r} is {kind}, and {found.type} is given{hint}")
        try:
            check_exact(name, values, kind, is_declared=True, from_json=True)
        except Refused as error:
            raise Refused(f"{error}{hint}") from error
        try:
            return found.cast(kind)
        except pa.ArrowNotImplementedError:
            return _array_of(name, values, kind)
        except pa.ArrowException as error:
            raise Refused(f"column {name!r} is {kind}: {error}{hint}") from error


def _rows(
    name: str, block: LineBlock, *, exact: bool
) -> tuple[list[dict[str, Any]], list[int], Refused | None]:
    """The rows, the number of each one's line, and what is wrong with the line after them."""
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    for number, line in enumerate(block.lines, start=block.first_line):
        # Some programs begin a file with the mark by which it is known as UTF-8.
        text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if not text.strip():
            continue
        try:
            rows.append(row_of(text, exact=exact))
        except Refused as error:
            why = f"{name}, line {number:,} {error}. It was not sent, nor was what follows"
            return rows, numbers, Refused(why)
        numbers.append(number)
    return rows, numbers, None


def _decimal_text(value: Any) -> Any:
    """A number as it was written: as a float it would be another one."""
    if isinstance(value, Decimal):
        return format(value, "f") if abs(value.adjusted()) < _DECIMAL_DIGITS else str(value)
    is_number = isinstance(value, float | int) and not isinstance(value, bool)
    return str(value) if is_number else value


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _may_become(written: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a value of one type can be meant by another: JSON has no times and no decimals."""
    if pa.types.is_string(written):
        return bool(
            pa.types.is_temporal(kind) or pa.types.is_decimal(kind) or pa.types.is_binary(kind)
        )
    if pa.types.is_list(written) and pa.types.is_list(kind):
        source, item_type = written.value_type, kind.value_type
        return source == item_type or pa.types.is_null(source) or _may_become(source, item_type)
    if pa.types.is_nested(written):
        return bool(pa.types.is_nested(kind))
    return _is_number(written) and _is_number(kind)


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _array_of(name: str, values: list[Any], kind: pa.DataType) -> pa.Array:
    """What only making it in that type makes: maps, and structs with fields left out."""
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise Refused(f"column {name!r} is {kind}: {error}") from error
