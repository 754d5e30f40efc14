"""The data source that Spark finds by the name `headwater`, and its readers.

Spark creates one in several processes: in the planning worker, in the driver's source runner, on
executors. Creating it sends no request. Creating a reader only reads: a user's schema is compared
with the stream's, which is in its register. Only creating a writer may write: new columns of a
stream are recorded before any task runs.

Spark makes stream readers in the process that it keeps for a query's source, and in its planning
worker, only to send their `read` to the executors; what is sent has no connection.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Final

try:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        InputPartition,
    )
except ModuleNotFoundError as error:
    # The first import of PySpark when headwater.spark is imported.
    raise ModuleNotFoundError(
        f"headwater.spark needs PySpark 4.1 or newer ({error}): "
        "pip install 'pyspark[pipelines]>=4.1,<5' 'pandas<3'",
        name=error.name,
    ) from error
from pyspark.sql.types import StructField, StructType

from headwater.buffer.stream import Stream
from headwater.core import portal
from headwater.core.errors import HeadwaterError, Refused, Trimmed
from headwater.spark import versions
from headwater.spark.errors import plain_errors
from headwater.spark.option_values import EARLIEST
from headwater.spark.options import Mode, ReadOptions, WriteOptions, reading_mode
from headwater.spark.sink import BatchWriter, StreamWriter
from headwater.spark.source import bounds
from headwater.spark.source.checkpoint import gather_limited
from headwater.spark.source.executor import SliceReader
from headwater.spark.source.feed import PartitionFeed, PendingBatches
from headwater.spark.source.micro_batches import MicroBatches, to_tasks
from headwater.spark.source.offset import Offset
from headwater.spark.source.slices import Limits, Slice, SlicePartition
from headwater.spark.source.streams import (
    SourceSchema,
    check_user_schema,
    parts_of,
    source_schema,
    subscribed_streams,
)
from headwater.store.locations import shared_store

if TYPE_CHECKING:
    import pyarrow as pa

LOG: Final = logging.getLogger("headwater.spark")


class HeadwaterDataSource(DataSource):
    """Streams as DataFrames: batch and streaming, reading and writing."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._source_schema: SourceSchema | None = None

    @classmethod
    def name(cls) -> str:
        return "headwater"

    @plain_errors
    def schema(self) -> StructType:
        # Spark does not say whether a batch or a stream is read; the options show it.
        options = ReadOptions.parse(self.options, reading_mode(self.options))
        self._source_schema = source_schema(_open_streams(options), options)
        columns = versions.spark_schema(self._source_schema.columns(options))
        return StructType([StructField(f.name, f.dataType, nullable=True) for f in columns])

    @plain_errors
    def reader(self, schema: StructType) -> BatchReader:
        options = self._checked(Mode.READ, schema)
        return BatchReader(options, schema, self._source_schema)

    @plain_errors
    def streamReader(self, schema: StructType) -> StreamReader | RefusedReader:
        try:
            options = self._checked(Mode.READ_STREAM, schema)
        except HeadwaterError as error:
            return RefusedReader(error)
        return StreamReader(options, schema, self._source_schema)

    @plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        options = WriteOptions.parse(self.options, Mode.WRITE)
        return BatchWriter(options, schema, overwrite=overwrite)

    @plain_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        options = WriteOptions.parse(self.options, Mode.WRITE_STREAM)
        return StreamWriter(options, schema, overwrite=overwrite)

    def _checked(self, mode: Mode, schema: StructType) -> ReadOptions:
        options = ReadOptions.parse(self.options, mode)
        if self._source_schema is None:
            check_user_schema(_open_streams(options), schema.fieldNames(), options)
        return options


def _open_streams(options: ReadOptions) -> list[Stream]:
    return portal.shared().call(subscribed_streams(shared_store(options.url), options))


class BatchReader(DataSourceReader):
    def __init__(
        self, options: ReadOptions, schema: StructType, source_schema: SourceSchema | None
    ) -> None:
        self._options = options
        self._executor = SliceReader(options, schema, source_schema)

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """The tasks; never empty, because Spark would then create a task of its own."""
        tasks: list[InputPartition] = list(portal.shared().call(plan_batch(self._options)))
        return tasks or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SlicePartition):
            return iter(())
        return self._executor.read(partition)


