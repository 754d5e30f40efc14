"""The record model: the Arrow columns of a record.

A batch of records has the stream's typed columns, or `_value`, and those of the reserved columns
below that are used. An unused column is absent and costs nothing: its default follows from the
batch.

| column | type | absent means |
| --- | --- | --- |
| `_key` | binary | no key |
| `_value` | binary | the typed columns are the value |
| `_headers` | list of (key: string, value: binary) | none |
| `_timestamp` | timestamp in µs, UTC | the ingestion time of its call |
| `_operation` | int8: 0 insert, 1 update, 2 delete, 3 refresh | insert |
| `_collection` | string | the stream's name |
| `_kind` | string | `entity` |
| `_rid` | int64 | 0 |
| `_refresh_records` | list of binary | none |
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.arrow_stream import check_valid
from headwater.buffer.conversion import exact_cast, fill_untyped, map_entries
from headwater.buffer.types import carried_schema, check_names, check_nested
from headwater.core import limits
from headwater.core.errors import LimitExceeded, Refused

KEY: Final = "_key"
VALUE: Final = "_value"
HEADERS: Final = "_headers"
TIMESTAMP: Final = "_timestamp"
OPERATION: Final = "_operation"

HEADERS_TYPE: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
RESERVED: Final[dict[str, pa.DataType]] = {
    KEY: pa.binary(),
    VALUE: pa.binary(),
    HEADERS: HEADERS_TYPE,
    TIMESTAMP: pa.timestamp("us", "UTC"),
    OPERATION: pa.int8(),
    "_collection": pa.string(),
    "_kind": pa.string(),
    "_rid": pa.int64(),
    "_refresh_records": pa.list_(pa.field("element", pa.binary())),
}


_VIEWS: Final = (pa.string_view(), pa.binary_view())
_NANOSECONDS: Final = (
    ". Neither Spark nor Iceberg supports nanoseconds: round them to microseconds first, as in "
    "pandas' .dt.floor('us') or pc.floor_temporal(column, unit='microsecond')"
)
INGESTED: Final = "_ingestion_timestamp"
POSITION_COLUMNS: Final = frozenset(
    {
        *("_lsn", "_partition", "_sequence", INGESTED),
        *("_topic", "_offset", "_timestampType", "_ingestionTimestamp"),
    }
)
"""Columns with the position of a record, which readers add (Spark's are in the second line). They
are dropped when rows that were read are produced again."""


class Operation(IntEnum):
    """What a change record does."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2
    REFRESH = 3


OPERATION_WORDS: Final = ", ".join(operation.name.lower() for operation in Operation)


@functools.cache
def _operation_words() -> pa.Array:
    # Created on first use: converting the first Python value makes pyarrow import pandas, which
    # would slow the start of each of Spark's processes.
    return pa.array([operation.name.lower() for operation in Operation])


def from_values(values: Sequence[bytes | None] | pa.Array) -> pa.RecordBatch:
    try:
        column = values if isinstance(values, pa.Array) else pa.array(values, pa.binary())
    except (pa.ArrowException, TypeError) as error:
        raise Refused(f"entries are bytes or None; encode text first ({error})") from error
    return pa.record_batch([cast_column(column, pa.binary(), VALUE)], names=[VALUE])


def from_arrow(data: pa.RecordBatch | pa.Table) -> list[pa.RecordBatch]:
    """Records from typed and reserved columns, in the types that a stream carries."""
    check_valid(data)
    table = _without_position_columns(
        data if isinstance(data, pa.Table) else pa.Table.from_batches([data])
    )
    schema = record_schema(table.schema)
    # Not in `record_schema`, which is also used for stored batches: names do not make them damaged.
    check_names("", schema.names)
    for field in schema:
        if field.name not in RESERVED:
            check_nested(field.name, field.type)
    # Including the metadata of fields: the name of an extension type would restore that type.
    if not table.schema.equals(schema, check_metadata=True):
        check_expansion(table)
        columns = [_cast_chunks(table.column(field.name), field) for field in schema]
        table = pa.table(columns, schema=schema)
    if OPERATION in schema.names:
        check_operations(table.column(OPERATION))
    batches: list[pa.RecordBatch] = table.combine_chunks().to_batches()
    return batches


def without_untyped(data: Any, schema: pa.Schema | None, *, may_drop: bool = True) -> Any:
    """Give columns, and parts of them, without a type (pa.null()) the type that the stream has.

    With `may_drop`, those that have no type in the stream either are left out, because they are
    null anyway, unless nothing else would be left.
    """
    if not isinstance(data, pa.RecordBatch | pa.Table):
        return data
    untyped = [
        field
        for field in data.schema
        if (pa.types.is_null(field.type) or pa.types.is_nested(field.type))
        and not field.name.startswith("_")
    ]
    if not untyped or len(set(data.schema.names)) < data.num_columns:
        return data
    recorded = {} if schema is None else {field.name: field.type for field in schema}
    table: Any = data
    for field in untyped:
        kind = fill_untyped(field.type, recorded.get(field.name), may_drop=may_drop)
        if kind == field.type and not pa.types.is_null(kind):
            continue
        if table is data:
            check_valid(data)
            table = data if isinstance(data, pa.Table) else pa.Table.from_batches([data])
        place = table.schema.get_field_index(field.name)
        if not pa.types.is_null(kind):
            chunks = [exact_cast(chunk, kind) for chunk in table.column(place).chunks]
            column = pa.chunked_array(chunks, kind)
            table = table.set_column(place, pa.field(field.name, kind, field.nullable), column)
        elif may_drop and table.num_columns > 1:
            table = table.remove_column(place)
    return table


def _without_position_columns(table: pa.Table) -> pa.Table:
    positions = [name for name in table.schema.names if name in POSITION_COLUMNS]
    if table.num_rows and positions and len(positions) == table.num_columns:
        raise Refused(
            f"these rows have only {', '.join(positions)}: columns with positions of records are "
            "not carried"
        )
    return table.drop_columns(positions) if positions else table


def record_schema(schema: pa.Schema) -> pa.Schema:
    """The schema in which rows of `schema` are carried; `Refused` names what cannot be."""
    names = schema.names
    if len(set(names)) < len(names):
        doubled = min(name for name in names if names.count(name) > 1)
        raise Refused(f"column {doubled!r} appears more than once")
    unknown = [name for name in names if name.startswith("_") and name not in RESERVED]
    if unknown:
        raise Refused(
            f"column {unknown[0]!r}: names that begin with '_' are reserved; known are "
            f"{', '.join(RESERVED)}"
        )
    typed = [name for name in names if not name.startswith("_")]
    if typed and VALUE in names:
        raise Refused(f"a record has {VALUE} or typed columns ({typed[0]!r}, …), not both")
    columns = pa.schema([field for field in schema if field.name in typed])
    carried = carried_schema(columns, of_rows=True)
    reserved = [pa.field(name, RESERVED[name]) for name in RESERVED if name in names]
    return pa.schema([*reserved, *carried])


def operation_names(codes: pa.Array) -> pa.Array:
    return _operation_words().take(codes)


def check_operations(codes: pa.Array | pa.ChunkedArray) -> None:
    least, most = pc.min_max(codes).as_py().values()
    if least is not None and (least < 0 or most > max(Operation)):
        raise Refused(f"{OPERATION}: operations are {OPERATION_WORDS}, or 0 to {max(Operation)}")


def check_sizes(batch: pa.RecordBatch) -> None:
    """Refuse a record above RECORD_MAX_BYTES.

    Records are measured only if the batch is larger than the limit.
    """
    if batch.nbytes <= limits.RECORD_MAX_BYTES:
        return
    sizes = None
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            lengths = pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())
            sizes = lengths if sizes is None else pc.add(sizes, lengths)
        elif pa.types.is_nested(column.type) and column.nbytes > limits.RECORD_MAX_BYTES:
            rows = range(len(column))
            check_largest([column.slice(row, 1).nbytes for row in rows], f" in {name!r}")
    largest = 0 if sizes is None else pc.max(sizes).as_py() or 0
    if largest > limits.RECORD_MAX_BYTES:
        raise _too_large(pc.index(sizes, largest).as_py(), largest)


