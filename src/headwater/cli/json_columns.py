"""Lines of JSON made into columns by Arrow's own reader, where that changes no value.

Arrow reads a hundred times as fast as one line after the other, and bends some values on its way:
it rounds a number of many digits to the nearest double, makes 0 of 1e-400, takes NaN for a number,
and an object may end on another line than it began on. So what is suspicious is looked for first,
and left to the slow way, which takes the lines one by one; so is whatever Arrow refuses, because
the slow way names the line.

Always holds: columns that are returned are those of the slow way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Context, Decimal, InvalidOperation
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.records import KEY, RESERVED

_SAFE_DIGITS: Final = 15
"""Decimal numbers of so many digits all have doubles of their own."""
_DIGITS_ALIKE: Final = bytes(
    ord("0") if chr(code) in "0123456789." else ord("e") if chr(code) in "eE" else code
    for code in range(256)
)
_LONG: Final = b"0" * (_SAFE_DIGITS + 1)
_TINY: Final = b"0e-000"
"""Arrow refuses what is too large, and makes 0 of what is too small."""
# Both are searched for in text whose digits are all alike: a pattern that begins with literal text
# is found many times as fast as one that begins with a choice of digits.
_LONG_NUMBER: Final = re.compile(_LONG + rb"0*(?:e[-+]?0+)?")
_TINY_NUMBER: Final = re.compile(rb"0+e-000+")
_BEFORE_NUMBERS: Final = frozenset(b":[,- \t\r\n")
"""What JSON has before a number: all of its whitespace, and its own signs."""
_NO_NUMBERS: Final = (b"NaN", b"Inf")
_PLAIN: Final = frozenset(
    {pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64(), pa.string()}
)
_EXPONENT_MAX: Final = 400
"""Doubles have exponents from -324 to 308."""
_WIDE: Final = Context(prec=2_000, Emin=-100_000, Emax=100_000)


class JsonColumns:
    """Reads lines under column types that are known."""

    def __init__(
        self, types: dict[str, pa.DataType], untyped: set[str], *, may_round: bool
    ) -> None:
        """Columns that are `untyped` were null wherever they stood.

        `may_round`: a double that a float does not hold becomes one all the same.
        """
        self._types = types
        self._may_round = may_round
        self._has_floats = any(_has(kind, pa.types.is_floating) for kind in types.values())
        read_as = {name: _read_as(name, kind) for name, kind in types.items()}
        read_as |= dict.fromkeys(sorted(untyped - types.keys()), pa.null())
        is_known = bool(types) and None not in read_as.values()
        self._schema = pa.schema(read_as.items()) if is_known else None

    def read(self, data: bytes) -> dict[str, pa.Array] | None:
        """The columns of whole lines; None where the lines have to be taken one by one."""
        if self._schema is None or not self._is_plain(data):
            return None
        table = _arrow_table(data, self._schema)
        if table is None or table.num_rows != data.count(b"\n") + 1:
            return None
        columns = {}
        for name, kind in self._types.items():
            column = table.column(name)
            if column.null_count == len(column):
                columns[name] = pa.nulls(len(column), kind)
                continue
            try:
                columns[name] = column.combine_chunks().cast(kind)
                if _has(kind, pa.types.is_decimal):
                    # Arrow counts the digits of 123.5, and not the zeros that a scale of 3 adds.
                    columns[name].validate(full=True)
            except pa.ArrowException:
                return None
            if kind == pa.float32() and not self._is_float(column, columns[name]):
                return None
        return columns

    def _is_float(self, given: pa.ChunkedArray, found: pa.Array) -> bool:
        if self._may_round:
            return not pc.any(pc.is_inf(found)).as_py()
        return bool(pc.all(pc.equal(given, found.cast(given.type))).as_py())

    def _is_plain(self, data: bytes) -> bool:
        """Whether each line is a whole object, and no number would become another one."""
        apart = data.count(b"\n") - data.count(b"}\n{")
        if apart and apart != data.count(b"}\r\n{"):
            return False
        if not data.isascii():
            try:
                data.decode()
            except UnicodeDecodeError:
                return False
        if not self._has_floats:
            return True
        return not any(word in data for word in _NO_NUMBERS) and are_exact(suspicious_numbers(data))


def suspicious_numbers(data: bytes) -> list[bytes]:
    """Numbers in lines of JSON that a double may not hold, without their signs."""
    alike = data.translate(_DIGITS_ALIKE)
    found = []
    for text, pattern in ((_LONG, _LONG_NUMBER), (_TINY, _TINY_NUMBER)):
        if text in alike:
            found += [match.span() for match in pattern.finditer(alike)]
    # Elsewhere they stand within text; some that do are taken for numbers.
    return [data[start:end] for start, end in found if data[start - 1] in _BEFORE_NUMBERS]


def are_exact(numbers: list[bytes]) -> bool:
    """Whether a double holds each of them."""
    if not numbers:
        return True
    written = pa.array(numbers, pa.binary()).cast(pa.string())
    try:
        same = pc.equal(written.cast(pa.float64()).cast(pa.string()), written)
    except pa.ArrowException:
        return False  # no number, but within text
    return all(map(is_exact, pc.filter(written, pc.invert(same)).to_pylist()))


def is_exact(number: str) -> bool:
    """Whether a double holds a decimal number: written in as many digits, it is the same."""
    try:
        return is_exact_decimal(Decimal(number), float(number))
    except InvalidOperation:
        return False  # an exponent that not even a Decimal holds


def is_exact_decimal(number: Decimal, near: float) -> bool:
    """The same of a number that was read: whether `near` rounds to it in its own digits."""
    exponent = number.as_tuple().exponent
    if near - near != 0 or not isinstance(exponent, int):
        return False
    if Decimal(repr(near)) == number:
        return True
    if abs(number.adjusted()) > _EXPONENT_MAX:
        return False
    distance = _WIDE.subtract(Decimal(near), number).copy_abs()
    return _WIDE.multiply(distance, Decimal(2)) <= _WIDE.scaleb(Decimal(1), exponent)


def _arrow_table(data: bytes, schema: pa.Schema) -> pa.Table | None:
    from pyarrow import json

    try:
        return json.read_json(
            pa.BufferReader(data),
            read_options=json.ReadOptions(block_size=len(data) + 1, use_threads=False),
            parse_options=json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="error"
            ),
        )
    except pa.ArrowException:
        return None


def _read_as(name: str, kind: pa.DataType) -> pa.DataType | None:
    """The type to read a column in, before it is cast; None if only the slow way can."""
    if name in RESERVED:
        return pa.string() if name == KEY else None
    if pa.types.is_temporal(kind) or pa.types.is_binary(kind):
        # JSON has text there, and the slow way casts it as well.
        return pa.string()
    if kind == pa.float32():
        return pa.float64()
    return kind if _is_read(kind) else None


def _is_read(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _is_read(kind.value_type)
    if pa.types.is_struct(kind):
        return all(_is_read(field.type) for field in kind)
    return kind in _PLAIN or pa.types.is_decimal128(kind)


def _has(kind: pa.DataType, fits: Callable[[pa.DataType], bool]) -> bool:
    """Whether the type, or one within it, is such a one."""
    if pa.types.is_list(kind):
        return _has(kind.value_type, fits)
    if pa.types.is_struct(kind):
        return any(_has(field.type, fits) for field in kind)
    return bool(fits(kind))
