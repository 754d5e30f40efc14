"""Consumers and streams with records, for the tests of this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headwater.buffer.batch import Batch, Call, Calls
from headwater.buffer.compression import Compression
from headwater.buffer.consumer import Consumer, Reader
from headwater.buffer.queue.contract import AppendedBatch, NewBatch
from headwater.buffer.queue.v1.manifest_format import pack_calls
from headwater.buffer.records import from_values
from headwater.buffer.stream import Stream
from headwater.core import runtime
from tests.buffer.consumer.fakes import FakeQueue, FakeStream


async def produce(
    stream: Stream,
    *batches: Sequence[bytes],
    partition: int = 0,
    inline: bool = False,
) -> list[AppendedBatch]:
    """Append batches of these values, uploaded or riding in their entries."""
    appender = stream.appender(partition, f"p-{runtime.new_ulid()}")
    await appender.open()
    entries = []
    for number, values in enumerate(batches, start=1):
        calls = Calls.of([Call(0, runtime.wall_ms(), None)])
        batch = Batch(runtime.new_ulid(), from_values(list(values)), calls)
        data = appender.encode(batch, Compression.NONE)
        if not inline:
            await appender.upload(batch.batch_id, data)
        entries.append(
            NewBatch(
                batch_id=batch.batch_id,
                producer_sequence=number,
                rows=len(values),
                size_bytes=len(data),
                **batch.times()._asdict(),
                inline=bytes(data) if inline else None,
                calls=pack_calls(calls) if stream.config.format == "v1" else b"",
            )
        )
    return await appender.append(entries)


# Streams of rows to read, and the rows that were read.


async def rows_of(reader: Reader) -> list[dict[str, Any]]:
    batches = [batch async for batch in reader]
    assert all(batch.schema == reader.schema for batch in batches)
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches, reader.schema).to_pylist()
    return rows


class FakeStreamWithSchema(FakeStream):
    def __init__(self, queue: FakeQueue, schema: pa.Schema) -> None:
        super().__init__(queue, "query", 1)
        self.schema = schema


# A consumer on a fake queue, and what it hands out next.


async def opened(queue: FakeQueue, **options: object) -> Consumer:
    return await Consumer.open(queue.stream(), gc=False, **options)  # type: ignore[arg-type]


async def sequence_of_next(consumer: Consumer) -> int:
    batch = await consumer.next_batch()
    assert batch is not None
    return batch.sequence
