"""The data source that Spark finds by the name `headwater`.

Spark makes one wherever it needs one: in the planning worker, in the driver's source runner, on
executors. Making it, and making a reader or writer from it, opens nothing and asks nobody.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from headwater.spark.options import Mode, WriteOptions
from headwater.spark.sink import BatchWriter, StreamWriter


class HeadwaterDataSource(DataSource):
    """Streams as DataFrames: batch and streaming, reading and writing."""

    @classmethod
    def name(cls) -> str:
        """What `format(…)` is given."""
        return "headwater"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """What writes a DataFrame."""
        return BatchWriter(
            WriteOptions.parse(self.options, Mode.WRITE), schema, overwrite=overwrite
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """What writes the micro-batches of a query."""
        options = WriteOptions.parse(self.options, Mode.WRITE_STREAM)
        return StreamWriter(options, schema, overwrite=overwrite)
