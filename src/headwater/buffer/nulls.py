"""Nulls where a type allows none, at any depth.

Arrow checks neither: whoever reads such a column as what it says finds a value that is not there.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.type_text import field_text
from headwater.core.errors import Refused


def check_nulls(records: pa.RecordBatch) -> None:
    """Refuse records that do not hold to what their own columns say."""
    for field in records.schema:
        if field.nullable and not is_strict(field.type):
            continue
        row = first_null(records.column(field.name), field, pa.repeat(False, records.num_rows))
        if row is not None:
            raise Refused(
                f"column {field.name!r} is {field_text(field)}, and record {row} has null there: "
                "give it a value, or make the column, or the field within it, nullable"
            )


def is_strict(kind: pa.DataType) -> bool:
    """Whether something inside a type may not be null."""
    if pa.types.is_list(kind):
        return not kind.value_field.nullable or is_strict(kind.value_type)
    if pa.types.is_map(kind):
        return is_strict(kind.item_type)
    if pa.types.is_struct(kind):
        return any(not field.nullable or is_strict(field.type) for field in kind)
    return False


def first_null(column: pa.Array, field: pa.Field, excused: pa.Array) -> int | None:
    """The first row with a null that `field` does not allow, at any depth; not of those excused."""
    rows = [] if field.nullable else [first(pc.and_not(pc.is_null(column), excused))]
    if is_strict(field.type):
        rows += _nulls_within(column, field.type, pc.or_(excused, pc.is_null(column)))
    return min((row for row in rows if row is not None), default=None)


def first(mask: pa.Array) -> int | None:
    """The first place where the mask holds."""
    found = int(pc.index(mask, True).as_py())
    return None if found < 0 else found


def _nulls_within(column: pa.Array, kind: pa.DataType, excused: pa.Array) -> list[int | None]:
    if pa.types.is_struct(kind):
        children = zip(column.flatten(), kind, strict=True)
        return [first_null(child, field, excused) for child, field in children]
    # Lists and maps: what is inside has rows of its own, each belonging to one row outside.
    if pa.types.is_map(kind):
        entry = pa.struct([column.type.key_field, column.type.item_field])
        column = column.cast(pa.list_(pa.field("entries", entry, nullable=False)))
        inside, field = pc.struct_field(pc.list_flatten(column), 1), kind.item_field
    else:
        inside, field = pc.list_flatten(column), kind.value_field
    parents = pc.list_parent_indices(column)
    row = first_null(inside, field, excused.take(parents))
    return [None if row is None else int(parents[row].as_py())]
