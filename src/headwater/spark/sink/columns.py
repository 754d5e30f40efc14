"""The columns of a DataFrame that is written, the records they become, and their partitions.

A DataFrame whose columns are all among those of Spark's Kafka source and sink is written raw:
`value`, and `key`, `headers`, `partition` and `timestamp` if present. Any other is written typed:
its columns are the record's, and reserved columns begin with an underscore. Columns that a read
adds and a write cannot set (`topic`, `offset`, …) are left out, so a DataFrame that was read can be
written as it is.

A record goes to the partition that its row names; else to the one of its key, as Kafka's client
chooses it; else to the task's current partition: records without a key stay together for one batch,
and the next batch goes to the next partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headwater.buffer.partitioner import NO_PARTITION, partition_keys
from headwater.buffer.records import (
    HEADERS,
    KEY,
    OPERATION,
    RESERVED,
    TIMESTAMP,
    VALUE,
    from_arrow,
    record_schema,
    without_untyped,
)
from headwater.buffer.stream import Stream
from headwater.core.errors import Refused

PARTITION: Final = "_partition"
_RAW: Final = {
    "key": KEY,
    "value": VALUE,
    "headers": HEADERS,
    "timestamp": TIMESTAMP,
    "partition": PARTITION,
}
_RAW_IGNORED: Final = frozenset(
    {"topic", "offset", "timestampType", "ingestionTimestamp", "metadata"}
)
_TYPED_IGNORED: Final = frozenset({f"_{name}" for name in _RAW_IGNORED})
_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
_TEXT: Final = (BinaryType, StringType)
_TIMES: Final = (TimestampType, TimestampNTZType)
_TYPES: Final[dict[str, tuple[tuple[type[DataType], ...], str]]] = {
    KEY: (_TEXT, "binary or string"),
    VALUE: (_TEXT, "binary or string"),
    HEADERS: ((ArrayType,), "array<struct<key: string, value: binary>>"),
    TIMESTAMP: (_TIMES, "timestamp"),
    PARTITION: (_INTEGERS, "int"),
}
"""The Spark types that a reserved column may have."""


class RoutedRecords(NamedTuple):
    """Rows as records of the stream, and the partitions that the rows name."""

    records: pa.RecordBatch
    partitions: pa.Array | None
    """Null if the row names no partition."""


class SinkColumns:
    """How columns become parts of records. Made from the schema alone; small, and safe to send."""

    def __init__(self, schema: StructType) -> None:
        names = schema.fieldNames()
        self.is_raw = all(name in _RAW or name in _RAW_IGNORED for name in names)
        self.record_names = dict(_raw(names) if self.is_raw else _typed(names))
        """Name in the DataFrame → name in the record."""
        for field in schema.fields:
            if field.name in self.record_names:
                _check_type(field.name, self.record_names[field.name], field.dataType)

    def resolve(self, stream: Stream) -> None:
        """Resolve what the columns are in this stream; `Refused` if it cannot have such rows."""
        if not self.is_raw or stream.schema is None:
            return
        declared = stream.schema.names
        if not all(name in declared for name in self.record_names):
            raise Refused(
                f"stream {stream.name!r} has the columns {', '.join(declared)}, and the DataFrame "
                f"has only {', '.join(self.record_names)}, which are opaque values: select the "
                "stream's columns, with _key, _headers, … for the rest of the record"
            )
        self.is_raw, self.record_names = False, {name: name for name in self.record_names}

    def record_schema(self, schema: pa.Schema, stream: Stream) -> pa.Schema:
        """The schema of the records, without columns that have no type."""
        written = pa.schema(
            schema.field(name).with_name(record_name)
            for name, record_name in self.record_names.items()
        )
        empty = without_untyped(written.empty_table(), stream.schema)
        return record_schema(
            pa.schema([field for field in empty.schema if field.name != PARTITION])
        )

    def records(self, batch: pa.RecordBatch, stream: Stream) -> RoutedRecords:
        """The rows of an Arrow batch as records with the stream's schema."""
        columns = {self.record_names[name]: batch.column(name) for name in self.record_names}
        partitions = columns.pop(PARTITION, None)
        if OPERATION in columns and columns[OPERATION].null_count:
            columns[OPERATION] = _insert_where_null(columns[OPERATION])
        if HEADERS in columns:
            columns[HEADERS] = _headers(columns[HEADERS])
        arranged = without_untyped(pa.table(columns) if columns else pa.table({}), stream.schema)
        batches = from_arrow(arranged.combine_chunks())
        fitted = stream.fit(batches[0]) if batches else None
        if fitted is None:
            return RoutedRecords(pa.record_batch([], schema=pa.schema([])), None)
        return RoutedRecords(fitted, None if partitions is None else partitions.cast(pa.int64()))


