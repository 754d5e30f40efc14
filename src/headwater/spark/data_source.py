"""The data source that Spark finds by the name `headwater`.

Spark creates one in several processes: in the planning worker, in the driver's source runner, on
executors. Creating it sends no request. Creating a reader only reads: a user's schema is compared
with the stream's, which is in its register. Only creating a writer may write: new columns of a
stream are recorded before any task runs.
"""

from __future__ import annotations

from collections.abc import MutableMapping

try:
    from pyspark.sql.datasource import DataSource
except ModuleNotFoundError as error:
    # The first import of PySpark when headwater.spark is imported.
    raise ModuleNotFoundError(
        f"headwater.spark needs PySpark 4.1 or newer ({error}): "
        "pip install 'pyspark[pipelines]>=4.1,<5' 'pandas<3'",
        name=error.name,
    ) from error
from pyspark.sql.types import StructField, StructType

from headwater.core import portal
from headwater.core.errors import HeadwaterError
from headwater.spark.errors import plain_errors
from headwater.spark.options import Mode, ReadOptions, WriteOptions, reading_mode
from headwater.spark.sink import BatchWriter, StreamWriter
from headwater.spark.source import BatchReader, RefusedReader, StreamReader
from headwater.spark.source.streams import (
    SourceSchema,
    check_user_schema,
    source_schema,
    subscribed_streams,
)
from headwater.spark.versions import spark_schema
from headwater.store.locations import shared_store


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
        options = self._options_for_schema()
        self._source_schema = portal.shared().call(_read_schema(options))
        columns = spark_schema(self._source_schema.columns(options))
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

    def _options_for_schema(self) -> ReadOptions:
        """Spark does not say whether a batch or a stream is read; the options show it."""
        return ReadOptions.parse(self.options, reading_mode(self.options))

    def _checked(self, mode: Mode, schema: StructType) -> ReadOptions:
        options = ReadOptions.parse(self.options, mode)
        if self._source_schema is None:
            portal.shared().call(_check_given(options, schema.fieldNames()))
        return options


async def _read_schema(options: ReadOptions) -> SourceSchema:
    return source_schema(await subscribed_streams(shared_store(options.url), options), options)


async def _check_given(options: ReadOptions, names: list[str]) -> None:
    streams = await subscribed_streams(shared_store(options.url), options)
    check_user_schema(streams, names, options)
