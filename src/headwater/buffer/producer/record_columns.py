"""The records of calls as lists and as Arrow columns: gathered, cut, joined, split by partition.

Joining gives every record the same columns. Where a call lacks a reserved column that another call
of the batch has, its records get what the absence of the column means (see the record model), so
that readers of the batch need not know of its calls.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.arrow_stream import ChunkedColumn, ValuesColumn
from headwater.buffer.partitioner import NO_PARTITION, partition_keys
from headwater.buffer.records import (
    HEADERS,
    KEY,
    OPERATION,
    RESERVED,
    TIMESTAMP,
    VALUE,
    Operation,
)
from headwater.core import limits

DEFERRED_MIN_BYTES: Final = 256 * limits.KIB
"""Smaller pieces of a column, on average, are joined: writing each one by itself costs more than
that copy, which comes out of the processor's cache."""
ENTITY: Final = "entity"
"""The kind of a record that names none."""

Header = list[dict[str, Any]]


class RecordLists:
    """Records with values, column by column. A column that no call has used is None.

    An Arrow array costs microseconds, however small: one for each call of one record would cost
    more than everything else that happens to the record.
    """

    __slots__ = ("headers", "keys", "operations", "sizes", "timestamps", "values")

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.sizes = array("i")
        """The sizes of the values: of all of them, or not used."""
        self.keys: list[bytes | None] | None = None
        self.headers: list[Header | None] | None = None
        self.timestamps: list[int | None] | None = None
        """In microseconds since 1970."""
        self.operations: list[int | None] | None = None

    @property
    def has_only_values(self) -> bool:
        """Whether values are all there is."""
        return self.keys is None and self.has_only_keys

    @property
    def has_only_keys(self) -> bool:
        """Whether values, and perhaps keys, are all there is."""
        return self.headers is None and self.timestamps is None and self.operations is None

    def extend(self, added: RecordLists) -> None:
        """Add records. None in a column that others use means that the record has none."""
        before, count = len(self.values), len(added.values)
        self.values.extend(added.values)
        self.sizes.extend(added.sizes)
        self.keys = _extended(self.keys, added.keys, before, count)
        self.headers = _extended(self.headers, added.headers, before, count)
        self.timestamps = _extended(self.timestamps, added.timestamps, before, count)
        self.operations = _extended(self.operations, added.operations, before, count)

    def append(self, value: bytes, key: bytes | None) -> None:
        """Add one record that has a value and perhaps a key."""
        if key is not None and self.keys is None:
            self.keys = [None] * len(self.values)
        self.values.append(value)
        if self.keys is not None:
            self.keys.append(key)
        if self.headers is not None:
            self.headers.append(None)
        if self.timestamps is not None:
            self.timestamps.append(None)
        if self.operations is not None:
            self.operations.append(None)

    def to_arrow(self) -> pa.RecordBatch:
        """The records as columns, in the order of the record model."""
        try:
            return self._with_values(self._values_column().column())
        except TypeError:
            return self._with_values(pa.array(self.values, RESERVED[VALUE]))

    def to_arrow_deferred(self) -> tuple[pa.RecordBatch, ValuesColumn | None]:
        """The same with a placeholder for the values, and the values, if none of them is null."""
        try:
            values = self._values_column()
        except TypeError:
            return self._with_values(pa.array(self.values, RESERVED[VALUE])), None
        return self._with_values(values.placeholder()), values

    def _values_column(self) -> ValuesColumn:
        sizes = self.sizes if len(self.sizes) == len(self.values) else None
        return ValuesColumn(self.values, sizes)  # type: ignore[arg-type]

    def _with_values(self, values: pa.Array) -> pa.RecordBatch:
        columns = {
            KEY: self.keys,
            VALUE: values,
            HEADERS: self.headers,
            TIMESTAMP: self.timestamps,
            OPERATION: self.operations,
        }
        used = {
            name: column if name == VALUE else pa.array(column, RESERVED[name])
            for name, column in columns.items()
            if column is not None
        }
        return pa.record_batch(list(used.values()), names=list(used))


def _extended(
    column: list[Any] | None, added: Sequence[Any] | None, before: int, count: int
) -> list[Any] | None:
    if added is None:
        if column is not None:
            column.extend([None] * count)
        return column
    if column is None:
        column = [None] * before
    column.extend(added)
    return column


class PartitionRows(NamedTuple):
    """The rows of a batch that go to one partition."""

    partition: int | None
    """None: the next partition in turn."""
    records: pa.RecordBatch
    rows: pa.UInt64Array | None
    """The indices of these rows in the batch, rising; None if they are all of them."""


def shape_of(schema: pa.Schema) -> pa.Schema:
    """What must agree for records to share a batch: their value, or the typed columns."""
    return pa.schema(
        [field for field in schema if field.name not in RESERVED or field.name == VALUE]
    )


