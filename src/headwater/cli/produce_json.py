"""Lines of JSON as rows of typed columns.

The stream says what its columns are. Of a column that it does not have yet, the first value that is
not null decides the type, as the stream will record it.

Always holds: a value is sent as it is or refused. Arrow, told the type beforehand, makes 1 of 1.5,
and of an object takes the fields that it knows.
"""

from __future__ import annotations

import codecs
from typing import Any, Final

import pyarrow as pa

from headwater.buffer.producer.dict_rows import table_of
from headwater.buffer.producer.exact import check_exact
from headwater.buffer.records import RESERVED
from headwater.buffer.widening import extended_type
from headwater.cli.json_rows import bytes_back, row_of
from headwater.cli.produce_input import Decoded, LineBlock
from headwater.core.errors import Refused

_HINT: Final = ". Earlier records decided the type; declare another if all of them fit it: {alter}"


class JsonRows:
    """Turns blocks of lines into tables of the same columns throughout."""

    def __init__(self, schema: pa.Schema | None, *, is_declared: bool, alter: str) -> None:
        """`schema` is the stream's; `alter` is the command that declares one."""
        self._alter = alter
        self._hint = _HINT.format(alter=alter)
        self._is_declared = is_declared
        self._left_out: set[str] = set()
        self._types = {} if schema is None else {field.name: field.type for field in schema}

    @property
    def left_out(self) -> str:
        """What to say of columns that were null wherever they stood; nothing if there are none."""
        names = sorted(self._left_out - self._types.keys())
        if not names:
            return ""
        return (
            f"{', '.join(map(repr, names))}: null throughout, which has no type, so no such column "
            f"was sent. To have it there as null, declare a schema with it: {self._alter}"
        )

    def decode(self, name: str, block: LineBlock) -> Decoded:
        """The rows of a block, up to the first that is wrong; an empty line is none."""
        rows, numbers, wrong = _rows(name, block)
        try:
            columns = self._columns(rows)
        except Refused:
            count, error = self._fitting(rows)
            rows, wrong = (
                rows[:count],
                Refused(
                    f"{name}, line {numbers[count]:,}: {error}. It was not sent, nor was what "
                    "follows"
                ),
            )
            columns = self._columns(rows)
        # A column that is null throughout has no type yet, and is null without being there.
        kept = {name: one for name, one in columns.items() if not pa.types.is_null(one.type)}
        self._left_out |= columns.keys() - kept.keys()
        if rows and not kept:
            raise Refused(f"{name}, line {block.first_line:,}: nothing but nulls is no row")
        return Decoded(pa.table(kept), wrong)

    def _fitting(self, rows: list[dict[str, Any]]) -> tuple[int, Refused]:
        """How many of the first rows make columns together, and what is wrong with the next."""
        low, high = 0, len(rows)
        wrong = Refused("no row")
        while high - low > 1:
            middle = (low + high) // 2
            error = self._error_of(rows[:middle])
            if error is None:
                low = middle
            else:
                high, wrong = middle, error
        return low, self._error_of(rows[:high]) or wrong

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
        except Refused:
            self._types = before
            raise
        return columns

    def _column(self, name: str, values: list[Any]) -> pa.Array:
        known = self._types.get(name)
        if any(isinstance(value, dict | list) for value in values):
            values = [bytes_back(value, known) for value in values]
        if known is not None and pa.types.is_decimal(known):
            values = [_decimal_text(value) for value in values]
        try:
            found = pa.array(values)
        except (pa.ArrowException, OverflowError) as error:
            raise Refused(f"column {name!r}: {error}") from error
        if pa.types.is_null(found.type):
            return pa.nulls(len(values), self._types.get(name, pa.null()))
        kind = self._types.setdefault(name, found.type)
        if not self._is_declared:
            kind = self._types[name] = extended_type(kind, found.type)
        if found.type == kind:
            return found
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
            return _as_told(name, values, kind)
        except pa.ArrowException as error:
            raise Refused(f"column {name!r} is {kind}: {error}{hint}") from error


def _rows(name: str, block: LineBlock) -> tuple[list[dict[str, Any]], list[int], Refused | None]:
    """The rows, the number of each one's line, and what is wrong with the line after them."""
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    for number, line in enumerate(block.lines, start=block.first_line):
        # Some programs begin a file with the mark by which it is known as UTF-8.
        text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if not text.strip():
            continue
        try:
            rows.append(row_of(text))
        except Refused as error:
            told = f"{name}, line {number:,} {error}. It was not sent, nor was what follows"
            return rows, numbers, Refused(told)
        numbers.append(number)
    return rows, numbers, None


def _decimal_text(value: Any) -> Any:
    """A number as it was written: as a float it would be another one."""
    is_number = isinstance(value, float | int) and not isinstance(value, bool)
    return str(value) if is_number else value


def _may_become(found: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a value of one type can be meant by another: JSON has no times and no decimals."""
    if pa.types.is_string(found):
        return bool(
            pa.types.is_temporal(kind) or pa.types.is_decimal(kind) or pa.types.is_binary(kind)
        )
    if pa.types.is_nested(found):
        return bool(pa.types.is_nested(kind))
    return _is_number(found) and _is_number(kind)


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _as_told(name: str, values: list[Any], kind: pa.DataType) -> pa.Array:
    """What only making it in that type makes: maps, and structs with fields left out."""
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise Refused(f"column {name!r} is {kind}: {error}") from error
