"""Which types can hold the values of others, casts that change no value, and checks for nulls.

| from | widens to |
| --- | --- |
| int8, int16, int32 | int16, int32, int64 |
| float32 | float64 |
| decimal(p, s) | decimal(more than p, s) |
| list, map, struct | of wider elements; a struct also with more fields |

| function | used for | nullability inside | keys of a map |
| --- | --- | --- | --- |
| `widens` | plain types; the others build on it | – | – |
| `accepts` | records for a stream's columns | a missing field is nullable | same or narrower |
| `evolved_type` | the next declared version | the same, new fields nullable | the same |
| `common_type` | inferred columns; None: there is none | all nullable | the first's, for both |
| `extended_type` | rows; the cast refuses what does not fit | all nullable | the first's |

The type of a map's keys never changes, because Iceberg cannot change it in a table. Narrower keys
are carried in the type that the stream has.

Spark and Iceberg both make these widenings without rewriting data. A date is not widened to a
timestamp, nor an integer to a float or a decimal: readers would see other values than were written.

`exact_cast` also casts numbers to other types and refuses the first value that would change. It
never parses or formats text, and never drops a field with values.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.types import field_text
from headwater.core.errors import Refused


class Inexact(Refused):
    """The cast would change a value."""


def widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether every value of one plain type is a value of the other, which is wider."""
    if pa.types.is_signed_integer(narrow) and pa.types.is_signed_integer(wide):
        return bool(narrow.bit_width < wide.bit_width)
    if pa.types.is_floating(narrow) and pa.types.is_floating(wide):
        return bool(narrow.bit_width < wide.bit_width)
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        return bool(narrow.scale == wide.scale and narrow.precision < wide.precision)
    return False


