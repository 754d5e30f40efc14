"""Rows as dicts, made into columns.

A stream that declares a schema says what the columns are; else Arrow infers them from the rows of
the call. Reserved names (`_key`, `_headers`, …) have the types of the record model in either case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from headwater.buffer.producer.exact import check_exact, exact_array
from headwater.buffer.producer.given import header_pairs, is_whole_text, operation_code
from headwater.buffer.records import HEADERS, HEADERS_TYPE, OPERATION, RESERVED
from headwater.core.errors import Refused


def table_of(rows: Iterable[Mapping[str, Any]], schema: pa.Schema | None) -> pa.Table:
    """The rows as one table; a key that a row lacks is null there."""
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
                "rows without any column, on a stream without a declared schema: there is nothing "
                "to carry them. Give them a column, or declare a schema"
            )
        names = list(declared)
    columns = {name: _column(name, listed, declared) for name in names}
    return pa.table(columns)


def _column(name: Any, rows: list[Mapping[str, Any]], declared: Mapping[str, Any]) -> pa.Array:
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
        if kind is not None:
            return exact_array(name, values, kind)
        found = pa.array(values)
        check_exact(name, values, found.type, is_declared=False)
        return found
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise Refused(f"column {name!r}: {error}") from error
