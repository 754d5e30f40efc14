"""The data source that Spark finds by the name `headwater`.

Spark makes one wherever it needs one: in the planning worker, in the driver's source runner, on
executors. Making it, and making a reader or writer from it, opens nothing and asks nobody. Only the
schema is looked up, in the stream's register and, where none is declared, in its oldest batch.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructField, StructType

from headwater.core import portal
from headwater.spark.options import Mode, ReadOptions, WriteOptions, reading_mode
from headwater.spark.sink import BatchWriter, StreamWriter
from headwater.spark.source.batch_reader import BatchReader
from headwater.spark.source.shape import Shape, shape_of
from headwater.spark.source.stream_reader import StreamReader
from headwater.spark.source.subscription import subscribed_streams
from headwater.spark.stores import store_at
from headwater.spark.versions import spark_schema


class HeadwaterDataSource(DataSource):
    """Streams as DataFrames: batch and streaming, reading and writing."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._shape: Shape | None = None

    @classmethod
    def name(cls) -> str:
        """What `format(…)` is given."""
        return "headwater"

    def schema(self) -> StructType:
        """The columns of the streams that are read."""
        options = self._options_for_schema()
        self._shape = portal.shared().call(_shape(options))
        columns = spark_schema(self._shape.columns(options))
        return StructType([StructField(f.name, f.dataType, nullable=True) for f in columns])

    def reader(self, schema: StructType) -> BatchReader:
        """For `spark.read`."""
        return BatchReader(ReadOptions.parse(self.options, Mode.READ), schema, self._shape)

    def streamReader(self, schema: StructType) -> StreamReader:
        """For `spark.readStream`."""
        return StreamReader(ReadOptions.parse(self.options, Mode.READ_STREAM), schema, self._shape)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """What writes a DataFrame."""
        options = WriteOptions.parse(self.options, Mode.WRITE)
        return BatchWriter(options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """What writes the micro-batches of a query."""
        options = WriteOptions.parse(self.options, Mode.WRITE_STREAM)
        return StreamWriter(options, schema, overwrite=overwrite)

    def _options_for_schema(self) -> ReadOptions:
        """Spark does not say whether it is for a batch or a stream; the options do."""
        return ReadOptions.parse(self.options, reading_mode(self.options))


async def _shape(options: ReadOptions) -> Shape:
    return await shape_of(await subscribed_streams(store_at(options.url), options), options)
