"""A data source that yields ready-made Arrow batches: what a Python source can reach at best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from bench._spark_rows import KAFKA_SCHEMA, kafka_columns

BATCH_ROWS = 50_000


class Ready(DataSource):
    """`format("ready")` with the options rows, size and tasks."""

    @classmethod
    def name(cls) -> str:
        """What `format(…)` is given."""
        return "ready"

    def schema(self) -> str:
        """The columns of a Kafka source."""
        return KAFKA_SCHEMA

    def reader(self, schema: StructType) -> ReadyReader:
        """All rows at once."""
        return ReadyReader(dict(self.options))

    def streamReader(self, schema: StructType) -> ReadyStream:
        """All rows in one micro-batch."""
        return ReadyStream(dict(self.options))


def _partitions(options: dict[str, str]) -> list[InputPartition]:
    tasks, rows = int(options["tasks"]), int(options["rows"])
    return [InputPartition(rows // tasks) for _ in range(tasks)]


def _read(options: dict[str, str], rows: int) -> Iterator[pa.RecordBatch]:
    made = kafka_columns(BATCH_ROWS, int(options["size"]))
    for start in range(0, rows, BATCH_ROWS):
        yield made.slice(0, min(BATCH_ROWS, rows - start))


class ReadyReader(DataSourceReader):
    """The same batch again and again."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """As many as asked for."""
        return _partitions(self._options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """A task's share."""
        return _read(self._options, partition.value)


class ReadyStream(DataSourceStreamReader):
    """The same as one micro-batch."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def initialOffset(self) -> dict[str, int]:
        """Before everything."""
        return {"done": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        """After everything."""
        return {"done": 1}

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        """As many as asked for."""
        return _partitions(self._options) if start != end else []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """A task's share."""
        return _read(self._options, partition.value)
