"""What Spark calls for `spark.read`: looks at what is retained, opens nothing, fences nobody."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headwater.core import portal
from headwater.core.errors import Refused, Trimmed
from headwater.spark.options import ReadOptions
from headwater.spark.options.offsets import EARLIEST
from headwater.spark.plain_errors import plain
from headwater.spark.source import asked
from headwater.spark.source.buffer_feed import BufferFeed
from headwater.spark.source.executor import Executor
from headwater.spark.source.feed import Feed
from headwater.spark.source.known import Known
from headwater.spark.source.loss import lost_before
from headwater.spark.source.membership import at_once
from headwater.spark.source.micro_batches import pack
from headwater.spark.source.shape import Shape
from headwater.spark.source.slices import Slice, SlicePartition
from headwater.spark.source.subscription import parts_of, subscribed_streams
from headwater.spark.stores import store_at

if TYPE_CHECKING:
    import pyarrow as pa

LOG: Final = logging.getLogger("headwater.spark")


class BatchReader(DataSourceReader):
    """One bounded read."""

    def __init__(self, options: ReadOptions, schema: StructType, shape: Shape | None) -> None:
        """Opens nothing, asks nobody."""
        self._options = options
        self._executor = Executor(options, schema, shape)

    @plain
    def partitions(self) -> list[InputPartition]:
        """The tasks; never none, because Spark then makes up one of its own."""
        found: list[InputPartition] = list(portal.shared().call(plan_batch(self._options)))
        return found or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, on an executor."""
        if not isinstance(partition, SlicePartition):
            return iter(())
        return self._executor.read(partition)


async def plan_batch(options: ReadOptions) -> list[SlicePartition]:
    """The tasks that read what was asked for, as it is retained at this moment."""
    store = store_at(options.url)
    streams = await subscribed_streams(store, options)
    feeds = [BufferFeed(stream, part.partition) for stream, part in parts_of(streams, options)]
    parts = [feed.part for feed in feeds]
    asked.check_named(options, parts)
    found = await at_once(_slices(feed, options) for feed in feeds)
    return pack(zip(feeds, found, strict=True), options)


async def _slices(feed: Feed, options: ReadOptions) -> list[Slice]:
    start = await asked.starting_place(feed, options, EARLIEST)
    end = await asked.ending_place(feed, options)
    if start >= end:
        if start > end and isinstance(options.starting_offsets, Mapping):
            raise Refused(
                f"{feed.part}: the read would begin at offset {start.lsn} and end before {end.lsn}"
            )
        return []
    try:
        return await Known(feed, start).all_until(end)
    except Trimmed as trimmed:
        oldest = (await feed.bounds()).oldest
        # Whoever asked for whatever is retained gets that; whoever named records is told.
        if isinstance(options.starting_offsets, Mapping):
            loss = lost_before(feed.part, start, oldest, options.url)
            if options.fail_on_data_loss:
                raise loss from trimmed
            LOG.warning("%s", loss)
        return await Known(feed, oldest).all_until(end)
