"""A line of JSON as a row: what `read --format json` wrote is read back as it was.

Bytes that are no text stand there as {"base64": …}, times as text, headers as a list of keys and
values; `_lsn` and its like only say where the record stood, and are passed over.

Always holds: no value is taken for another's: a key that stands twice in an object is refused.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.buffer.consumer.positions import is_finer_than_us
from headwater.buffer.records import HEADERS, KEY, POSITION_COLUMNS, TIMESTAMP, VALUE
from headwater.cli.json_columns import is_exact_decimal
from headwater.core.errors import Refused

_DECODER: Final = msgspec.json.Decoder(dict[str, Any])


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise Refused(f"has {text}, whose exponent is out of range: write it as text") from None


_EXACT_DECODER: Final = msgspec.json.Decoder(dict[str, Any], float_hook=_decimal)
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BASE64: Final = "base64"


def row_of(line: bytes, *, exact: bool = False) -> dict[str, Any]:
    """The row; `Refused` says what is wrong with the line.

    With `exact`, numbers that are not whole are Decimals, as they were written, for `read_back`.
    """
    try:
        row = (_EXACT_DECODER if exact else _DECODER).decode(line)
    except msgspec.DecodeError as error:
        if not exact and "out of range" in str(error):
            return row_of(line, exact=True)
        raise Refused(f"is no JSON object: {error}") from error
    keys = _count_keys(row)
    # A colon outside of strings stands for a key; most lines have none within.
    if line.count(b":") != keys and _STRING.sub(b"", line).count(b":") != keys:
        raise Refused("names a column, or a field of one, twice")
    for name in row.keys() & _READ_BACK.keys():
        row[name] = _READ_BACK[name](row[name])
    for name in row.keys() & POSITION_COLUMNS:
        del row[name]
    return row


def read_back(value: Any, kind: pa.DataType | None) -> Any:
    """The value with bytes where {"base64": …} stands for them, and with doubles for Decimals.

    `kind` is its type, if known. `Refused` if a double does not hold a number.
    """
    if isinstance(value, Decimal):
        return value if kind is not None and pa.types.is_decimal(kind) else _double(value)
    if isinstance(value, list):
        return [read_back(one, _inside(kind)) for one in value]
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
            f"{number} is no double, which would hold {near!r}: write it as text, or declare a "
            "decimal(38, …) for it"
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


def _bytes(given: Any) -> Any:
    return read_back(given.encode() if isinstance(given, str) else given, None)


def _headers(given: Any) -> Any:
    if isinstance(given, dict):
        return {name: _bytes(value) for name, value in given.items()}
    if not isinstance(given, list):
        return given
    pairs = []
    for pair in given:
        if isinstance(pair, dict) and pair.keys() == {"key", "value"}:
            pair = [pair["key"], pair["value"]]
        pairs.append([pair[0], _bytes(pair[1])] if isinstance(pair, list) and len(pair) == 2 else 0)
    return pairs


def _time(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    if is_finer_than_us(given):
        raise Refused(f"{TIMESTAMP}: {given!r} has more than microseconds: round it first")
    try:
        return datetime.fromisoformat(given)
    except ValueError:
        raise Refused(f"{TIMESTAMP}: {given!r} is no time such as 2026-01-31T08:00:00Z") from None


_READ_BACK: Final[dict[str, Callable[[Any], Any]]] = {
    KEY: _bytes,
    VALUE: _bytes,
    HEADERS: _headers,
    TIMESTAMP: _time,
    "_refresh_records": lambda given: (
        [_bytes(one) for one in given] if isinstance(given, list) else given
    ),
}
