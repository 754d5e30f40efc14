"""Records as Python's own values, also those with times for which Python has no word."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headwater.log.record.layout import loosened, retyped

_NO_WORD = (OverflowError, ValueError, LookupError)
"""What Arrow raises for times outside of the years 1 to 9999, and of zones that nobody knows."""


def python_rows(records: pa.RecordBatch) -> list[dict[str, Any]]:
    """Each record by the names of its columns.

    A value with a time that Python cannot hold has numbers for times, in the unit of its column;
    what other records hold changes nothing about it.
    """
    columns = [_values(column) for column in records.columns]
    names = records.schema.names
    if not columns:
        return [{} for _ in range(records.num_rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.Array) -> list[Any]:
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except _NO_WORD:
        return [_value(column.slice(place, 1)) for place in range(len(column))]


def _value(column: pa.Array) -> Any:
    try:
        return column.to_pylist()[0]
    except _NO_WORD:
        return retyped(column, loosened(column.type, _numbered)).to_pylist()[0]


def _numbered(kind: pa.DataType) -> pa.DataType:
    if not pa.types.is_temporal(kind):
        return kind
    return pa.int32() if kind.bit_width == 32 else pa.int64()
