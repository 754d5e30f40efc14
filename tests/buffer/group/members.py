"""Streams with records, and members that read them, for the tests of a group's consumers."""

from __future__ import annotations

from typing import Any

from headwater.buffer.consumer import ConsumedBatch
from headwater.buffer.group.consumer import GroupConsumer
from headwater.buffer.queue.retention import Retention
from headwater.buffer.stream import Stream, create_stream
from headwater.core import runtime
from headwater.store import MemoryBackend, Store
from headwater.store.backend import Backend
from tests.buffer.consumer.given import produce


async def stream_with(
    *counts: int, backend: Backend | None = None, inline: bool = True, **settings: Any
) -> Stream:
    """A stream with so many batches of two records in each of its partitions."""
    store = Store(backend or MemoryBackend())
    stream = await create_stream(store, "orders", partitions=len(counts), **settings)
    for partition, count in enumerate(counts):
        await add(stream, partition, count, inline=inline)
    return stream


async def add(stream: Stream, partition: int, count: int, *, inline: bool = True) -> None:
    """Append batches of two records."""
    batches = [[b"%d/%d" % (partition, n), b"x"] for n in range(count)]
    if batches:
        await produce(stream, *batches, partition=partition, inline=inline)


async def member(stream: Stream, group: str = "billing", **options: Any) -> GroupConsumer:
    """A member over a store of its own."""
    options.setdefault("collect", False)
    own = Stream(Store(stream.store._backend), stream.config)
    return await GroupConsumer(own, group=group, **options).open()


async def poll(consumer: GroupConsumer, within_s: float = 30.0) -> ConsumedBatch:
    """The next batch, which must come."""
    batch = await consumer.poll(within_s)
    assert batch is not None
    return batch


async def place_of(consumer: GroupConsumer) -> tuple[int, int]:
    """Partition and sequence of the next batch."""
    batch = await poll(consumer)
    return batch.partition, batch.sequence


async def take(consumer: GroupConsumer, count: int) -> list[tuple[int, int]]:
    """Poll and acknowledge so many batches."""
    places = []
    for _ in range(count):
        batch = await poll(consumer)
        await consumer.ack(batch)
        places.append((batch.partition, batch.sequence))
    return places


async def rest(consumer: GroupConsumer) -> list[tuple[int, int]]:
    """Poll and acknowledge all that is there."""
    places = []
    while (batch := await consumer.poll(3.0)) is not None:
        await consumer.ack(batch)
        places.append((batch.partition, batch.sequence))
    return places


async def trim(stream: Stream, partition: int, before: int) -> None:
    """Delete the batches of a partition before this one, as a truncation does."""
    collector = stream.collector(partition)
    retention = Retention(retention_ms=None, before_sequence=before, grace_ms=0)
    while (await collector.collect(retention)).is_cut_short:
        pass
    assert (await stream.queue_reader(partition).floor()).sequence == before


async def settle() -> None:
    """Time for members to rebalance."""
    await runtime.sleep(5.0)
