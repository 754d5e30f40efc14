"""The executor's side of a read: fetches the batches of its slices and makes rows of them.

Batches are fetched and decoded ahead in the background, in the event loop of the process and its
threads, while Spark takes the rows that are ready. Rows have exactly the columns and types that
Spark expects, and are made without a loop: columns that a batch carries are taken as they are;
those that follow from a record's position (topic, partition, offset) are made once for many
batches.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from headwater.buffer.consumer import ConsumedBatch, FetchHandle, UnreadableBatch
from headwater.buffer.consumer.consumed_batch import ReaderColumns
from headwater.buffer.consumer.dead_letter import write_dead_letter
from headwater.buffer.consumer.delivery import ReadAhead, check_retained
from headwater.buffer.conversion import Inexact, exact_cast
from headwater.buffer.queue import Descriptor
from headwater.buffer.records import INGESTED, TIMESTAMP, operation_names
from headwater.buffer.stream import Stream
from headwater.buffer.stream.config import decode_config
from headwater.buffer.stream.handle import explain_deletion
from headwater.core import portal
from headwater.core.errors import Refused, Trimmed
from headwater.core.limits import MIB
from headwater.spark.errors import plain_errors
from headwater.spark.options import ReadOptions
from headwater.spark.source.bounds import data_loss_while_reading
from headwater.spark.source.slices import Slice, SlicePartition
from headwater.spark.source.streams import EXTRA, KAFKA, ON_REQUEST, SourceSchema, check_user_schema
from headwater.spark.versions import arrow_schema
from headwater.store import Store
from headwater.store.locations import shared_store

ROWS: Final = 32_768
"""Rows of an Arrow batch for Spark: below 10,000 and above 50,000 it is slower."""
BATCH_BYTES: Final = 16 * MIB
_PRODUCERS_TIME: Final = 0
_INGESTION_TIME: Final = 1
_CARRIED: Final = ("key", "value", "timestamp", *EXTRA)


class BatchSlice(NamedTuple):
    """Some rows of a batch."""

    batch: ConsumedBatch
    skip: int
    take: int


class RowBuilder:
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

    def of(self, pieces: Sequence[BatchSlice]) -> Iterator[pa.RecordBatch]:
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

    def _made(self, pieces: Sequence[BatchSlice]) -> pa.RecordBatch:
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

    def _all_carried(self, pieces: Sequence[BatchSlice]) -> pa.RecordBatch | None:
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

    def _placed(self, plain: str, pieces: Sequence[BatchSlice], rows: int) -> pa.Array:
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


def _runs(pieces: Sequence[BatchSlice]) -> list[tuple[int, int]]:
    """The LSNs of pieces as few ranges: where nothing is missing between them, one."""
    runs: list[tuple[int, int]] = []
    for batch, skip, take in pieces:
        first = batch.first_lsn + skip
        if runs and runs[-1][1] == first:
            runs[-1] = (runs[-1][0], first + take)
        else:
            runs.append((first, first + take))
    return runs or [(0, 0)]


def _timestamp_types(piece: BatchSlice) -> pa.Array:
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


LOG: Final = logging.getLogger("headwater.spark")


class SliceFetcher:
    """The slices of one task."""

    def __init__(
        self,
        stream: Stream,
        partition: int,
        slices: Sequence[Slice],
        *,
        on_bad_batch: str,
        fail_on_data_loss: bool,
    ) -> None:
        self._stream = stream
        self._partition = partition
        self._slices = [one for one in slices if one.take]
        self._on_bad_batch = on_bad_batch
        self._fail_on_data_loss = fail_on_data_loss
        handle = FetchHandle.of(stream, partition)
        self._ahead = ReadAhead(handle.fetch)
        self._done = 0
        self._begun = False

    async def next_pieces(self) -> list[BatchSlice]:
        """Pieces for one Arrow batch or a few; none at the end."""
        if not self._begun:
            self._begun = True
            self._ahead.add(one.descriptor for one in self._slices)
        pieces: list[BatchSlice] = []
        rows = size_bytes = 0
        while self._done < len(self._slices) and rows < ROWS and size_bytes < BATCH_BYTES:
            piece = await self._next()
            if piece is not None:
                pieces.append(piece)
                rows += piece.take
                size_bytes += int(piece.batch.records.nbytes) * piece.take // len(piece.batch)
        return pieces

    async def close(self) -> None:
        """Stop fetching."""
        await self._ahead.close()

    async def _next(self) -> BatchSlice | None:
        wanted = self._slices[self._done]
        async with explain_deletion(self._stream):
            found = await self._ahead.first()
            if not isinstance(found, ConsumedBatch):
                if not isinstance(found, UnreadableBatch):
                    raise found
                await self._bad(found)
        self._ahead.pop()
        self._done += 1
        if not isinstance(found, ConsumedBatch):
            return None
        return BatchSlice(found, wanted.skip, wanted.take)

    async def _bad(self, error: UnreadableBatch) -> None:
        """Raises, unless it was asked to go on without such a batch."""
        lost: Descriptor = error.descriptor
        try:
            await check_retained(self._stream, self._partition, error)
        except Trimmed as trimmed:
            loss = data_loss_while_reading(self._stream, self._partition, lost)
            if self._fail_on_data_loss:
                raise loss from trimmed
            LOG.warning("%s", loss)
            return
        if self._on_bad_batch == "fail":
            error.add_note("In Spark: onBadBatch=deadLetter for readStream, skip for read.")
            raise error
        if self._on_bad_batch == "deadLetter":
            await write_dead_letter(self._stream, self._partition, lost, error.cause)
        LOG.warning("passed over as asked: %s", error)


class SliceReader:
    """Reads slices into Arrow batches of one schema."""

    def __init__(
        self, options: ReadOptions, schema: StructType, shape: SourceSchema | None
    ) -> None:
        """Without a `shape` (the schema was given by hand), the stream tells it, or if that carried
        nothing yet, the names of the columns."""
        self._options = options
        self._schema = schema
        self._is_typed = None if shape is None else bool(shape.typed)
        self._shows_all = shape is not None and options.columns is None
        self._versions = {} if shape is None else dict(shape.versions)

    @plain_errors
    def read(self, partition: SlicePartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        reading, rows = self.open(partition, shared_store(self._options.url))
        outside = portal.shared()
        try:
            while pieces := outside.call(reading.next_pieces()):
                yield from rows.of(pieces)
        finally:
            outside.call(reading.close())

    def open(self, partition: SlicePartition, store: Store) -> tuple[SliceFetcher, RowBuilder]:
        """What fetches the batches of one task, and what makes rows of them."""
        config = decode_config(partition.stream, msgspec.Raw(partition.origin), writing=False)
        stream = Stream(store, config)
        rows = RowBuilder(
            arrow_schema(self._schema),
            stream=partition.stream,
            partition=partition.partition,
            is_typed=self._is_typed_in(stream),
            shows_all=self._shows_all,
            version=self._versions.get(partition.stream, 0),
        )
        reading = SliceFetcher(
            stream,
            partition.partition,
            partition.slices,
            on_bad_batch=self._options.on_bad_batch,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )
        return reading, rows

    def _is_typed_in(self, stream: Stream) -> bool:
        if self._is_typed is not None:
            return self._is_typed
        names = self._schema.fieldNames()
        # It may carry something since. What one of several streams lacks is null in its rows; of
        # one that has none of the columns, all would be.
        if stream.schema is None or not {*stream.schema.names} & {*names}:
            check_user_schema([stream], names, self._options)
        if stream.is_opaque or stream.schema is not None:
            return stream.schema is not None
        return not {*KAFKA, *EXTRA, *ON_REQUEST}.issuperset(names)