def _raw(names: list[str]) -> Mapping[str, str]:
    if "value" not in names:
        raise Refused(
            f"the DataFrame has the columns {', '.join(names) or 'of nothing'}, and no `value`: a "
            "raw write takes value, and key, headers, partition and timestamp if they are there; "
            "any other column makes it a typed one"
        )
    return {name: _RAW[name] for name in names if name in _RAW}


def _typed(names: list[str]) -> Mapping[str, str]:
    reserved = {*RESERVED, PARTITION, *_TYPED_IGNORED}
    unknown = [name for name in names if name.startswith("_") and name not in reserved]
    if unknown:
        raise Refused(
            f"column {unknown[0]!r}: names that begin with '_' are reserved; known are "
            f"{', '.join(sorted(reserved - {VALUE}))}"
        )
    written = {name: name for name in names if name not in _TYPED_IGNORED}
    typed = [name for name in written if not name.startswith("_")]
    if VALUE in written and typed:
        raise Refused(f"a record has {VALUE} or typed columns ({typed[0]!r}, …), not both")
    if not typed and VALUE not in written and KEY not in written:
        raise Refused("the DataFrame has no column that a record could be made of")
    return written


def _check_type(name: str, target: str, kind: DataType) -> None:
    if target not in _TYPES:
        return
    wanted, shown = _TYPES[target]
    if not isinstance(kind, wanted):
        raise Refused(
            f"column {name!r} is {kind.simpleString()}, and {shown} is needed: cast it"
            + (", or write it as a typed column under another name" if target == VALUE else "")
        )


def _insert_where_null(operations: pa.Array) -> pa.Array:
    filler = "insert" if pa.types.is_string(operations.type) else 0
    return pc.fill_null(operations, pa.scalar(filler, operations.type))


def _headers(column: pa.Array) -> pa.Array:
    try:
        return column.cast(RESERVED[HEADERS])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise Refused(
            f"headers are {column.type}, and array<struct<key: string, value: binary>> is needed "
            f"({error})"
        ) from error


class Router:
    """Distributes the records of one task over the partitions."""

    def __init__(self, stream: Stream, task: int, batch_bytes: int) -> None:
        self._stream = stream
        self._turn = task % stream.partitions
        self._batch_bytes = batch_bytes
        self._turn_bytes = 0

    def route(
        self, records: pa.RecordBatch, wanted: pa.Array | None
    ) -> list[tuple[int, pa.RecordBatch]]:
        """The records by partition, in their original order within each."""
        if not records.num_rows:
            return []
        chosen = None if wanted is None else self._check_partitions(wanted)
        if chosen is None or chosen.null_count:
            chosen = self._by_key(records, chosen)
        if chosen is None:
            return [(self._take_turn(records.nbytes), records)]
        if chosen.null_count:
            turn = self._take_turn(records.nbytes * chosen.null_count // records.num_rows)
            chosen = pc.fill_null(chosen, turn)
        return _split(records, chosen)

    def _check_partitions(self, wanted: pa.Array) -> pa.Array:
        extremes, last = pc.min_max(wanted).as_py(), self._stream.partitions - 1
        for number in extremes.values():
            if number is not None and not 0 <= number <= last:
                there = f"partitions 0 to {last}" if last else "the partition 0 alone"
                raise Refused(
                    f"stream {self._stream.name!r} has {there}, and a row asks for {number}. Leave "
                    "the column out to let the key decide"
                )
        return wanted.cast(pa.int32())

    def _by_key(self, records: pa.RecordBatch, chosen: pa.Array | None) -> pa.Array | None:
        if KEY not in records.schema.names:
            return chosen
        partitions = self._stream.partitions
        if partitions == 1:
            by_key = pa.repeat(pa.scalar(0, pa.int32()), records.num_rows)
        else:
            hashed = partition_keys(records.column(KEY), partitions)
            by_key = pc.if_else(pc.equal(hashed, NO_PARTITION), pa.scalar(None, pa.int32()), hashed)
        return by_key if chosen is None else pc.coalesce(chosen, by_key)

    def _take_turn(self, size_bytes: int) -> int:
        if self._turn_bytes >= self._batch_bytes:
            self._turn, self._turn_bytes = (self._turn + 1) % self._stream.partitions, 0
        self._turn_bytes += size_bytes
        return self._turn


def _split(records: pa.RecordBatch, chosen: pa.Array) -> list[tuple[int, pa.RecordBatch]]:
    counts = {one["values"]: one["counts"] for one in pc.value_counts(chosen).to_pylist()}
    if len(counts) == 1:
        return [(next(iter(counts)), records)]
    # A stable sort keeps the order of the records of a partition.
    ordered = records.take(pc.sort_indices(chosen))
    parts, start = [], 0
    for partition in sorted(counts):
        parts.append((partition, ordered.slice(start, counts[partition])))
        start += counts[partition]
    return parts
