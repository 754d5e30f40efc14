"""Columns that come and go: one schema for appends that differ in what nobody has to give.

A key, headers or metadata are absent where nobody used them, and absent means the same as null. So
an append without them fits into a segment that has them, and a segment is not sealed for each.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from headwater.buffer.records import VALUE
from headwater.core.errors import Bug
from headwater.core.limits import LOG_GROUP_BYTES
from headwater.log.record.columns import LOG_COLUMNS

_OPTIONAL: Final = frozenset(LOG_COLUMNS) - {VALUE}
_SAMPLE_ROWS: Final = 1024
_NULL_BYTES: Final = {
    name: pa.nulls(_SAMPLE_ROWS, LOG_COLUMNS[name]).nbytes / _SAMPLE_ROWS for name in _OPTIONAL
}
"""What a null takes in a frame: offsets and numbers stand there nevertheless."""


def joined(schema: pa.Schema, given: pa.Schema, *, rows: int, nbytes: int) -> pa.Schema | None:
    """`schema` with what only `given` has, for so many records of it that have so many bytes.

    None if the streams' own columns differ, or if it would mostly be nulls that are written: more
    than the records, and more than a segment of their own costs.
    """
    both = merged(schema, given)
    if both is None:
        return None
    absent = _OPTIONAL.intersection(both.names).difference(given.names)
    null_bytes = rows * sum(_NULL_BYTES[name] for name in absent)
    return None if null_bytes > max(nbytes, LOG_GROUP_BYTES) else both


def merged(schema: pa.Schema, other: pa.Schema) -> pa.Schema | None:
    """`schema` with what only `other` has; None if the streams' own columns differ."""
    if _own(schema) != _own(other):
        return None
    fields = [_in_both(field, other) for field in schema]
    fields += [field.with_nullable(True) for field in other if field.name not in schema.names]
    return pa.schema(fields)


def filled(records: pa.RecordBatch, schema: pa.Schema, *, given: pa.Schema) -> pa.RecordBatch:
    """The same records with all columns of a merged schema.

    `given` is what the records came with: columns beyond it are nulls, and may go again.
    """
    dropped = set(given.names).difference(schema.names)
    if dropped:
        raise Bug(f"columns {sorted(dropped)} would be dropped from an append")
    there = set(records.schema.names)
    columns = [
        records.column(field.name)
        if field.name in there
        else pa.nulls(records.num_rows, field.type)
        for field in schema
    ]
    return pa.record_batch(columns, schema=schema)


def _own(schema: pa.Schema) -> list[pa.Field]:
    return [field for field in schema if field.name not in _OPTIONAL]


def _in_both(field: pa.Field, other: pa.Schema) -> pa.Field:
    if field.name not in _OPTIONAL:
        return field
    nullable = field.nullable or field.name not in other.names or other.field(field.name).nullable
    return field.with_nullable(nullable)
