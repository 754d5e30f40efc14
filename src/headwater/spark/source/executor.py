"""The part of a reader that goes to the executors: options and columns, and no connection."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa
from pyspark.sql.types import StructType

from headwater.buffer.stream import Stream
from headwater.buffer.stream.config import decode_config
from headwater.core import portal
from headwater.spark.options import ReadOptions
from headwater.spark.plain_errors import plain
from headwater.spark.source.rows import Rows
from headwater.spark.source.shape import EXTRA, KAFKA, ON_REQUEST, Shape, check_given
from headwater.spark.source.slice_reading import SliceReading
from headwater.spark.source.slices import SlicePartition
from headwater.spark.stores import store_at
from headwater.spark.versions import arrow_schema
from headwater.store import Store


class Executor:
    """Reads slices into Arrow batches of one schema."""

    def __init__(self, options: ReadOptions, schema: StructType, shape: Shape | None) -> None:
        """Without a `shape` (the schema was given by hand), the stream tells it, or if that carried
        nothing yet, the names of the columns."""
        self._options = options
        self._schema = schema
        self._is_typed = None if shape is None else bool(shape.typed)
        self._shows_all = shape is not None and options.columns is None
        self._versions = {} if shape is None else dict(shape.versions)

    @plain
    def read(self, partition: SlicePartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        reading, rows = self.open(partition, store_at(self._options.url))
        outside = portal.shared()
        try:
            while pieces := outside.call(reading.next_pieces()):
                yield from rows.of(pieces)
        finally:
            outside.call(reading.close())

    def open(self, partition: SlicePartition, store: Store) -> tuple[SliceReading, Rows]:
        """What fetches the batches of one task, and what makes rows of them."""
        config = decode_config(partition.stream, msgspec.Raw(partition.origin), writing=False)
        stream = Stream(store, config)
        rows = Rows(
            arrow_schema(self._schema),
            stream=partition.stream,
            partition=partition.partition,
            is_typed=self._is_typed_in(stream),
            shows_all=self._shows_all,
            version=self._versions.get(partition.stream, 0),
        )
        reading = SliceReading(
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
            check_given([stream], names, self._options)
        if stream.is_opaque or stream.schema is not None:
            return stream.schema is not None
        return not {*KAFKA, *EXTRA, *ON_REQUEST}.issuperset(names)
