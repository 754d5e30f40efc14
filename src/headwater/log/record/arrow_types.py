"""The Arrow types of a log: what it carries, how Parquet stores it, views, nulls, Python rows.

Views share their data, so a slice of a view column holds the data of the whole column. Arrow counts
and writes all of it with every slice. So views are converted to plain columns before records are
cut into frames, and converted back one frame at a time.

A null in a field that is not nullable is refused: Arrow ignores it and Parquet refuses it, so
nothing after such a record could be copied to the tier. A log written by an earlier version may
have such nulls; its readers get them under nullable fields.

A log takes more types than a stream carries, and Parquet returns some of them as others. Segments
of the tier and images of keyed states store those under a type of the same layout, or cast. Both
are lossless, because the records' own schema is stored beside them.

| type in the log | stored as | how |
| --- | --- | --- |
| date64 | timestamp in ms, without a zone | the same memory |
| time in s | int32 | the same memory |
| timestamp in s, duration | int64 | the same memory |
| timestamp in ms, µs or ns with any zone | the same in UTC | the same memory |
| decimals with a scale outside of their precision | the digits, scale 0 | the same memory |
| decimals of up to 38 digits | decimal128 | cast |
| large and view strings and binaries, binaries of 0 bytes | string, binary | cast |
| large and fixed-size lists | list | cast |

The log refuses types that no segment can hold: a record that was acknowledged must not stop the
copying of the records after it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from headwater.buffer.types import check_names
from headwater.core.errors import Refused


def retype(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same memory under a type of the same layout.

    A cast would refuse nulls below a null, where the inner field by itself allows none.
    """
    if column.type.equals(kind, check_metadata=True):
        return column
    return pa.array(_RetypedArray(column, kind))


Leaf = Callable[[pa.DataType], pa.DataType]


def nullable_type(kind: pa.DataType, leaf: Leaf = lambda kind: kind) -> pa.DataType:
    """The same shape with other leaves, if any, and with nulls allowed everywhere within."""
    return _with_leaves(kind, leaf, is_nullable=True)


def _with_leaves(
    kind: pa.DataType, leaf: Leaf, *, is_nullable: bool = False, keeps_lists: bool = True
) -> pa.DataType:
    def convert(inner: pa.DataType) -> pa.DataType:
        return _with_leaves(inner, leaf, is_nullable=is_nullable, keeps_lists=keeps_lists)

    if pa.types.is_struct(kind):
        return pa.struct(
            [pa.field(one.name, convert(one.type), is_nullable or one.nullable) for one in kind]
        )
    if pa.types.is_map(kind):
        return pa.map_(convert(kind.key_type), convert(kind.item_type))
    if is_list(kind):
        is_nullable_within = is_nullable or kind.value_field.nullable
        element = pa.field("element", convert(kind.value_type), is_nullable_within)
        if keeps_lists and pa.types.is_fixed_size_list(kind):
            return pa.list_(element, kind.list_size)
        is_large = keeps_lists and pa.types.is_large_list(kind)
        return pa.large_list(element) if is_large else pa.list_(element)
    return leaf(kind)


def is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


class _RetypedArray:
    """Exports an array under another type, by Arrow's C data interface."""

    def __init__(self, column: pa.Array, kind: pa.DataType) -> None:
        self._column = column
        self._kind = kind

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        _, array = self._column.__arrow_c_array__()
        return self._kind.__arrow_c_schema__(), array


_T = TypeVar("_T")
_REMEMBERED: Final = 16


def per_schema(compute: Callable[[pa.Schema], _T]) -> Callable[[pa.Schema], _T]:
    """Remember the answers for the last few schemas.

    Schemas are compared with all their metadata, which is cheap. To `lru_cache` those that differ
    in metadata alone would be one, to hash them takes longer than to compare a few, and those with
    extension types that were made in Python cannot be hashed at all.
    """
    remembered: tuple[tuple[pa.Schema, _T], ...] = ()

    def value_of(schema: pa.Schema) -> _T:
        nonlocal remembered
        for remembered_schema, value in remembered:
            if remembered_schema.equals(schema, check_metadata=True):
                return value
        value = compute(schema)
        # One assignment: another thread sees all of it or nothing.
        remembered = ((schema, value), *remembered[: _REMEMBERED - 1])
        return value

    return value_of