def check_largest(sizes: list[int], where: str = "") -> None:
    """Refuse a size above RECORD_MAX_BYTES; each is that of one record."""
    largest = max(sizes)
    if largest > limits.RECORD_MAX_BYTES:
        raise _too_large(sizes.index(largest), largest, where)


def _too_large(row: int, size_bytes: int, where: str = "") -> LimitExceeded:
    return LimitExceeded(
        f"record {row} has {size_bytes:,} bytes{where}; RECORD_MAX_BYTES is "
        f"{limits.RECORD_MAX_BYTES:,}"
    )


def cast_column(column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """The column in the type in which it is carried."""
    if column.type.equals(kind, check_metadata=True):
        return column
    try:
        if pa.types.is_dictionary(column.type) and column.type.value_type in _VIEWS:
            # Arrow decodes no dictionary of views, as polars has its categories.
            words = column.dictionary.cast(kind)
            column = pa.DictionaryArray.from_arrays(column.indices, words)
        result = column.cast(kind)
        result.validate(full=True)
        return result
    except pa.ArrowException as error:
        cure = _NANOSECONDS if "[ns" in str(column.type) and "lose data" in str(error) else ""
        raise Refused(f"{name} is {column.type}, not {kind}: {error}{cure}") from error


def _cast_chunks(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if column.type.equals(field.type, check_metadata=True):
        return column
    source = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if field.name in RESERVED and not pa.types.is_null(source):
        if field.name == OPERATION and _is_text(source):
            words = [cast_column(chunk, pa.string(), OPERATION) for chunk in column.chunks]
            return pa.chunked_array(map(_codes_of_words, words), type=pa.int8())
        # Arrow's cast would parse text as numbers and format numbers as text. Whole floats, which
        # pandas uses for integers with nulls, are cast.
        is_number, is_text = pa.types.is_integer(field.type), pa.types.is_string(field.type)
        is_numeric = pa.types.is_integer(source) or pa.types.is_floating(source)
        if (is_number and not is_numeric) or (is_text and not _is_text(source)):
            raise Refused(f"{field.name} is {source}, not {field.type}: cast it")
    return pa.chunked_array(
        [cast_column(chunk, field.type, field.name) for chunk in column.chunks], field.type
    )


def _codes_of_words(words: pa.Array) -> pa.Array:
    codes = pc.index_in(words, _operation_words())
    if codes.null_count:
        raise Refused(f"operations are {OPERATION_WORDS}")
    return codes.cast(pa.int8())


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.string_view())


# Dictionaries and views refer to one value many times: a thousand indices of a value of 1 MiB
# expand to 1 GiB in the batch. The expanded size is computed from the lengths before anything is
# allocated.

_OF_VARIABLE_SIZE: Final = frozenset(
    {pa.binary(), pa.string(), pa.large_binary(), pa.large_string()}
)


def check_expansion(table: pa.Table) -> None:
    """Refuse columns that expand to more than EXPANDED_MAX_BYTES."""
    total = 0
    for name, column in zip(table.schema.names, table.columns, strict=True):
        if not _shares_values(column.type):
            continue
        total += sum(map(_written_out_bytes, column.chunks))
        if total > limits.EXPANDED_MAX_BYTES:
            raise LimitExceeded(
                f"column {name!r} is {column.type}: expanded, as it is carried, the call has "
                f"{total:,} bytes, and EXPANDED_MAX_BYTES is {limits.EXPANDED_MAX_BYTES:,}. Split "
                "it into several calls"
            )


def _shares_values(kind: pa.DataType) -> bool:
    """Whether several rows of a type may share the memory of one value."""
    if pa.types.is_dictionary(kind) or _is_view(kind):
        return True
    return any(_shares_values(kind.field(place).type) for place in range(kind.num_fields))


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary_view(kind) or pa.types.is_string_view(kind))


