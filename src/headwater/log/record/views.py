"""Columns of views, which share their data: a slice of them has the data of the whole.

Arrow counts and writes all of it with every slice, so records that are cut into frames, or were cut
from a table, would be written with what their neighbours hold, too. Their values are put into plain
columns first, which are counted and cut as they should be, and become views again one by one.
"""

from __future__ import annotations

import pyarrow as pa

from headwater.log.record.layout import loosened, retyped
from headwater.log.record.per_schema import per_schema


@per_schema
def _plain_types(schema: pa.Schema) -> dict[int, pa.DataType]:
    """By its place, the plain type of each column that has views at any depth."""
    kinds = {place: loosened(field.type, _plain_leaf) for place, field in enumerate(schema)}
    return {place: kind for place, kind in kinds.items() if kind != loosened(schema[place].type)}


def _plain_leaf(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary_view(kind) else kind


def without_views(records: pa.RecordBatch) -> pa.RecordBatch:
    """The same values in plain columns; where there are no views, the same records."""
    plain = _plain_types(records.schema)
    for place, kind in plain.items():
        field, column = records.schema[place], records.column(place)
        # Joined with nothing, a slice leaves the elements of other lists behind.
        column = pa.concat_arrays([retyped(column, loosened(field.type))]).cast(kind)
        records = records.set_column(place, field.with_type(kind), column)
    return records


def with_views(records: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """What `without_views` gave for records of this schema, or a part of it, as it was.

    Views that are made of a slice refer to all that it was cut from, so it is copied before.
    """
    for place in _plain_types(schema):
        field, column = schema[place], pa.concat_arrays([records.column(place)])
        column = retyped(column.cast(loosened(field.type)), field.type)
        records = records.set_column(place, field, column)
    return records


def size_bytes(records: pa.RecordBatch) -> int:
    """What records take by themselves, whatever they were cut from."""
    return int(without_views(records).nbytes)