def accepts(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a column of one type can be carried as the other without loss."""
    if source == target or widens(source, target):
        return True
    if pa.types.is_list(source) and pa.types.is_list(target):
        return accepts(source.value_type, target.value_type)
    if pa.types.is_map(source) and pa.types.is_map(target):
        return accepts(source.key_type, target.key_type) and accepts(
            source.item_type, target.item_type
        )
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        fields = {field.name: field for field in source}
        for field in target:
            match = fields.pop(field.name, None)
            if not (field.nullable if match is None else accepts(match.type, field.type)):
                return False
        return not fields
    return False


def evolved_type(old: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    """`new`, if it holds every value of `old`, with fields of structs in `old`'s order; or None."""
    if old == new or widens(old, new):
        return new
    if pa.types.is_list(old) and pa.types.is_list(new):
        kind = evolved_type(old.value_type, new.value_type)
        if kind is None or old.value_field.nullable != new.value_field.nullable:
            return None
        return pa.list_(pa.field("element", kind, old.value_field.nullable))
    if pa.types.is_map(old) and pa.types.is_map(new):
        kind = evolved_type(old.item_type, new.item_type)
        return pa.map_(old.key_type, kind) if kind and old.key_type == new.key_type else None
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return _evolved_struct(old, new)
    return None


def _evolved_struct(old: pa.StructType, new: pa.StructType) -> pa.DataType | None:
    added = {field.name: field for field in new}
    fields = []
    for field in old:
        next_field = added.pop(field.name, None)
        kind = None if next_field is None else evolved_type(field.type, next_field.type)
        if next_field is None or kind is None or next_field.nullable != field.nullable:
            return None
        fields.append(pa.field(field.name, kind, field.nullable))
    if not all(field.nullable for field in added.values()):
        return None
    return pa.struct([*fields, *added.values()])


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The narrowest type for the values of both, with everything nullable; None if there is none.

    Fields of a struct keep their order; fields that only `other` has come last. A map has the keys
    of `one`, which must hold those of `other`.
    """
    return _merged(one, other, must_hold_both=True)


def extended_type(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type, widened where possible, with the fields that only `other` has."""
    return _merged(kind, other, must_hold_both=False)


def _merged(one: pa.DataType, other: pa.DataType, *, must_hold_both: bool) -> pa.DataType | None:
    if one == other or widens(other, one):
        return one
    if pa.types.is_list(one) and pa.types.is_list(other):
        kind = _merged(one.value_type, other.value_type, must_hold_both=must_hold_both)
        return None if kind is None else pa.list_(pa.field("element", kind))
    if pa.types.is_map(one) and pa.types.is_map(other):
        item = _merged(one.item_type, other.item_type, must_hold_both=must_hold_both)
        holds_keys = accepts(other.key_type, one.key_type) or not must_hold_both
        return pa.map_(one.key_type, item) if item is not None and holds_keys else None
    if not pa.types.is_struct(one) or not pa.types.is_struct(other):
        if widens(one, other):
            return other
        return None if must_hold_both else one
    added = {field.name: field.type for field in other}
    kinds = {
        field.name: _merged(
            field.type, added.pop(field.name, field.type), must_hold_both=must_hold_both
        )
        for field in one
    }
    if any(kind is None for kind in kinds.values()):
        return None
    return pa.struct([pa.field(name, kind) for name, kind in {**kinds, **added}.items()])


def fill_untyped(
    kind: pa.DataType, recorded: pa.DataType | None, *, may_drop: bool = True
) -> pa.DataType:
    """The type, with the types of the stream's column in place of `pa.null()`.

    `[]`, `[null]` and `{"x": null}` have parts without a type. With `may_drop`, a field of a struct
    that has no type in the stream either is left out, because it is null anyway. The element of a
    list or map and the last field cannot be left out.
    """
    if pa.types.is_null(kind):
        return kind if recorded is None else all_nullable(recorded)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = recorded.value_type if recorded is not None and pa.types.is_list(recorded) else None
        value = fill_untyped(kind.value_type, inner, may_drop=may_drop)
        return kind if value == kind.value_type else pa.list_(pa.field("element", value))
    if pa.types.is_map(kind):
        inner = recorded.item_type if recorded is not None and pa.types.is_map(recorded) else None
        item = fill_untyped(kind.item_type, inner, may_drop=may_drop)
        return kind if item == kind.item_type else pa.map_(kind.key_type, item)
    if pa.types.is_struct(kind):
        return _typed_struct(kind, recorded, may_drop=may_drop)
    return kind


def _typed_struct(
    kind: pa.StructType, recorded: pa.DataType | None, *, may_drop: bool
) -> pa.DataType:
    inner = (
        {}
        if recorded is None or not pa.types.is_struct(recorded)
        else {f.name: f for f in recorded}
    )
    if not kind.num_fields:
        return kind if not inner else all_nullable(recorded)
    fields = []
    for field in kind:
        before = inner[field.name].type if field.name in inner else None
        filled = fill_untyped(field.type, before, may_drop=may_drop)
        fields.append(field if filled == field.type else pa.field(field.name, filled))
    if may_drop:
        typed = [field for field in fields if not pa.types.is_null(field.type)]
        fields = (
            typed
            or [pa.field(one.name, all_nullable(one.type)) for one in inner.values()]
            or fields
        )
    return pa.struct(fields)


def all_nullable(kind: pa.DataType) -> pa.DataType:
    """The type with everything inside it nullable, as in batches."""
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", all_nullable(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(all_nullable(kind.key_type), all_nullable(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, all_nullable(field.type)) for field in kind])
    return kind


def exact_cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values in another type; `Inexact` if a value would change."""
    source = column.type
    if source == kind:
        return column
    if column.null_count == len(column):
        return pa.nulls(len(column), kind)
    if accepts(source, all_nullable(kind)):
        # Arrow's cast drops fields of a struct that the other type lacks; none is dropped here.
        return column.cast(kind)
    if _is_number(source) and _is_number(kind):
        return _cast_numbers(column, kind)
    if pa.types.is_large_list(source) and pa.types.is_list(kind):
        try:
            return exact_cast(column.cast(pa.list_(source.value_field)), kind)
        except pa.ArrowException as error:
            raise Inexact(str(error)) from error
    if pa.types.is_list(source) and pa.types.is_list(kind):
        values = exact_cast(column.flatten(), kind.value_type)
        return pa.ListArray.from_arrays(_offsets(column), values, kind, mask=column.is_null())
    if pa.types.is_map(source) and pa.types.is_map(kind):
        entries = pc.list_flatten(map_entries(column))
        keys = exact_cast(pc.struct_field(entries, 0), kind.key_type)
        items = exact_cast(pc.struct_field(entries, 1), kind.item_type)
        return pa.MapArray.from_arrays(_offsets(column), keys, items, kind, mask=column.is_null())
    if pa.types.is_struct(source) and pa.types.is_struct(kind):
        return _cast_struct(column, kind)
    raise Inexact(f"{source} cannot be cast exactly to {kind}")


def _cast_struct(column: pa.StructArray, kind: pa.StructType) -> pa.Array:
    others = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
    children = []
    for field in kind:
        child = others.pop(field.name, None)
        if child is None:
            children.append(pa.nulls(len(column), field.type))
        else:
            children.append(exact_cast(child, field.type))
    for name, child in others.items():
        if child.null_count < len(child):
            raise Inexact(f"{kind} has no field {name!r}, which has values")
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=column.is_null())


def _cast_numbers(column: pa.Array, kind: pa.DataType) -> pa.Array:
    either = (column.type, kind)
    if any(map(pa.types.is_floating, either)) and any(map(pa.types.is_decimal, either)):
        raise Inexact(f"{column.type} cannot be cast exactly to {kind}")
    try:
        numbers = _rounded(column, kind)
        back = _rounded(numbers, column.type)
    except pa.ArrowException as error:
        raise Inexact(str(error)) from error
    if pa.types.is_floating(column.type):
        # Compared by their bits, because 0.0 equals -0.0. All NaNs count as equal.
        bits = pa.int32() if column.type == pa.float32() else pa.int64()
        same = pc.equal(column.view(bits), back.view(bits))
        same = pc.or_(same, pc.and_(pc.is_nan(column), pc.is_nan(back)))
    else:
        same = pc.equal(column, back)
    if not pc.all(same).as_py():
        row = pc.index(same, False).as_py()
        raise Inexact(f"{column[row].as_py()} is not a {kind}")
    return numbers


def _rounded(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Arrow's cast of numbers, which refuses some values that would change, but not all."""
    if pa.types.is_decimal(kind) and pa.types.is_integer(column.type):
        # Arrow requires digits for every integer of the type; here only these values count.
        column = column.cast(pa.decimal256(76, kind.scale))
    return column.cast(kind)


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _offsets(column: pa.Array) -> pa.Array:
    """The offset of each row among the flattened values, and the end of the last one."""
    if pa.types.is_map(column.type):
        starts = column.offsets
        lengths = pc.subtract(starts[1:], starts[:-1])
        lengths = pc.if_else(column.is_null(), pa.scalar(0, pa.int32()), lengths)
    else:
        lengths = pc.fill_null(pc.list_value_length(column), 0)
    ends = pc.cumulative_sum(lengths)
    return pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])


