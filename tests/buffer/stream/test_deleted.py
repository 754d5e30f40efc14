"""Whoever still uses a deleted stream is told that, and not that its data are damaged."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.buffer.consumer import AsyncReader, Consumer, Follower, read_async
from headwater.buffer.producer import Producer
from headwater.buffer.stream import create_stream, delete_stream
from headwater.buffer.stream.handle import deletion_error
from headwater.core import runtime
from headwater.core.errors import NotFound, RolledBack, Trimmed
from headwater.store import MemoryBackend, Store
from tests.buffer.consumer.produced import produce
from tests.store.scripted import virtual

FORMATS = ["native", "v1"]
TOLD = r"stream 'orders' \(id .*\) was deleted"


async def to_the_end(reader: AsyncReader) -> None:
    """Read on; a reader that follows has no end but an error."""
    async for _ in reader:
        pass


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("format_name", FORMATS)
@virtual
async def test_a_producer_is_told(format_name: str, again: bool) -> None:
    store = Store(MemoryBackend())
    await create_stream(store, "orders", format=format_name)
    producer = await Producer.open(store, "orders", linger_ms=0, delivery_timeout_ms=10_000)
    await (await producer.produce([b"a"]))
    await delete_stream(store, "orders")
    if again:
        await create_stream(store, "orders", format=format_name)
    await runtime.sleep(60)
    handle = await producer.produce([b"b"])
    with pytest.raises(NotFound, match=TOLD):
        await handle
    with pytest.raises(NotFound, match=TOLD):
        await producer.produce([b"c"])
    await producer.close()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("format_name", FORMATS)
@virtual
async def test_a_consumer_and_whoever_follows_or_reads_is_told(
    format_name: str, again: bool
) -> None:
    store = Store(MemoryBackend())
    stream = await create_stream(store, "orders", format=format_name)
    await produce(stream, [b"a"], [b"b"])
    consumer = await Consumer.open(stream, gc=False, read_ahead_batches=1)
    follower = await Follower.open(stream, group="audit", read_ahead_batches=1)
    reader = await read_async(stream, follow=True)
    for opened in (consumer, follower, reader):
        await opened.next_batch()
    await consumer.ack(0)
    await delete_stream(store, "orders")
    if again:
        await create_stream(store, "orders", format=format_name)
    await runtime.sleep(60)
    calls: list[Any] = [
        consumer.next_batch,
        consumer.flush,
        consumer.lag,
        follower.next_batch,
        follower.lag,
        lambda: Consumer.open(stream),
    ]
    for call in calls:
        with pytest.raises(NotFound, match=TOLD):
            await call()
    with pytest.raises(NotFound, match=TOLD):
        await to_the_end(reader)
    with pytest.raises(NotFound, match=TOLD):
        await consumer.close()


@virtual
async def test_a_queue_that_is_gone_under_a_stream_that_lives_is_damage() -> None:
    store = Store(MemoryBackend())
    stream = await create_stream(store, "orders")
    consumer = await Consumer.open(stream, gc=False)
    async for meta in store.list("streams/orders/0"):
        await store.delete(meta.key)
    with pytest.raises(RolledBack):
        await consumer.flush()


@virtual
async def test_where_nobody_can_look_the_error_stays_what_it_was() -> None:
    store = Store(MemoryBackend())
    stream = await create_stream(store, "orders")
    consumer = await Consumer.open(stream, gc=False)
    await delete_stream(store, "orders")
    await store.delete("streams/orders/stream.json")
    with pytest.raises(RolledBack):
        await consumer.flush()


@virtual
async def test_what_is_not_retained_is_no_sign_of_a_deletion() -> None:
    store = Store(MemoryBackend())
    stream = await create_stream(store, "orders")
    await delete_stream(store, "orders")
    trimmed, gone = Trimmed("the oldest is 3", floor=3), RolledBack("there is no queue")
    assert await deletion_error(stream, trimmed) is trimmed
    assert isinstance(await deletion_error(stream, gone), NotFound)