async def plan_batch(options: ReadOptions) -> list[SlicePartition]:
    """The tasks that read the wanted records, as they are retained now."""
    store = shared_store(options.url)
    streams = await subscribed_streams(store, options)
    feeds = [PartitionFeed(stream, part.partition) for stream, part in parts_of(streams, options)]
    parts = [feed.part for feed in feeds]
    bounds.check_partitions_named(options, parts)
    slices = await gather_limited(_slices(feed, options) for feed in feeds)
    return to_tasks(zip(feeds, slices, strict=True), options)


async def _slices(feed: PartitionFeed, options: ReadOptions) -> list[Slice]:
    start = await bounds.starting_position(feed, options, EARLIEST)
    end = await bounds.ending_position(feed, options)
    if start >= end:
        if start > end and isinstance(options.starting_offsets, Mapping):
            raise Refused(
                f"{feed.part}: the read would begin at offset {start.lsn} and end before {end.lsn}"
            )
        return []
    try:
        return await PendingBatches(feed, start).fetch_until(end)
    except Trimmed as trimmed:
        oldest = (await feed.bounds()).oldest
        # Only a read that names offsets misses records; others read what is retained.
        if isinstance(options.starting_offsets, Mapping):
            loss = bounds.data_loss_before(feed.part, start, oldest, options.url)
            if options.fail_on_data_loss:
                raise loss from trimmed
            LOG.warning("%s", loss)
        return await PendingBatches(feed, oldest).fetch_until(end)


class StreamReader(DataSourceStreamReader, versions.SupportsTriggerAvailableNow):  # type: ignore[misc]
    def __init__(
        self, options: ReadOptions, schema: StructType, source_schema: SourceSchema | None
    ) -> None:
        self._options = options
        self._executor = SliceReader(options, schema, source_schema)
        self._live: MicroBatches | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_live": None}

    @plain_errors
    def initialOffset(self) -> dict[str, Any]:
        """Where a query with a new checkpoint begins."""
        return portal.shared().call(self._batches().initial()).to_json()

    def getDefaultReadLimit(self) -> Any:
        options = self._options
        return versions.default_limit(
            options.max_offsets_per_trigger, options.max_bytes_per_trigger
        )

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to the present end of the streams, and no further."""
        portal.shared().call(self._batches().prepare_available_now())

    @plain_errors
    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: object = None
    ) -> dict[str, Any]:
        """The end of the next micro-batch. Spark 4.1 does not pass its start."""
        batches, options = self._batches(), self._options
        if start is None:
            return portal.shared().call(batches.latest_without_start()).to_json()
        limits = Limits(options.max_offsets_per_trigger, options.max_bytes_per_trigger)
        if versions.is_unlimited(limit):
            limits = Limits()
        return portal.shared().call(batches.latest(Offset.from_json(start), limits)).to_json()

    @plain_errors
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end of the streams, from which Spark computes the lag."""
        if self._live is None:
            return None
        return portal.shared().call(self._live.report()).to_json()

    @plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch, also if it is run again."""
        since, until = Offset.from_json(start), Offset.from_json(end)
        return portal.shared().call(self._batches().plan(since, until))

    @plain_errors
    def commit(self, end: dict[str, Any]) -> None:
        """Spark has recorded that everything before `end` is done."""
        portal.shared().call(self._batches().commit(Offset.from_json(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SlicePartition)
        return self._executor.read(partition)

    def _batches(self) -> MicroBatches:
        if self._live is None:
            self._live = MicroBatches(shared_store(self._options.url), self._options)
        return self._live


class RefusedReader(DataSourceStreamReader, versions.SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The source of a query that cannot run."""

    def __init__(self, error: HeadwaterError) -> None:
        self._error = error

    @plain_errors
    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise self._error

    initialOffset = _refuse
    getDefaultReadLimit = _refuse
    prepareForTriggerAvailableNow = _refuse
    latestOffset = _refuse
    partitions = _refuse
    read = _refuse
