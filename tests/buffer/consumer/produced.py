"""Batches in real queues, put there by their own doors."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.buffer.batch import Batch, Call, Calls
from headwater.buffer.compression import Compression
from headwater.buffer.queue.contract import AppendedBatch, NewBatch
from headwater.buffer.queue.v1.manifest_format import pack_calls
from headwater.buffer.records import from_values
from headwater.buffer.stream import Stream
from headwater.core import runtime


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
