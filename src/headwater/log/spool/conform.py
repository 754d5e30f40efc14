"""Columns that come and go: one schema for appends that differ in which columns they have.

A column that an append does not have means the same as one of nulls. So an append without it goes
into a segment that has it, with nulls there, and one that brings a new column adds it to the
segment: each frame has all columns of the frames before it, and the last one has all of the
segment's. Only a column that has another type needs another segment, and values as bytes beside
typed columns.
"""

from __future__ import annotations

import functools
from typing import Final

import pyarrow as pa

from headwater.buffer.records import VALUE
from headwater.core.errors import Bug
from headwater.core.limits import LOG_GROUP_BYTES, TIER_MERGE_COLUMNS

_SAMPLE_ROWS: Final = 1024


def joined(schema: pa.Schema, given: pa.Schema, *, rows: int, nbytes: int) -> pa.Schema | None:
    """`schema` with what only `given` has, for so many records of it that have so many bytes.

    None if the types of a column differ, if there would be too many columns, or if it would mostly
    be nulls that are written: more than the records, and more than a segment of their own costs.
    And if nothing is known of the columns that the segment has.
    """
    both = merged(schema, given) if len(schema) else None
    if both is None or len(both) > max(TIER_MERGE_COLUMNS, len(given)):
        return None
    there = set(given.names)
    null_bytes = rows * sum(_null_bytes(field.type) for field in both if field.name not in there)
    return None if null_bytes > max(nbytes, LOG_GROUP_BYTES) else both


@functools.lru_cache(maxsize=1024)
def _null_bytes(kind: pa.DataType) -> float:
    """What a null takes in a frame: offsets and numbers stand there nevertheless."""
    return float(pa.nulls(_SAMPLE_ROWS, kind).nbytes / _SAMPLE_ROWS)


def merged(schema: pa.Schema, other: pa.Schema) -> pa.Schema | None:
    """`schema` with what only `other` has; None if a column of both has two types, or if one has
    values as bytes and the other typed columns."""
    others = {field.name: field for field in other}
    if len(schema) and (VALUE in others) != (VALUE in schema.names):
        return None
    fields = []
    for field in schema:
        twin = others.pop(field.name, None)
        if twin is not None and twin.type != field.type:
            return None
        fields.append(field.with_nullable(field.nullable or twin is None or twin.nullable))
    return pa.schema([*fields, *(field.with_nullable(True) for field in others.values())])


def filled(records: pa.RecordBatch, schema: pa.Schema, *, given: pa.Schema) -> pa.RecordBatch:
    """The same records with all columns of a merged schema.

    `given` is what the records came with: columns beyond it are nulls, and may go again.
    """
    dropped = set(given.names).difference(schema.names)
    if dropped:
        raise Bug(f"columns {sorted(dropped)} would be dropped from an append")
    # Not those of `records`: nulls of another type may have been put there, for another segment.
    there = set(given.names)
    # One for all columns of a type: a thousand absent columns would have their own memory each.
    nulls: dict[pa.DataType, pa.Array] = {}
    for field in schema:
        if field.name not in there and field.type not in nulls:
            nulls[field.type] = pa.nulls(records.num_rows, field.type)
    columns = [
        records.column(field.name) if field.name in there else nulls[field.type] for field in schema
    ]
    return pa.record_batch(columns, schema=schema)
