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
from headwater.spark.source.shape import EXTRA, KAFKA, ON_REQUEST, Shape
from headwater.spark.source.slice_reading import SliceReading
from headwater.spark.source.slices import SlicePartition
from headwater.spark.stores import store_at
from headwater.spark.versions import arrow_schema
from headwater.store import Store


class Executor:
    """Reads slices into Arrow batches of one schema."""

    def __init__(self, options: ReadOptions, schema: StructType, shape: Shape | None) -> None:
        """Without a `shape` (the schema was given by hand), the names of the columns tell it."""
        self._options = options
        self._schema = schema
        names = {*KAFKA, *EXTRA, *ON_REQUEST}
        if shape is None:
            self._is_typed = not names.issuperset(schema.fieldNames())
            self._shows_all = False
        else:
            self._is_typed = bool(shape.typed)
            self._shows_all = options.columns is None
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
            is_typed=self._is_typed,
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
