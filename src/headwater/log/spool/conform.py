"""Columns that come and go: one schema for appends that differ in what nobody has to give.

A key, headers or metadata are absent where nobody used them, and absent means the same as null. So
an append without them fits into a segment that has them, and a segment is not sealed for each.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from headwater.buffer.records import VALUE
from headwater.core.errors import Bug
from headwater.log.record.columns import LOG_COLUMNS

_OPTIONAL: Final = frozenset(LOG_COLUMNS) - {VALUE}


def merged(schema: pa.Schema, other: pa.Schema) -> pa.Schema | None:
    """`schema` with what only `other` has; None if the streams' own columns differ."""
    if _own(schema) != _own(other):
        return None
    fields = [_in_both(field, other) for field in schema]
    fields += [field.with_nullable(True) for field in other if field.name not in schema.names]
    return pa.schema(fields)


def filled(records: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same records with all columns of a merged schema."""
    there = set(records.schema.names)
    if not there <= set(schema.names):
        raise Bug(f"columns {sorted(there - set(schema.names))} would be dropped from an append")
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
