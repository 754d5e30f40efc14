"""Rows as dicts, made into columns.

The stream says what its columns are; those that it does not have, Arrow infers from the rows of the
call. Reserved names (`_key`, `_headers`, …) have the types of the record model in either case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from headwater.buffer.conversion import extended_type
from headwater.buffer.producer.exact import check_exact, exact_array
from headwater.buffer.producer.given import header_pairs, is_whole_text, operation_code
from headwater.buffer.records import HEADERS, HEADERS_TYPE, OPERATION, RESERVED
from headwater.core.errors import Refused


def table_of(
    rows: Iterable[Mapping[str, Any]], schema: pa.Schema | None, *, may_widen: bool = False
) -> pa.Table:
    """The rows as one table; a key that a row lacks is null there.

    `may_widen`: the types of `schema` were inferred, and become wider where values ask for it.
    """
    if isinstance(rows, Mapping | str | bytes):
        raise Refused(f"produce_rows takes dicts, one for each record, not {type(rows).__name__}")
    listed: list[Any] = list(rows)
    strange = {type(row).__name__ for row in listed if not isinstance(row, Mapping)}
    if strange:
        raise Refused(f"produce_rows takes dicts, one for each record, not {min(strange)}")
    names = list(dict.fromkeys(name for row in listed for name in row))
    declared = {} if schema is None else {field.name: field.type for field in schema}
    if listed and not names:
        # A table without columns has no rows either: these would be gone without a word.
        if not declared:
            raise Refused(
                "rows without any column, on a stream without columns: there is nothing to carry "
                "them. Give them a column, or declare a schema"
            )
        names = list(declared)
    columns = {name: _column(name, listed, declared, may_widen) for name in names}
    return pa.table(columns)


def _column(
    name: Any, rows: list[Mapping[str, Any]], declared: Mapping[str, Any], may_widen: bool
) -> pa.Array:
    values = [row.get(name) for row in rows]
    if not isinstance(name, str):
        raise Refused(f"{name!r} is no column: names are text")
    if not is_whole_text(name):
        raise Refused(f"{name!r} is no column: a lone surrogate, half a character, is no text")
    try:
        if name == HEADERS:
            return pa.array([header_pairs(given) for given in values], HEADERS_TYPE)
        if name == OPERATION:
            return pa.array([operation_code(given) for given in values], RESERVED[OPERATION])
        kind = RESERVED.get(name, declared.get(name))
        if kind is None:
            return _inferred(name, values)
        if name in RESERVED or not may_widen:
            return exact_array(name, values, kind)
        return _widened(name, values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise Refused(f"column {name!r}: {error}") from error


def _inferred(name: str, values: list[Any]) -> pa.Array:
    found = pa.array(values)
    check_exact(name, values, found.type, is_declared=False)
    if pa.types.is_decimal(found.type) and found.type.bit_width <= 128:
        # These values have so many digits; the next ones may have more before the point.
        return found.cast(pa.decimal128(38, found.type.scale))
    return found


def _widened(name: str, values: list[Any], kind: pa.DataType) -> pa.Array:
    """The values in the type of their column, or in one that the column can be widened to.

    Of values that fit neither, the column that Arrow infers: the stream then says why not.
    """
    refusal = None
    if not _holds_float32(kind):
        try:
            return exact_array(name, values, kind, is_declared=False)
        except Refused as error:
            refusal = error
    try:
        found = _inferred(name, values)
    except (Refused, pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise refusal or error from None
    try:
        return exact_array(name, values, extended_type(kind, found.type), is_declared=False)
    except Refused:
        return found


def _holds_float32(kind: pa.DataType) -> bool:
    """Whether a Python float would be rounded somewhere in this type."""
    if pa.types.is_nested(kind):
        return any(_holds_float32(kind.field(place).type) for place in range(kind.num_fields))
    return bool(pa.types.is_float32(kind))
