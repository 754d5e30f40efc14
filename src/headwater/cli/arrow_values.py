"""Arrow's values as Python's, and as text those that Python cannot hold.

Arrow has days and microseconds far outside of the calendar that Python knows. They look as in CSV,
which Arrow writes itself: a date or a time with a long year where it has one, else
`<value out of range: N>`, N counted from 1970 in days or microseconds.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_NO_PYTHON = (OverflowError, ValueError)
"""What Python says of a date that it cannot hold."""


def python_values(column: pa.Array) -> list[Any]:
    """Each value of a column."""
    try:
        found: list[Any] = column.to_pylist()
    except _NO_PYTHON:
        return [_value(one) for one in column]
    return found


def time_texts(column: pa.Array, between: str = "T") -> pa.Array:
    """Timestamps as text, with this between date and time; those with a zone in UTC."""
    # Arrow knows which times without a zone have no text; of those with one it writes the years
    # that it can count to.
    plain = column.cast(pa.int64()).cast(pa.timestamp(column.type.unit))
    zone = "" if column.type.tz is None else "Z"
    return pc.replace_substring_regex(
        plain.cast(pa.string()), r"^([-+]?[0-9]+-[0-9]+-[0-9]+) (.*)$", rf"\1{between}\2{zone}"
    )


def _value(scalar: pa.Scalar) -> Any:
    """One value, piece by piece where it has pieces."""
    try:
        return scalar.as_py()
    except _NO_PYTHON:
        pass
    if isinstance(scalar, pa.MapScalar):
        entries = scalar.values
        return list(zip(*(map(_value, entries.field(at)) for at in (0, 1)), strict=True))
    if isinstance(scalar, pa.StructScalar):
        return {name: _value(scalar[name]) for name in scalar}
    if isinstance(scalar, pa.ListScalar):
        return [_value(one) for one in scalar.values]
    if pa.types.is_timestamp(scalar.type):
        return time_texts(pa.array([scalar]))[0].as_py()
    return scalar.cast(pa.string()).as_py()
