"""Rows for Spark from batches: exactly the columns and types that it expects, without a loop.

Columns that a batch carries are taken as they are; those that follow from where a record stands
(topic, partition, offset) are made once for many batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.consumer import ConsumedBatch
from headwater.buffer.consumer.consumed_batch import ReaderColumns
from headwater.buffer.conversion import Inexact, exact_cast
from headwater.buffer.records import INGESTED, TIMESTAMP, operation_names
from headwater.core.errors import Refused
from headwater.core.limits import MIB
from headwater.spark.source.shape import EXTRA, KAFKA, ON_REQUEST

ROWS: Final = 32_768
"""Rows of an Arrow batch for Spark: below 10,000 and above 50,000 it is slower."""
BATCH_BYTES: Final = 16 * MIB
_PRODUCERS_TIME: Final = 0
_INGESTION_TIME: Final = 1
_CARRIED: Final = ("key", "value", "timestamp", *EXTRA)


class Piece(NamedTuple):
    """Some rows of a batch."""

    batch: ConsumedBatch
    skip: int
    take: int


class Rows:
    """One fixed set of columns of one partition, and how pieces of batches become them."""

    def __init__(
        self,
        schema: pa.Schema,
        *,
        stream: str,
        partition: int,
        is_typed: bool,
        shows_all: bool,
        version: int,
    ) -> None:
        """`shows_all`: no value may be missing from these columns, but those of a later `version`
        of the stream's schema."""
        self._schema = schema
        self._stream = stream
        self._partition = partition
        self._mark = "_" if is_typed else ""
        own = {f"{self._mark}{name}" for name in (*KAFKA, *EXTRA)} | set(ON_REQUEST)
        typed = pa.schema([field for field in schema if field.name not in own])
        self._carried_names = [
            name for field in schema if (name := self._carried_as(field.name)) is not None
        ]
        self._carried = None
        if self._carried_names or shows_all:
            self._carried = ReaderColumns(
                typed if len(typed) else None,
                self._carried_names or [TIMESTAMP],
                version=version,
                shows_all=shows_all,
            )

    def of(self, pieces: Sequence[Piece]) -> Iterator[pa.RecordBatch]:
        """Arrow batches of a size that Spark likes."""
        made = self._made(pieces)
        if not made.num_rows:
            return
        step = min(ROWS, max(1, BATCH_BYTES * made.num_rows // max(1, made.nbytes)))
        if made.num_rows <= step + step // 2:
            yield made
            return
        for first in range(0, made.num_rows, step):
            yield made.slice(first, step)

    def _made(self, pieces: Sequence[Piece]) -> pa.RecordBatch:
        carried = self._all_carried(pieces)
        rows = sum(piece.take for piece in pieces)
        columns = []
        for field in self._schema:
            name = self._carried_as(field.name)
            if name is None:
                column = self._placed(field.name.removeprefix(self._mark), pieces, rows)
            else:
                assert carried is not None
                column = carried.column(name)
                if field.name == "_operation":
                    column = operation_names(column)
            columns.append(_shown_as(column, field))
        return pa.record_batch(columns, schema=self._schema)

    def _all_carried(self, pieces: Sequence[Piece]) -> pa.RecordBatch | None:
        if self._carried is None:
            return None
        parts = [self._carried.of(batch).slice(skip, take) for batch, skip, take in pieces]
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    def _carried_as(self, name: str) -> str | None:
        """What the batch calls a column; None for one that is not in the batch."""
        plain = name.removeprefix(self._mark)
        if self._mark and not name.startswith(self._mark):
            return name
        if name in ON_REQUEST:
            return name
        if plain == "ingestionTimestamp":
            return INGESTED
        if plain in _CARRIED:
            return f"_{plain}"
        return None

    def _placed(self, plain: str, pieces: Sequence[Piece], rows: int) -> pa.Array:
        if plain == "topic":
            return pa.repeat(pa.scalar(self._stream), rows)
        if plain == "partition":
            return pa.repeat(pa.scalar(self._partition, pa.int32()), rows)
        if plain == "offset":
            runs = [pa.arange(first, end) for first, end in _runs(pieces)]
            return runs[0] if len(runs) == 1 else pa.concat_arrays(runs)
        kinds = [_timestamp_types(piece) for piece in pieces]
        return kinds[0] if len(kinds) == 1 else pa.concat_arrays(kinds)


def _shown_as(column: pa.Array, field: pa.Field) -> pa.Array:
    """A column in the type that a schema given by hand has for it; `Refused` if values change."""
    if column.type == field.type:
        return column
    try:
        if pa.types.is_binary(column.type) and pa.types.is_string(field.type):
            return column.cast(field.type)
        return exact_cast(column, field.type)
    except (Inexact, pa.ArrowException) as error:
        raise Refused(
            f"column {field.name!r} is {column.type}, and the schema that was given has "
            f"{field.type}: leave the schema out, and cast what is read ({error})"
        ) from error


def _runs(pieces: Sequence[Piece]) -> list[tuple[int, int]]:
    """The LSNs of pieces as few ranges: where nothing is missing between them, one."""
    runs: list[tuple[int, int]] = []
    for batch, skip, take in pieces:
        first = batch.first_lsn + skip
        if runs and runs[-1][1] == first:
            runs[-1] = (runs[-1][0], first + take)
        else:
            runs.append((first, first + take))
    return runs or [(0, 0)]


def _timestamp_types(piece: Piece) -> pa.Array:
    """0 where the producer gave a time, 1 where it is that of the ingestion.

    A batch in which some records have a time has the ingestion time for the others.
    """
    batch = piece.batch
    if TIMESTAMP not in batch.records.schema.names:
        return pa.repeat(pa.scalar(_INGESTION_TIME, pa.int32()), piece.take)
    ingested, _ = batch.calls.per_record(len(batch))
    is_given = pc.not_equal(batch.records.column(TIMESTAMP), ingested).fill_null(False)
    kinds = pc.if_else(
        is_given, pa.scalar(_PRODUCERS_TIME, pa.int32()), pa.scalar(_INGESTION_TIME, pa.int32())
    )
    return kinds.slice(piece.skip, piece.take)
