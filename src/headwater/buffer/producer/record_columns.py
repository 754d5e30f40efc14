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
from headwater.buffer.records import KEY, OPERATION, RESERVED, TIMESTAMP, VALUE, Operation
from headwater.core import limits

DEFERRED_MIN_BYTES: Final = 256 * limits.KIB
"""Smaller pieces of a column, on average, are joined: writing each one by itself costs more than
that copy, which comes out of the processor's cache."""


class RecordLists:
    """Records with values, column by column, as lists.

    An Arrow array costs microseconds, however small: one for each call of one record would cost
    more than everything else that happens to the record.
    """

    __slots__ = ("columns", "sizes", "values")

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.sizes = array("i")
        """The sizes of the values: of all of them, or not used."""
        self.columns: dict[str, list[Any]] = {}
        """The reserved columns that a call has used, with None for records without a value."""

    def extend(self, added: RecordLists) -> None:
        before, count = len(self.values), len(added.values)
        for name in {**self.columns, **added.columns}:
            column = self.columns.setdefault(name, [None] * before)
            column.extend(added.columns.get(name) or [None] * count)
        self.values.extend(added.values)
        self.sizes.extend(added.sizes)

    def append(self, value: bytes, key: bytes | None) -> None:
        if key is not None and KEY not in self.columns:
            self.columns[KEY] = [None] * len(self.values)
        self.values.append(value)
        for name, column in self.columns.items():
            column.append(key if name == KEY else None)

    def to_arrow(self) -> pa.RecordBatch:
        """The records as columns, in the order of the record model."""
        values = self._values_column()
        return self._with_values(values if isinstance(values, pa.Array) else values.column())

    def to_arrow_deferred(self) -> tuple[pa.RecordBatch, ValuesColumn | None]:
        """The same with a placeholder for the values, and the values, if none of them is null."""
        values = self._values_column()
        if isinstance(values, pa.Array):
            return self._with_values(values), None
        return self._with_values(values.placeholder()), values

    def _values_column(self) -> ValuesColumn | pa.Array:
        sizes = self.sizes if len(self.sizes) == len(self.values) else None
        try:
            return ValuesColumn(self.values, sizes)  # type: ignore[arg-type]
        except TypeError:  # there are nulls
            return pa.array(self.values, RESERVED[VALUE])

    def _with_values(self, values: pa.Array) -> pa.RecordBatch:
        columns = {
            name: values if name == VALUE else pa.array(self.columns[name], kind)
            for name, kind in RESERVED.items()
            if name == VALUE or name in self.columns
        }
        return pa.record_batch(list(columns.values()), names=list(columns))


class PartitionRows(NamedTuple):
    """The rows of a batch that go to one partition."""

    partition: int | None
    """None: the next partition in turn."""
    records: pa.RecordBatch
    rows: pa.UInt64Array | None
    """The indices of these rows in the batch, rising; None if they are all of them."""


def shape_of(schema: pa.Schema) -> pa.Schema | None:
    """The typed columns, which must agree for records to share a batch; None with values."""
    if VALUE in schema.names:
        return None
    return pa.schema([field for field in schema if field.name not in RESERVED])


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


def joined(pieces: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The records of pieces of one shape as one batch."""
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

    The column is then written without one more copy.
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
    """The values that null stands for in reserved columns, where it does not mean "none"."""
    values = {
        OPERATION: int(Operation.INSERT),
        "_collection": stream,
        "_kind": "entity",
        "_rid": 0,
    }
    return {name: pa.scalar(value, RESERVED[name]) for name, value in values.items()}


def without_nulls(
    records: pa.RecordBatch, defaults: Mapping[str, pa.Scalar], ingested: Callable[[], pa.Array]
) -> pa.RecordBatch:
    """The records with these values in place of nulls; `ingested` gives every record's time."""
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
    """The records by the partition of their key, or `keyless` without one."""
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