def map_entries(column: pa.MapArray) -> pa.ListArray:
    """The maps as lists of (key, value), for which Arrow has kernels."""
    entry = pa.struct([column.type.key_field, column.type.item_field])
    return column.cast(pa.list_(pa.field("entries", entry, nullable=False)))


def check_nulls(records: pa.RecordBatch) -> None:
    """Refuse nulls where the type of a column forbids them, at any depth. Arrow does not check."""
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
    """Whether the type forbids null somewhere inside."""
    if pa.types.is_list(kind):
        return not kind.value_field.nullable or is_strict(kind.value_type)
    if pa.types.is_map(kind):
        return is_strict(kind.item_type)
    if pa.types.is_struct(kind):
        return any(not field.nullable or is_strict(field.type) for field in kind)
    return False


def first_null(column: pa.Array, field: pa.Field, excused: pa.Array) -> int | None:
    """The first row with a null that `field` forbids, at any depth, except the excused rows."""
    rows = [] if field.nullable else [first_true(pc.and_not(pc.is_null(column), excused))]
    if is_strict(field.type):
        rows += _nulls_within(column, field.type, pc.or_(excused, pc.is_null(column)))
    return min((row for row in rows if row is not None), default=None)


def first_true(mask: pa.Array) -> int | None:
    """The first row where the mask is true."""
    row = int(pc.index(mask, True).as_py())
    return None if row < 0 else row


def _nulls_within(column: pa.Array, kind: pa.DataType, excused: pa.Array) -> list[int | None]:
    if pa.types.is_struct(kind):
        children = zip(column.flatten(), kind, strict=True)
        return [first_null(child, field, excused) for child, field in children]
    # Lists and maps: what is inside has rows of its own, each belonging to one row outside.
    if pa.types.is_map(kind):
        column = map_entries(column)
        inside, field = pc.struct_field(pc.list_flatten(column), 1), kind.item_field
    else:
        inside, field = pc.list_flatten(column), kind.value_field
    parents = pc.list_parent_indices(column)
    row = first_null(inside, field, excused.take(parents))
    return [None if row is None else int(parents[row].as_py())]
