"""Nulls where a field allows none: a log takes no such records.

Arrow does not look at it, Parquet refuses it, and then nothing that comes after could be copied. A
log written before may have them: its readers get them under fields that allow nulls. (What the
buffer checks by `headwater.buffer.nulls` are the fewer types that streams carry.)
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from headwater.core.errors import Refused
from headwater.log.record.layout import is_list, loosened, retyped
from headwater.log.record.per_schema import per_schema


def check_nulls(records: pa.RecordBatch) -> None:
    """Refuse a null where none may be, naming the place."""
    place = _first_misplaced(records)
    if place is not None:
        raise Refused(
            f"column {place!r} holds a null, and says that it has none (nullable=False): fill it "
            "in, or let the field be nullable"
        )


def with_nulls_allowed(records: pa.RecordBatch) -> pa.RecordBatch:
    """The same records under fields that allow the nulls that are there."""
    if _first_misplaced(records) is None:
        return records
    fields = [pa.field(field.name, loosened(field.type)) for field in records.schema]
    columns = [
        retyped(column, field.type) for column, field in zip(records.columns, fields, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _first_misplaced(records: pa.RecordBatch) -> str | None:
    for place, field, is_within in _strict_columns(records.schema):
        column = records.column(place)
        if not is_within:
            if column.null_count:
                return str(field.name)
            continue
        for found in _misplaced(field.name, field, column, 0):
            return found
    return None


@per_schema
def _strict_columns(schema: pa.Schema) -> list[tuple[int, pa.Field, bool]]:
    """The columns that allow no nulls somewhere, with their places, and whether that is within."""
    return [
        (place, field, _is_strict_within(field.type))
        for place, field in enumerate(schema)
        if _is_strict(field)
    ]


def _is_strict(field: pa.Field) -> bool:
    return not field.nullable or _is_strict_within(field.type)


def _is_strict_within(kind: pa.DataType) -> bool:
    return any(map(_is_strict, _within(kind)))


def _within(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        # A key that is null is none to Arrow either.
        return [kind.key_field.with_nullable(True), kind.item_field]
    return [kind.value_field] if is_list(kind) else []


def _misplaced(place: str, field: pa.Field, column: pa.Array, allowed: int) -> Iterator[str]:
    """Where there are nulls that may not be; `allowed` are those that something above is null."""
    if not field.nullable and column.null_count > allowed:
        yield place
    kind = field.type
    if not _is_strict_within(kind):
        return
    if pa.types.is_struct(kind):
        for inner, values in zip(kind, column.flatten(), strict=True):
            yield from _misplaced(f"{place}.{inner.name}", inner, values, column.null_count)
        return
    if pa.types.is_map(kind):
        # Arrow takes the elements of lists apart, and not those of maps, which are lists as well.
        pair = pa.struct([kind.key_field, kind.item_field])
        column = retyped(column, pa.list_(pa.field("entries", pair, nullable=False)))
    yield from _misplaced(f"{place}.element", column.type.value_field, column.flatten(), 0)