@per_schema
def _plain_types(schema: pa.Schema) -> dict[int, pa.DataType]:
    """The plain type of each column that has views at any depth, by its number."""
    kinds = {place: nullable_type(field.type, _plain_leaf) for place, field in enumerate(schema)}
    return {
        place: kind for place, kind in kinds.items() if kind != nullable_type(schema[place].type)
    }


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
        column = pa.concat_arrays([retype(column, nullable_type(field.type))]).cast(kind)
        records = records.set_column(place, field.with_type(kind), column)
    return records


def with_views(records: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """What `without_views` gave for records of this schema, or a part of it, as it was.

    Views that are made of a slice refer to all that it was cut from, so it is copied before.
    """
    for place in _plain_types(schema):
        field, column = schema[place], pa.concat_arrays([records.column(place)])
        column = retype(column.cast(nullable_type(field.type)), field.type)
        records = records.set_column(place, field, column)
    return records


def records_size_bytes(records: pa.RecordBatch) -> int:
    """Bytes of the records, without data that they only share."""
    return int(without_views(records).nbytes)


def check_nulls(records: pa.RecordBatch) -> None:
    """Refuse a null where none may be, naming the place."""
    place = _first_misplaced(records)
    if place is not None:
        raise Refused(
            f"column {place!r} holds a null, and its field is nullable=False: fill it in, or make "
            "the field nullable"
        )


def with_nulls_allowed(records: pa.RecordBatch) -> pa.RecordBatch:
    if _first_misplaced(records) is None:
        return records
    fields = [pa.field(field.name, nullable_type(field.type)) for field in records.schema]
    columns = [
        retype(column, field.type) for column, field in zip(records.columns, fields, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _first_misplaced(records: pa.RecordBatch) -> str | None:
    for place, field, is_within in _strict_columns(records.schema):
        column = records.column(place)
        if not is_within:
            if column.null_count:
                return str(field.name)
            continue
        for misplaced in _misplaced(field.name, field, column, 0):
            return misplaced
    return None


@per_schema
def _strict_columns(schema: pa.Schema) -> list[tuple[int, pa.Field, bool]]:
    """The columns that allow no nulls somewhere, by number, and whether that is within."""
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
        # Arrow itself refuses keys that are null.
        return [kind.key_field.with_nullable(True), kind.item_field]
    return [kind.value_field] if is_list(kind) else []


def _misplaced(place: str, field: pa.Field, column: pa.Array, allowed: int) -> Iterator[str]:
    """Where nulls are misplaced; `allowed` of them are below a null."""
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
        column = retype(column, pa.list_(pa.field("entries", pair, nullable=False)))
    yield from _misplaced(f"{place}.element", column.type.value_field, column.flatten(), 0)


_NOT_IN_PYTHON = (OverflowError, ValueError, LookupError)
"""What Arrow raises for times outside of the years 1 to 9999, and for unknown time zones."""


def python_rows(records: pa.RecordBatch) -> list[dict[str, Any]]:
    """Each record by the names of its columns.

    A value with a time that Python cannot hold has numbers for times, in the unit of its column;
    what other records hold changes nothing about it.
    """
    columns = [_values(column) for column in records.columns]
    names = records.schema.names
    if not columns:
        return [{} for _ in range(records.num_rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.Array) -> list[Any]:
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except _NOT_IN_PYTHON:
        return [_value(column.slice(place, 1)) for place in range(len(column))]


def _value(column: pa.Array) -> Any:
    try:
        return column.to_pylist()[0]
    except _NOT_IN_PYTHON:
        return retype(column, nullable_type(column.type, _numbered)).to_pylist()[0]


def _numbered(kind: pa.DataType) -> pa.DataType:
    if not pa.types.is_temporal(kind):
        return kind
    return pa.int32() if kind.bit_width == 32 else pa.int64()


_SIMPLE: Final = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_timestamp,
    pa.types.is_duration,
    pa.types.is_time,
    pa.types.is_date,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)


_MAX_DEPTH: Final = 16
_DIGITS_MAX: Final = 38
_TEXTS: Final = frozenset({pa.large_string(), pa.string_view()})
_BINARIES: Final = frozenset({pa.large_binary(), pa.binary_view(), pa.binary(0)})
_DECIMALS: Final[dict[int, Callable[[int, int], pa.DataType]]] = {
    32: pa.decimal32,
    64: pa.decimal64,
    128: pa.decimal128,
    256: pa.decimal256,
}


def parquet_type(column: str, kind: pa.DataType) -> pa.DataType:
    check_column_type(column, kind)
    return _parquet_type(kind)


class ParquetCasts(NamedTuple):
    """The intermediate types of a cast to the Parquet type and back. All their fields are nullable:
    a cast refuses nulls below a null in a field that is not."""

    between: pa.DataType
    """Of the same layout as the column."""
    shaped: pa.DataType
    """On the way back from Parquet: with the column's kinds of lists, and everything else as in
    Parquet. Arrow fills in the elements of a null while it builds fixed-size lists, and cannot do
    that with views."""


@functools.lru_cache(maxsize=1024)
def parquet_casts(kind: pa.DataType) -> ParquetCasts | None:
    """The casts from a column to its Parquet type; None if that has the same layout."""
    between = nullable_type(kind, _same_layout)
    if _with_leaves(between, _returned_unchanged, keeps_lists=False) == between:
        return None
    return ParquetCasts(between, _with_leaves(between, _returned_unchanged))


@functools.lru_cache(maxsize=1024)
def _parquet_type(kind: pa.DataType) -> pa.DataType:
    needed = parquet_casts(kind)
    if needed is None:
        return _with_leaves(kind, _same_layout)
    return _with_leaves(needed.between, _returned_unchanged, keeps_lists=False)


def check_column_type(place: str, kind: pa.DataType, depth: int = 0) -> None:
    """Raise `Refused` for a type that a log does not carry and a segment could not keep."""
    if depth > _MAX_DEPTH:
        raise Refused(f"column {place!r} is nested more than {_MAX_DEPTH} levels deep")
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            raise Refused(f"column {place!r} is a struct without fields: give it one, or drop it")
        check_names(f" of {place!r}", [field.name for field in kind])
        for field in kind:
            check_column_type(f"{place}.{field.name}", field.type, depth + 1)
    elif pa.types.is_map(kind):
        check_column_type(f"{place}.key", kind.key_type, depth + 1)
        check_column_type(f"{place}.value", kind.item_type, depth + 1)
    elif is_list(kind):
        check_column_type(f"{place}.element", kind.value_type, depth + 1)
    elif not any(is_kind(kind) for is_kind in _SIMPLE):
        raise Refused(
            f"column {place!r} is {kind}, which a log does not carry: "
            "cast it to a list, a string or a number, and decode what is a dictionary"
        )
    elif depth and pa.types.is_null(kind):
        # Arrow ends the process over a cast of some that have such fields, or cannot read them.
        raise Refused(
            f"column {place!r} is of the type null only: give it another type, or drop it"
        )


def _same_layout(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date64(kind):
        return pa.timestamp("ms")
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_timestamp(kind):
        # Parquet has no seconds: they would be multiplied, and not all of them can be.
        return pa.int64() if kind.unit == "s" else pa.timestamp(kind.unit, kind.tz and "UTC")
    if pa.types.is_time32(kind) and kind.unit == "s":
        return pa.int32()
    if pa.types.is_decimal(kind) and not 0 <= kind.scale <= kind.precision:
        return _DECIMALS[kind.bit_width](kind.precision, 0)
    return kind


def _returned_unchanged(kind: pa.DataType) -> pa.DataType:
    if kind in _TEXTS:
        return pa.string()
    if kind in _BINARIES:
        return pa.binary()
    if pa.types.is_decimal(kind) and kind.precision <= _DIGITS_MAX:
        return pa.decimal128(kind.precision, kind.scale)
    return kind


def to_parquet_column(column: pa.Array, stored: pa.DataType) -> pa.Array:
    if column.type.equals(stored, check_metadata=True):
        return column
    needed = parquet_casts(column.type)
    if needed is None:
        return retype(column, stored)
    return _cast_unchecked(retype(column, needed.between), stored)


def from_parquet_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type.equals(kind, check_metadata=True):
        return column
    needed = parquet_casts(kind)
    if needed is not None:
        column = _cast_unchecked(_cast_unchecked(column, needed.shaped), needed.between)
    return retype(column, kind)


def _cast_unchecked(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Unchecked: every value fits, and below a null there may be what does not."""
    return column.cast(kind, safe=False)