def _written_out_bytes(column: pa.Array) -> int:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _total(_lengths(column.dictionary).take(column.indices))
    if pa.types.is_struct(kind):
        return sum(map(_written_out_bytes, column.flatten()))
    if pa.types.is_map(kind):
        return _written_out_bytes(map_entries(column).flatten())
    if pa.types.is_nested(kind):
        return _written_out_bytes(column.flatten())
    return _total(_lengths(column))


def _lengths(column: pa.Array) -> pa.Array:
    """The length of every value in bytes; null for a null."""
    kind = column.type
    if _is_view(kind):
        # Arrow has no kernel for views. A view begins with the length of its value.
        views = pa.Array.from_buffers(
            pa.binary(16), len(column), column.buffers()[:2], offset=column.offset
        )
        return pc.binary_slice(views, 0, 4).view(pa.int32())
    if kind in _OF_VARIABLE_SIZE:
        return pc.binary_length(column)
    return pa.repeat(pa.scalar(_width_bytes(kind), pa.int64()), len(column))


def _width_bytes(kind: pa.DataType) -> int:
    """The width of a fixed-width type; 0 for types that cannot be expanded."""
    try:
        return -(-int(kind.bit_width) // 8)
    except ValueError:
        return 0


def _total(lengths: pa.Array) -> int:
    return int(pc.sum(lengths.cast(pa.int64())).as_py() or 0)
