"""Record batches cut, joined and split by partition, without a look at single rows.

Joining gives every batch the same columns: where one of them lacks a reserved column that another
has, its records get what the absence of the column means (see the record model), so that whoever
reads the batch need not know of the calls it was made from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.arrow_stream import ChunkedColumn
from headwater.buffer.partitioner import NO_PARTITION, partition_keys
from headwater.buffer.records import KEY, OPERATION, RESERVED, TIMESTAMP, VALUE, Operation
from headwater.core import limits

LOOSE_MIN_BYTES: Final = 256 * limits.KIB
"""Columns whose pieces are smaller, on average, are joined: to place each one costs more than that
copy, which comes out of the processor's cache."""
ENTITY: Final = "entity"
"""The kind of a record that names none."""


class Share(NamedTuple):
    """The records of one partition, out of a batch for several."""

    partition: int | None
    """None: wherever the turn is."""
    records: pa.RecordBatch
    rows: pa.UInt64Array | None
    """Which rows of the batch they were, rising; None if all of them."""


def shape_of(schema: pa.Schema) -> pa.Schema:
    """What must agree for records to share a batch: their value, or the typed columns."""
    return pa.schema(
        [field for field in schema if field.name not in RESERVED or field.name == VALUE]
    )


def cut(
    records: pa.RecordBatch, bytes_max: int, rows_max: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The records in slices of at most so much, each with its bytes; a record is never cut."""
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
    """The records in memory of their own: whoever gave them may change theirs.

    Arrow cannot tell whose memory a column stands in: an array made of a NumPy one, or of any
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


def loosely_joined(
    pieces: Sequence[pa.RecordBatch],
) -> tuple[pa.RecordBatch, ChunkedColumn | None]:
    """The same with a stand-in for the largest column of bytes or text, and that column.

    Whoever writes the batch writes it from where it is, and does not copy it once more.
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
        or sizes[name] < LOOSE_MIN_BYTES * len(pieces)
        or not all(piece.schema.equals(first) for piece in pieces)
    ):
        return joined(pieces), None
    chunks = ChunkedColumn([piece.column(name) for piece in pieces])
    place = first.get_field_index(name)
    rest = joined([piece.drop_columns([name]) for piece in pieces])
    columns = list(rest.columns)
    columns.insert(place, chunks.stand_in())
    return pa.record_batch(columns, schema=first), chunks


def defaults_for(stream: str) -> dict[str, pa.Scalar]:
    """What a reserved column's null means, where it does not mean "none"."""
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
        place = records.schema.get_field_index(name)
        records = records.set_column(place, records.schema.field(place), filled)
    return records


def split(records: pa.RecordBatch, partitions: int, keyless: int) -> list[Share]:
    """The records by the partition of their key; those without a key go to `keyless`."""
    if partitions == 1 or KEY not in records.schema.names:
        return [Share(keyless, records, None)]
    chosen = partition_keys(records.column(KEY), partitions)
    if records.column(KEY).null_count:
        missing = pc.equal(chosen, pa.scalar(NO_PARTITION, pa.int32()))
        chosen = pc.if_else(missing, pa.scalar(keyless, pa.int32()), chosen)
    counts = {pair["values"]: pair["counts"] for pair in pc.value_counts(chosen).to_pylist()}
    if len(counts) == 1:
        return [Share(next(iter(counts)), records, None)]
    # The sort is stable: within a partition the records keep their order.
    order = pc.sort_indices(chosen)
    ordered = records.take(order)
    shares, start = [], 0
    for partition in sorted(counts):
        count = counts[partition]
        rows = order.slice(start, count)
        shares.append(Share(partition, ordered.slice(start, count), rows))
        start += count
    return shares
