"""Columns to the types that Parquet keeps as they are, and back (see `kept_types`)."""

from __future__ import annotations

import pyarrow as pa

from headwater.log.record.kept_types import casts
from headwater.log.record.layout import retyped


def kept_column(column: pa.Array, kept: pa.DataType) -> pa.Array:
    """A column in the type that it is kept in."""
    if column.type.equals(kept, check_metadata=True):
        return column
    needed = casts(column.type)
    if needed is None:
        return retyped(column, kept)
    return _cast(retyped(column, needed.between), kept)


def restored_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column as it was before it was kept."""
    if column.type.equals(kind, check_metadata=True):
        return column
    needed = casts(kind)
    if needed is not None:
        column = _cast(_cast(column, needed.shaped), needed.between)
    return retyped(column, kind)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Unchecked: every value fits, and below a null there may be what does not."""
    return column.cast(kind, safe=False)
