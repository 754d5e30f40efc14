"""Parses lines of JSON: one by one as rows, or together as columns by Arrow's reader.

Values that `read --format json` wrote are read back unchanged: bytes that are not text are
{"base64": …}, times are text, headers are a list of keys and values. `_lsn` and the other position
columns are ignored.

Arrow is a hundred times as fast, but changes some values: it rounds a number of many digits to the
nearest double, turns 1e-400 into 0, accepts NaN, and lets an object end on another line. Such input
is detected first and decoded line by line; so is everything that Arrow refuses, because only the
slow path can name the line.

Always holds: both ways give the same columns, and a key that appears twice in an object is refused.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
from collections.abc import Callable
from datetime import datetime
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.consumer.positions import is_finer_than_us
from headwater.buffer.records import HEADERS, KEY, POSITION_COLUMNS, RESERVED, TIMESTAMP, VALUE
from headwater.core.errors import Refused


class _MinusZero(int):
    """`-0`, which is 0 in a column of integers and -0.0 in one of doubles."""


MINUS_ZERO: Final = _MinusZero(0)
_MINUS_ZERO: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|(?<![eE])-0(?![0-9.eE])')
_MARKED_ZERO: Final = "-0e-000"
"""What -0 is decoded as, so that the decoder does not take it for 0."""
_DECODER: Final = msgspec.json.Decoder(dict[str, Any])


def _decimal(text: str) -> Decimal | int:
    if text == _MARKED_ZERO:
        return MINUS_ZERO
    try:
        return Decimal(text)
    except InvalidOperation:
        raise Refused(f"has {text}, whose exponent is out of range: write it as text") from None


_EXACT_DECODER: Final = msgspec.json.Decoder(dict[str, Any], float_hook=_decimal)
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BASE64: Final = "base64"
_SURROGATES: Final = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
"""Pairs, and in the group what is half of one; an escaped backslash begins nothing."""
_DEPTH_MAX: Final = 100
"""More than a column may have, and few enough for functions that call themselves."""
_TOO_DEEP: Final = (
    f"is nested more than {_DEPTH_MAX} levels deep: write the inner value as text, which is JSON"
)


def row_of(line: bytes, *, exact: bool = False) -> dict[str, Any]:
    """The row; `Refused` says what is wrong with the line.

    With `exact`, numbers that are not whole are Decimals, as they were written, for `read_back`.
    """
    if b"-0" in line:
        marked = _MINUS_ZERO.sub(_mark_zero, line)
        if marked != line:
            line, exact = marked, True
    try:
        row = (_EXACT_DECODER if exact else _DECODER).decode(line)
    except msgspec.DecodeError as error:
        if not exact and "out of range" in str(error):
            return row_of(line, exact=True)
        raise Refused(_why_no_object(line, error)) from error
    except UnicodeDecodeError as error:
        raise Refused(_why_no_text(line)) from error
    except RecursionError:
        raise Refused(_TOO_DEEP) from None
    if line.count(b"[") + line.count(b"{") > _DEPTH_MAX and _is_deep(row):
        raise Refused(_TOO_DEEP)
    keys = _count_keys(row)
    # A colon outside of strings means a key; most lines have none within.
    if line.count(b":") != keys and _STRING.sub(b"", line).count(b":") != keys:
        raise Refused("names a column, or a field of one, twice")
    for name in row.keys() & _READ_BACK.keys():
        row[name] = _READ_BACK[name](row[name])
    for name in row.keys() & POSITION_COLUMNS:
        del row[name]
    return row


def _mark_zero(match: re.Match[bytes]) -> bytes:
    return _MARKED_ZERO.encode() if match[0] == b"-0" else match[0]


def _why_no_object(line: bytes, error: msgspec.DecodeError) -> str:
    lone = next((one[1] for one in _SURROGATES.finditer(line) if one[1]), None)
    if lone is not None:
        return (
            f"has {lone.decode()}, half of a surrogate pair, which is not a character: write the "
            "whole pair, or leave it out"
        )
    return f"is not a JSON object: {error}"


def _why_no_text(line: bytes) -> str:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return (
            f"is not UTF-8: byte 0x{line[error.start]:02x} at offset {error.start:,} of the line "
            f"({error.reason}). Convert the file first, as in: iconv -f LATIN1 -t UTF-8"
        )
    return "is not UTF-8"


def _is_deep(row: dict[str, Any]) -> bool:
    level: list[Any] = [row]
    for _ in range(_DEPTH_MAX):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for values in inner for one in values if isinstance(one, dict | list)]
    return bool(level)


def read_back(value: Any, kind: pa.DataType | None) -> Any:
    """The value with bytes in place of {"base64": …}, and with doubles for Decimals.

    `kind` is its type, if known. `Refused` if a double does not hold a number.
    """
    if value is MINUS_ZERO:
        return -0.0 if kind is not None and pa.types.is_floating(kind) else 0
    if isinstance(value, Decimal):
        return value if kind is not None and pa.types.is_decimal(kind) else _double(value)
    if isinstance(value, list):
        inner = _inside(kind)
        if inner is None and any(isinstance(one, float | Decimal) for one in value):
            inner = pa.float64()
        return [read_back(one, inner) for one in value]
    if not isinstance(value, dict):
        return value
    if kind is not None and pa.types.is_struct(kind):
        types = {field.name: field.type for field in kind}
        return {name: read_back(one, types.get(name)) for name, one in value.items()}
    if value.keys() == {_BASE64}:
        return _decoded(value[_BASE64])
    return {name: read_back(one, _inside(kind)) for name, one in value.items()}


def _double(number: Decimal) -> float:
    near = float(number)
    if not is_exact_decimal(number, near):
        raise Refused(
            f"{number} does not fit a double, which would hold {near!r}: write it as text, or "
            "declare a decimal(38, …) for it"
        )
    return near


def _inside(kind: pa.DataType | None) -> pa.DataType | None:
    if kind is None:
        return None
    if pa.types.is_map(kind):
        return kind.item_type
    return kind.value_type if pa.types.is_list(kind) else None


def _decoded(text: Any) -> Any:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        return {_BASE64: text}


def _count_keys(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_count_keys, value.values()))
    return sum(map(_count_keys, value)) if isinstance(value, list) else 0


def _bytes(raw: Any) -> Any:
    return read_back(raw.encode() if isinstance(raw, str) else raw, None)


def _headers(raw: Any) -> Any:
    if isinstance(raw, dict):
        return {name: _bytes(value) for name, value in raw.items()}
    if not isinstance(raw, list):
        return raw
    pairs = []
    for pair in raw:
        if isinstance(pair, dict) and pair.keys() == {"key", "value"}:
            pair = [pair["key"], pair["value"]]
        pairs.append([pair[0], _bytes(pair[1])] if isinstance(pair, list) and len(pair) == 2 else 0)
    return pairs


def _time(raw: Any) -> Any:
    if not isinstance(raw, str):
        return raw
    if is_finer_than_us(raw):
        raise Refused(f"{TIMESTAMP}: {raw!r} has more than microseconds: round it first")
    try:
        return datetime.fromisoformat(raw)
    except ValueError:
        raise Refused(f"{TIMESTAMP}: {raw!r} is not a time such as 2026-01-31T08:00:00Z") from None


_READ_BACK: Final[dict[str, Callable[[Any], Any]]] = {
    KEY: _bytes,
    VALUE: _bytes,
    HEADERS: _headers,
    TIMESTAMP: _time,
    "_refresh_records": lambda raw: [_bytes(one) for one in raw] if isinstance(raw, list) else raw,
}


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
_NO_NUMBER: Final = re.compile(rb"[:,\[]\s*-?(?:NaN|Inf)")
_JSON_NUMBER: Final = r"^[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$"
_UINT64_NUMBER: Final = r"^[0-9]{1,19}$"
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
        if self._has_floats:
            # An integer beyond 2**53 may be an id in an int64 column, where it is exact.
            rounded = rounded_doubles(suspicious_numbers(data))
            if len(rounded) and any(_holds(column, rounded) for column in table.columns):
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

    def _is_float(self, raw: pa.ChunkedArray, narrowed: pa.Array) -> bool:
        if self._may_round:
            return not pc.any(pc.is_inf(narrowed)).as_py()
        return bool(pc.all(pc.equal(raw, narrowed.cast(raw.type))).as_py())

    def _is_plain(self, data: bytes) -> bool:
        """Whether each line is a whole object in UTF-8, without NaN and infinities."""
        apart = data.count(b"\n") - data.count(b"}\n{")
        if apart and apart != data.count(b"}\r\n{"):
            return False
        if not data.isascii():
            try:
                data.decode()
            except UnicodeDecodeError:
                return False
        may_have = self._has_floats and (b"NaN" in data or b"Inf" in data)
        return not (may_have and _NO_NUMBER.search(data))


def suspicious_numbers(data: bytes) -> list[bytes]:
    """Numbers in lines of JSON that a double may not hold, without their signs."""
    alike = data.translate(_DIGITS_ALIKE)
    spans = []
    for text, pattern in ((_LONG, _LONG_NUMBER), (_TINY, _TINY_NUMBER)):
        if text in alike:
            spans += [match.span() for match in pattern.finditer(alike)]
    # Elsewhere they are within text; some of those are taken for numbers.
    return [data[start:end] for start, end in spans if data[start - 1] in _BEFORE_NUMBERS]


def rounded_doubles(numbers: list[bytes]) -> pa.Array:
    """The nearest doubles of those numbers that no double holds."""
    if not numbers:
        return pa.array([], pa.float64())
    written = pa.array(numbers, pa.binary()).cast(pa.string())
    # What is no number is within text, and becomes no value of a column.
    written = written.filter(pc.match_substring_regex(written, _JSON_NUMBER))
    is_whole = pc.match_substring_regex(written, _UINT64_NUMBER)
    whole = written.filter(is_whole).cast(pa.uint64())
    near = whole.cast(pa.float64(), safe=False)
    of_whole = near.filter(pc.not_equal(near.cast(pa.uint64(), safe=False), whole))
    others = written.filter(pc.invert(is_whole))
    with contextlib.suppress(pa.ArrowException):  # beyond the range of doubles
        same = pc.equal(others.cast(pa.float64()).cast(pa.string()), others)
        others = others.filter(pc.invert(same))
    inexact = [float(one) for one in others.to_pylist() if not is_exact(one)]
    of_others = pa.array(inexact, pa.float64())
    return pa.concat_arrays([of_whole, of_others]).unique()


def _holds(column: pa.ChunkedArray | pa.Array, doubles: pa.Array) -> bool:
    """Whether a value of a double column, or of one within it, is one of these or its negative."""
    kind = column.type
    if pa.types.is_list(kind):
        return _holds(pc.list_flatten(column), doubles)
    if pa.types.is_struct(kind):
        return any(_holds(pc.struct_field(column, [at]), doubles) for at in range(len(kind)))
    if not pa.types.is_floating(kind):
        return False
    return bool(pc.any(pc.is_in(pc.abs(column), value_set=doubles)).as_py())


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
