"""The Parquet type in which each column of a log is stored, without loss.

A log takes more types than a stream carries, and Parquet returns some of them as others. Those are
stored under a type of the same layout, or cast to another type. Both are lossless, because the
records' own schema is stored beside them. Segments of the tier and images of keyed states use it.

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

All other types are stored as they are. The log refuses types that no segment can hold: a record
that was acknowledged must not stop the copying of the records after it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, NamedTuple

import pyarrow as pa

from headwater.buffer.types import check_names
from headwater.core.errors import Refused
from headwater.log.record.hashes import is_hashable_type
from headwater.log.record.layout import list_like, nullable_type, retype

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


def check_column_type(column: str, kind: pa.DataType) -> None:
    """Raise `Refused` for a type that a log does not carry and a segment could not keep."""
    if not is_hashable_type(kind):
        raise Refused(
            f"column {column!r} is {kind}, which a log does not carry: "
            "cast it to a list, a string or a number, and decode what is a dictionary"
        )
    _check_within(column, kind, 0)


def parquet_type(column: str, kind: pa.DataType) -> pa.DataType:
    """The type that a segment keeps a column in."""
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
    between = nullable_type(kind, _leaf_of_same_layout)
    if _castable(between) == between:
        return None
    return ParquetCasts(between, _castable(between, keeps_lists=True))


@functools.lru_cache(maxsize=1024)
def _parquet_type(kind: pa.DataType) -> pa.DataType:
    needed = parquet_casts(kind)
    return _same_layout(kind) if needed is None else _castable(needed.between)


def _check_within(place: str, kind: pa.DataType, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise Refused(f"column {place!r} is nested more than {_MAX_DEPTH} levels deep")
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            raise Refused(f"column {place!r} is a struct without fields: give it one, or drop it")
        check_names(f" of {place!r}", [field.name for field in kind])
        for field in kind:
            _check_within(f"{place}.{field.name}", field.type, depth + 1)
    elif pa.types.is_map(kind):
        _check_within(f"{place}.key", kind.key_type, depth + 1)
        _check_within(f"{place}.value", kind.item_type, depth + 1)
    elif pa.types.is_nested(kind):
        _check_within(f"{place}.element", kind.value_type, depth + 1)
    elif depth and pa.types.is_null(kind):
        # Arrow ends the process over a cast of some that have such fields, or cannot read them.
        raise Refused(f"column {place!r} is of no type but null: give it one, or drop it")


def _same_layout(kind: pa.DataType) -> pa.DataType:
    """What the same memory is called in Parquet."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _same_layout(one.type), one.nullable) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(_same_layout(kind.key_type), _same_layout(kind.item_type))
    if pa.types.is_nested(kind):
        inner = _same_layout(kind.value_type)
        return list_like(kind, pa.field("element", inner, kind.value_field.nullable))
    return _leaf_of_same_layout(kind)


def _leaf_of_same_layout(kind: pa.DataType) -> pa.DataType:
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


def _castable(kind: pa.DataType, *, keeps_lists: bool = False) -> pa.DataType:
    """The type that Parquet returns unchanged; with `keeps_lists` the kinds of lists stay."""
    if kind in _TEXTS:
        return pa.string()
    if kind in _BINARIES:
        return pa.binary()
    if pa.types.is_decimal(kind) and kind.precision <= _DIGITS_MAX:
        return pa.decimal128(kind.precision, kind.scale)
    if not pa.types.is_nested(kind):
        return kind
    within = functools.partial(_castable, keeps_lists=keeps_lists)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, within(one.type), one.nullable) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(within(kind.key_type), within(kind.item_type))
    element = pa.field("element", within(kind.value_type), kind.value_field.nullable)
    return list_like(kind, element) if keeps_lists else pa.list_(element)


def to_parquet_column(column: pa.Array, stored: pa.DataType) -> pa.Array:
    """A column in its Parquet type."""
    if column.type.equals(stored, check_metadata=True):
        return column
    needed = parquet_casts(column.type)
    if needed is None:
        return retype(column, stored)
    return _cast_unchecked(retype(column, needed.between), stored)


def from_parquet_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column from Parquet, in its own type."""
    if column.type.equals(kind, check_metadata=True):
        return column
    needed = parquet_casts(kind)
    if needed is not None:
        column = _cast_unchecked(_cast_unchecked(column, needed.shaped), needed.between)
    return retype(column, kind)


def _cast_unchecked(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Unchecked: every value fits, and below a null there may be what does not."""
    return column.cast(kind, safe=False)
