"""What Spark asks of a stream reader, and the rows that it gets."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.spark.data_source import StreamReader
from tests.spark.source.source_world import rows_of, values_of

LIMITS: Any = pytest.importorskip("pyspark.sql.streaming.datasource")
ALL = LIMITS.ReadAllAvailable()


def rows_between(reader: StreamReader, start: Any, end: Any) -> list[bytes]:
    return values_of(rows_of(reader, reader.partitions(start, end)))


def next_rows(reader: StreamReader, start: Any) -> tuple[list[bytes], Any]:
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    return rows_between(reader, start, end), end


def first_rows(reader: StreamReader) -> tuple[list[bytes], Any]:
    return next_rows(reader, reader.initialOffset())
