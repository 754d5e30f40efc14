"""Streams of rows to read, and the rows that were read."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headwater.buffer.consumer import AsyncReader
from tests.buffer.consumer.fakes import FakeQueue, FakeStream


async def rows_of(reader: AsyncReader) -> list[dict[str, Any]]:
    batches = [batch async for batch in reader]
    assert all(batch.schema == reader.schema for batch in batches)
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches, reader.schema).to_pylist()
    return rows


class FakeStreamWithSchema(FakeStream):
    def __init__(self, queue: FakeQueue, schema: pa.Schema) -> None:
        super().__init__(queue, "query", 1)
        self.schema = schema
