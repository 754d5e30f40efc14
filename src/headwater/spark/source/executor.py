"""The executor's side of a read: fetches the batches of its slices and makes rows of them.

Batches are fetched and decoded ahead in the background, in the event loop of the process and its
threads, while Spark takes the rows that are ready. Rows have exactly the columns and types that
Spark expects, and are built without a loop: columns that a batch carries are taken as they are;
those that follow from a record's position (topic, partition, offset) are built once for many
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

from headwater.buffer.consumer import (
    ConsumedBatch,
    ConsumerMetrics,
    FetchHandle,
    UnreadableBatch,
)
from headwater.buffer.consumer.consumed_batch import ReaderColumns
from headwater.buffer.consumer.dead_letter import write_dead_letter
from headwater.buffer.consumer.delivery import ReadAhead, check_retained
from headwater.buffer.conversion import Inexact, exact_cast
from headwater.buffer.queue.contract import Descriptor
from headwater.buffer.records import INGESTED, TIMESTAMP, operation_names
from headwater.buffer.stream import Stream
from headwater.buffer.stream.config import decode_config
from headwater.buffer.stream.handle import explain_deletion
from headwater.core import portal
from headwater.core.errors import Refused, Trimmed
from headwater.core.limits import MIB
from headwater.spark.errors import plain_errors
from headwater.spark.metrics import SourceMetrics
from headwater.spark.options import ReadOptions
from headwater.spark.source.bounds import data_loss_while_reading
from headwater.spark.source.slices import Slice, SlicePartition
from headwater.spark.source.streams import EXTRA, KAFKA, ON_REQUEST, SourceSchema, check_user_schema
from headwater.spark.versions import arrow_schema
from headwater.store import Store
from headwater.store.locations import shared_store

ROWS: Final = 32_768
"""Rows of an Arrow batch; Spark is slower below 10,000 and above 50,000."""
BATCH_BYTES: Final = 16 * MIB
LOG: Final = logging.getLogger("headwater.spark")
_PRODUCERS_TIME: Final = 0
_INGESTION_TIME: Final = 1
_STORED: Final = ("key", "value", "timestamp", *EXTRA)


class BatchSlice(NamedTuple):
    batch: ConsumedBatch
    skip: int
    take: int


class RowBuilder:
    """Makes the rows of one partition with a fixed set of columns."""

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
        """`shows_all`: the schema has all columns, so other columns in a batch are an error,
        except those of a later `version` of the stream's schema."""
        self._schema = schema
        self._stream = stream
        self._partition = partition
        self._prefix = "_" if is_typed else ""
        own = {f"{self._prefix}{name}" for name in (*KAFKA, *EXTRA)} | set(ON_REQUEST)
        typed = pa.schema([field for field in schema if field.name not in own])
        self._stored_names = [
            name for field in schema if (name := self._stored_name(field.name)) is not None
        ]
        self._stored = None
        if self._stored_names or shows_all:
            self._stored = ReaderColumns(
                typed if len(typed) else None,
                self._stored_names or [TIMESTAMP],
                version=version,
                shows_all=shows_all,
            )

    def build(self, slices: Sequence[BatchSlice]) -> Iterator[pa.RecordBatch]:
        """Build Arrow batches of a size that is fast in Spark."""
        batch = self._build_one(slices)
        if not batch.num_rows:
            return
        step = min(ROWS, max(1, BATCH_BYTES * batch.num_rows // max(1, batch.nbytes)))
        if batch.num_rows <= step + step // 2:
            yield batch
            return
        for first in range(0, batch.num_rows, step):
            yield batch.slice(first, step)

    def _build_one(self, slices: Sequence[BatchSlice]) -> pa.RecordBatch:
        stored = self._stored_columns(slices)
        rows = sum(one.take for one in slices)
        columns = []
        for field in self._schema:
            name = self._stored_name(field.name)
            if name is None:
                column = self._derived_column(field.name.removeprefix(self._prefix), slices, rows)
            else:
                assert stored is not None
                column = stored.column(name)
                if field.name == "_operation":
                    column = operation_names(column)
            columns.append(_cast(column, field))
        return pa.record_batch(columns, schema=self._schema)

    def _stored_columns(self, slices: Sequence[BatchSlice]) -> pa.RecordBatch | None:
        if self._stored is None:
            return None
        parts = [self._stored.of(batch).slice(skip, take) for batch, skip, take in slices]
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    def _stored_name(self, name: str) -> str | None:
        """The name of a column in the batch; None if it is derived from the position."""
        name_in_kafka = name.removeprefix(self._prefix)
        if self._prefix and not name.startswith(self._prefix):
            return name
        if name in ON_REQUEST:
            return name
        if name_in_kafka == "ingestionTimestamp":
            return INGESTED
        if name_in_kafka in _STORED:
            return f"_{name_in_kafka}"
        return None

    def _derived_column(
        self, name_in_kafka: str, slices: Sequence[BatchSlice], rows: int
    ) -> pa.Array:
        if name_in_kafka == "topic":
            return pa.repeat(pa.scalar(self._stream), rows)
        if name_in_kafka == "partition":
            return pa.repeat(pa.scalar(self._partition, pa.int32()), rows)
        if name_in_kafka == "offset":
            runs = [pa.arange(first, end) for first, end in _runs(slices)]
            return runs[0] if len(runs) == 1 else pa.concat_arrays(runs)
        kinds = [_timestamp_types(one) for one in slices]
        return kinds[0] if len(kinds) == 1 else pa.concat_arrays(kinds)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    """Cast a column to the type in the user's schema; `Refused` if a value would change."""
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


def _runs(slices: Sequence[BatchSlice]) -> list[tuple[int, int]]:
    """The LSNs of slices as ranges; adjacent ranges are merged."""
    runs: list[tuple[int, int]] = []
    for batch, skip, take in slices:
        first = batch.first_lsn + skip
        if runs and runs[-1][1] == first:
            runs[-1] = (runs[-1][0], first + take)
        else:
            runs.append((first, first + take))
    return runs or [(0, 0)]


def _timestamp_types(one: BatchSlice) -> pa.Array:
    """0 if the producer set the timestamp, 1 if it is the ingestion time.

    In a batch where some records have a timestamp, the others have their ingestion time.
    """
    batch = one.batch
    if TIMESTAMP not in batch.records.schema.names:
        return pa.repeat(pa.scalar(_INGESTION_TIME, pa.int32()), one.take)
    ingested, _ = batch.calls.per_record(len(batch))
    is_given = pc.not_equal(batch.records.column(TIMESTAMP), ingested).fill_null(False)
    kinds = pc.if_else(
        is_given, pa.scalar(_PRODUCERS_TIME, pa.int32()), pa.scalar(_INGESTION_TIME, pa.int32())
    )
    return kinds.slice(one.skip, one.take)


class SliceFetcher:
    """Fetches the batches of one task ahead, in order."""

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
        self._metrics = SourceMetrics().register(stream=stream.name, partition=partition)
        fetches = ConsumerMetrics().register(stream=stream.name, partition=partition)
        handle = FetchHandle.of(stream, partition, fetches)
        self._ahead = ReadAhead(handle.fetch)
        self._done = 0
        self._started = False

    async def next_slices(self) -> list[BatchSlice]:
        """The next rows, for one Arrow batch or a few; empty at the end."""
        if not self._started:
            self._started = True
            self._metrics.tasks += 1
            self._ahead.add(one.descriptor for one in self._slices)
        slices: list[BatchSlice] = []
        rows = size_bytes = 0
        while self._done < len(self._slices) and rows < ROWS and size_bytes < BATCH_BYTES:
            one = await self._next()
            if one is not None:
                slices.append(one)
                rows += one.take
                self._metrics.rows += one.take
                size_bytes += int(one.batch.records.nbytes) * one.take // len(one.batch)
        return slices

    async def close(self) -> None:
        await self._ahead.close()

    async def _next(self) -> BatchSlice | None:
        wanted = self._slices[self._done]
        async with explain_deletion(self._stream):
            fetched = await self._ahead.first()
            if not isinstance(fetched, ConsumedBatch):
                if not isinstance(fetched, UnreadableBatch):
                    raise fetched
                await self._handle_unreadable(fetched)
        self._ahead.pop()
        self._done += 1
        if not isinstance(fetched, ConsumedBatch):
            return None
        return BatchSlice(fetched, wanted.skip, wanted.take)

    async def _handle_unreadable(self, error: UnreadableBatch) -> None:
        """Raise the error, unless the options say to continue without the batch."""
        lost: Descriptor = error.descriptor
        try:
            await check_retained(self._stream, self._partition, error)
        except Trimmed as trimmed:
            loss = data_loss_while_reading(self._stream, self._partition, lost)
            if self._fail_on_data_loss:
                raise loss from trimmed
            self._metrics.batches_skipped += 1
            LOG.warning("%s", loss)
            return
        if self._on_bad_batch == "fail":
            error.add_note("In Spark: onBadBatch=deadLetter for readStream, skip for read.")
            raise error
        if self._on_bad_batch == "deadLetter":
            await write_dead_letter(self._stream, self._partition, lost, error.cause)
        self._metrics.batches_skipped += 1
        LOG.warning("skipped, as onBadBatch says: %s", error)


class SliceReader:
    """Reads slices into Arrow batches of one schema."""

    def __init__(
        self, options: ReadOptions, schema: StructType, source_schema: SourceSchema | None
    ) -> None:
        """`source_schema` is None if the user gave a schema. The stream then says whether rows are
        typed, or the names of the columns if the stream has no records yet."""
        self._options = options
        self._schema = schema
        self._is_typed = None if source_schema is None else bool(source_schema.typed)
        self._shows_all = source_schema is not None and options.columns is None
        self._versions = {} if source_schema is None else dict(source_schema.versions)

    @plain_errors
    def read(self, partition: SlicePartition) -> Iterator[pa.RecordBatch]:
        fetcher, rows = self.open(partition, shared_store(self._options.url))
        event_loop = portal.shared()
        try:
            while slices := event_loop.call(fetcher.next_slices()):
                yield from rows.build(slices)
        finally:
            event_loop.call(fetcher.close())

    def open(self, partition: SlicePartition, store: Store) -> tuple[SliceFetcher, RowBuilder]:
        """The fetcher and the row builder of one task."""
        config = decode_config(
            partition.stream, msgspec.Raw(partition.stream_config), writing=False
        )
        stream = Stream(store, config)
        rows = RowBuilder(
            arrow_schema(self._schema),
            stream=partition.stream,
            partition=partition.partition,
            is_typed=self._is_typed_in(stream),
            shows_all=self._shows_all,
            version=self._versions.get(partition.stream, 0),
        )
        fetcher = SliceFetcher(
            stream,
            partition.partition,
            partition.slices,
            on_bad_batch=self._options.on_bad_batch,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )
        return fetcher, rows

    def _is_typed_in(self, stream: Stream) -> bool:
        if self._is_typed is not None:
            return self._is_typed
        names = self._schema.fieldNames()
        # The stream may have got columns meanwhile. A column that only this stream lacks is null,
        # but if it has none of the columns, all of them would be null.
        if stream.schema is None or not {*stream.schema.names} & {*names}:
            check_user_schema([stream], names, self._options)
        if stream.is_opaque or stream.schema is not None:
            return stream.schema is not None
        return not {*KAFKA, *EXTRA, *ON_REQUEST}.issuperset(names)
