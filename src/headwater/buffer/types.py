"""Which Arrow types a stream carries, and what becomes of the others.

A stream is read by Spark and written to Iceberg, so it carries what both can hold. Types that
differ only in layout, or that fit into a wider one without loss, are mapped; the rest are
refused when they are produced, while the producer can still do something about it.

| given | carried as |
| --- | --- |
| uint8, uint16, uint32 | int16, int32, int64 |
| float16 | float32 |
| large and view strings and binaries, fixed-size binaries | string, binary |
| large and fixed-size lists | list |
| dictionary | its values |
| date64 | date32 |
| timestamp in s or ms, with any zone | timestamp in µs, in UTC |
| timestamp in s or ms, without a zone | timestamp in µs, without a zone |
| timestamp in ns, of rows | the same in µs, where each is a whole number of them; else refused |
| timestamp in ns, in a schema that is declared | refused |
| uint64, decimal256, time, duration, interval, union, list view, null | refused |
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from headwater.core.errors import Refused

_WIDER: Final[dict[pa.DataType, pa.DataType]] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
_CARRIED: Final = frozenset(
    {
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
    }
)
_ADVICE: Final = {
    "uint64": "cast it to int64, or to decimal(20, 0)",
    "time": "cast it to a string, or to an integer of the unit you mean",
    "duration": "cast it to an integer of the unit you mean",
    "null": "give it a type, or declare the stream's schema: nothing says what may come there",
    # Arrow's own cast to a list makes offsets that point anywhere.
    "list_view": "make a list of it, as in pa.array(column.to_pylist())",
    "large_list_view": "make a list of it, as in pa.array(column.to_pylist())",
    "decimal256": "cast it to decimal128 (at most 38 digits)",
}
# Nesting deeper than this is a mistake, and would overflow recursion somewhere else.
_MAX_DEPTH: Final = 16


def carried_type(kind: pa.DataType, column: str, *, depth: int = 0) -> pa.DataType:
    """The type a column of type `kind` is carried as; `Refused` if there is none."""
    if depth > _MAX_DEPTH:
        raise Refused(f"column {column!r} is nested more than {_MAX_DEPTH} levels deep")
    if kind in _CARRIED:
        return kind
    if kind in _WIDER:
        return _WIDER[kind]
    if pa.types.is_dictionary(kind):
        return carried_type(kind.value_type, column, depth=depth + 1)
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_decimal(kind) and kind.bit_width <= 128:
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return _carried_timestamp(kind, column)
    nested = _carried_nested(kind, column, depth + 1)
    if nested is not None:
        return nested
    raise _refused(kind, column)


def carried_schema(schema: pa.Schema, *, of_rows: bool = False) -> pa.Schema:
    """The schema that a stream carries rows of `schema` under.

    Times in nanoseconds, as pandas has them, may become microseconds where the cast `of_rows` then
    refuses what would lose something. What is declared is meant as it is.
    """
    fields = []
    for field in schema:
        kind = _in_microseconds(field.type) if of_rows else field.type
        fields.append(pa.field(field.name, carried_type(kind, field.name), field.nullable))
    return pa.schema(fields)


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_in_microseconds(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_microseconds(field.type)) for field in kind.fields])
    if pa.types.is_map(kind):
        return pa.map_(_in_microseconds(kind.key_type), _in_microseconds(kind.item_type))
    if pa.types.is_dictionary(kind):
        return _in_microseconds(kind.value_type)
    return kind


def check_names(place: str, names: list[str]) -> None:
    """Refuse columns, or fields of one, that Spark could not name or tell apart."""
    seen: dict[str, str] = {}
    for name in names:
        if not name:
            raise Refused(f"a column{place} has no name: rename it; Spark cannot hold it")
        before = seen.get(name.lower())
        if before == name:
            raise Refused(f"column {name!r}{place} appears more than once")
        if before is not None:
            raise Refused(
                f"columns {before!r} and {name!r}{place} differ in capitals alone; Spark does not "
                "tell them apart: rename one"
            )
        seen[name.lower()] = name


def check_nested(place: str, kind: pa.DataType) -> None:
    """Refuse what Spark cannot hold within a carried type."""
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            raise Refused(
                f"column {place!r} is a struct without fields, of which nothing can be recorded: "
                "give it a field, or declare the stream's schema"
            )
        check_names(f" of {place!r}", [field.name for field in kind])
        for field in kind:
            check_nested(f"{place}.{field.name}", field.type)
    elif pa.types.is_list(kind):
        check_nested(f"{place}.element", kind.value_type)
    elif pa.types.is_map(kind):
        check_nested(f"{place}.key", kind.key_type)
        check_nested(f"{place}.value", kind.item_type)
    elif pa.types.is_decimal(kind) and not 0 <= kind.scale <= kind.precision:
        raise Refused(f"column {place!r} is {kind}: its scale lies between 0 and its precision")


def is_untyped(kind: pa.DataType) -> bool:
    """Whether nothing says what may come somewhere in the type: `[]`, `{}`, a null."""
    if pa.types.is_nested(kind):
        parts = [kind.field(place).type for place in range(kind.num_fields)]
        return not parts or any(map(is_untyped, parts))
    return bool(pa.types.is_null(kind))


def _carried_timestamp(kind: pa.TimestampType, column: str) -> pa.DataType:
    if kind.unit == "ns":
        raise Refused(
            f"column {column!r} is {kind}: neither Spark nor Iceberg holds nanoseconds; cast it to "
            "microseconds (pc.cast(column, pa.timestamp('us', 'UTC'), safe=False))"
        )
    return pa.timestamp("us", "UTC" if kind.tz else None)


def _carried_nested(kind: pa.DataType, column: str, depth: int) -> pa.DataType | None:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        item = carried_type(kind.value_type, f"{column}.element", depth=depth)
        return pa.list_(pa.field("element", item, kind.value_field.nullable))
    if pa.types.is_map(kind):
        key = carried_type(kind.key_type, f"{column}.key", depth=depth)
        return pa.map_(key, carried_type(kind.item_type, f"{column}.value", depth=depth))
    if pa.types.is_struct(kind):
        return pa.struct(
            [
                pa.field(
                    f.name, carried_type(f.type, f"{column}.{f.name}", depth=depth), f.nullable
                )
                for f in kind.fields
            ]
        )
    return None


def _refused(kind: pa.DataType, column: str) -> Refused:
    advice = next((text for name, text in _ADVICE.items() if str(kind).startswith(name)), None)
    cure = advice or "cast it to a type that both hold"
    return Refused(f"column {column!r} is {kind}, which Spark or Iceberg cannot hold: {cure}")