def cut(
    records: pa.RecordBatch, bytes_max: int, rows_max: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Slices of at most so many bytes and rows, each with its bytes; a record is never cut."""
    rows, size = records.num_rows, records.nbytes
    if rows <= 1 or (size <= bytes_max and rows <= rows_max):
        yield records, size
        return
    slices = max(-(-size // bytes_max), -(-rows // rows_max), 1)
    step = max(1, min(rows // slices, rows - 1))
    for start in range(0, rows, step):
        # Records differ in size, so a slice may come out larger than the average.
        yield from cut(records.slice(start, step), bytes_max, rows_max)


def owned(records: pa.RecordBatch) -> pa.RecordBatch:
    """A copy of the records: the caller may change the memory of theirs.

    Arrow cannot tell who owns the memory of a column: an array made of a NumPy one, or of any
    buffer, shares it, and looks like one that Arrow allocated.
    """
    return pa.concat_batches([records])


def joined(pieces: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """All records in one batch. The pieces agree in shape."""
    first = pieces[0].schema
    if len(pieces) == 1:
        return pieces[0]
    if all(piece.schema.equals(first) for piece in pieces):
        return pa.concat_batches(pieces)
    used = {name for piece in pieces for name in piece.schema.names}
    reserved = [pa.field(name, RESERVED[name]) for name in RESERVED if name in used]
    typed = [field for field in first if field.name not in RESERVED]
    schema = pa.schema([*reserved, *typed])
    columns = [
        pa.concat_arrays(
            [
                piece.column(field.name)
                if field.name in piece.schema.names
                else pa.nulls(piece.num_rows, field.type)
                for piece in pieces
            ]
        )
        for field in schema
    ]
    return pa.record_batch(columns, schema=schema)


def joined_deferred(
    pieces: Sequence[pa.RecordBatch],
) -> tuple[pa.RecordBatch, ChunkedColumn | None]:
    """The same with a placeholder for the largest column of bytes or text, and that column.

    The column is then written from where it is, without one more copy.
    """
    first = pieces[0].schema
    sizes = {
        field.name: sum(piece.column(field.name).nbytes for piece in pieces)
        for field in first
        if pa.types.is_binary(field.type) or pa.types.is_string(field.type)
        if field.name == VALUE or field.name not in RESERVED
    }
    name = max(sizes, key=lambda name: sizes[name], default=None)
    if (
        name is None
        or len(pieces) == 1
        or sizes[name] < DEFERRED_MIN_BYTES * len(pieces)
        or not all(piece.schema.equals(first) for piece in pieces)
    ):
        return joined(pieces), None
    chunks = ChunkedColumn([piece.column(name) for piece in pieces])
    index = first.get_field_index(name)
    columns = list(joined([piece.drop_columns([name]) for piece in pieces]).columns)
    columns.insert(index, chunks.placeholder())
    return pa.record_batch(columns, schema=first), chunks


def defaults_for(stream: str) -> dict[str, pa.Scalar]:
    """What a null in a reserved column means, where it does not mean "none"."""
    values = {
        OPERATION: int(Operation.INSERT),
        "_collection": stream,
        "_kind": ENTITY,
        "_rid": 0,
    }
    return {name: pa.scalar(value, RESERVED[name]) for name, value in values.items()}


def without_nulls(
    records: pa.RecordBatch, defaults: Mapping[str, pa.Scalar], ingested: Callable[[], pa.Array]
) -> pa.RecordBatch:
    """The records with what null means written out; `ingested` gives every record's time."""
    for name in records.schema.names:
        if name not in RESERVED or not records.column(name).null_count:
            continue
        if name in defaults:
            filled = pc.fill_null(records.column(name), defaults[name])
        elif name == TIMESTAMP:
            filled = pc.coalesce(records.column(name), ingested())
        else:
            continue
        index = records.schema.get_field_index(name)
        records = records.set_column(index, records.schema.field(index), filled)
    return records


def split(records: pa.RecordBatch, partitions: int, keyless: int) -> list[PartitionRows]:
    """The records by the partition of their key; those without a key go to `keyless`."""
    if partitions == 1 or KEY not in records.schema.names:
        return [PartitionRows(keyless, records, None)]
    chosen = partition_keys(records.column(KEY), partitions)
    if records.column(KEY).null_count:
        missing = pc.equal(chosen, pa.scalar(NO_PARTITION, pa.int32()))
        chosen = pc.if_else(missing, pa.scalar(keyless, pa.int32()), chosen)
    counts = {pair["values"]: pair["counts"] for pair in pc.value_counts(chosen).to_pylist()}
    if len(counts) == 1:
        return [PartitionRows(next(iter(counts)), records, None)]
    # The sort is stable: within a partition the records keep their order.
    order = pc.sort_indices(chosen)
    ordered = records.take(order)
    shares, start = [], 0
    for partition in sorted(counts):
        count = counts[partition]
        rows = order.slice(start, count)
        shares.append(PartitionRows(partition, ordered.slice(start, count), rows))
        start += count
    return shares
