"""Closing flushes, hides no error, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc

import pytest

from headwater.buffer.consumer import BlockingConsumer, Consumer
from headwater.buffer.stream import create_stream
from headwater.core import portal, runtime
from headwater.core.errors import Fenced, Refused, Unavailable
from headwater.store import MemoryBackend, open_store
from headwater.store.objects import ByteRange, Object
from tests.buffer.consumer.fakes import FakeQueue
from tests.buffer.consumer.opened import opened, sequence_of_next
from tests.store.scripted import Scripted, virtual


@virtual
async def test_closing_flushes_and_closing_twice_is_closing_once() -> None:
    queue = FakeQueue()
    await queue.add_many(1)
    async with await opened(queue) as consumer:
        await consumer.ack(await sequence_of_next(consumer))
    assert queue.acked == 1
    await consumer.close()
    with pytest.raises(Refused, match="closed"):
        await consumer.next_batch()
    with pytest.raises(Refused, match="closed"):
        await consumer.ack(1)


@virtual
async def test_who_closes_beside_another_returns_once_it_is_closed() -> None:
    queue = FakeQueue()
    await queue.add_many(1)
    consumer = await opened(queue)
    await consumer.ack(await sequence_of_next(consumer))
    first = runtime.spawn(consumer.close(), name="first")
    await runtime.sleep(0)
    await consumer.close()
    assert (first.done(), queue.acked) == (True, 1)


def test_an_error_in_a_block_without_a_loop_is_not_hidden_either() -> None:
    stream = portal.shared().call(create_stream(open_store("memory://"), "orders"))

    def block() -> None:
        with BlockingConsumer.open(stream, gc=False):
            BlockingConsumer.open(stream, gc=False)
            raise KeyError("mine")

    with pytest.raises(KeyError) as told:
        block()
    assert "took over" in told.value.__notes__[0]


@virtual
async def test_an_error_in_the_block_is_not_hidden_by_one_in_closing() -> None:
    queue = FakeQueue()
    await queue.add_many(1)

    async def block() -> None:
        async with await opened(queue) as consumer:
            await sequence_of_next(consumer)
            await opened(queue)
            raise KeyError("mine")

    with pytest.raises(KeyError) as told:
        await block()
    assert "took over" in told.value.__notes__[0]


@virtual
async def test_a_consumer_that_cannot_flush_is_closed_all_the_same() -> None:
    backend = Scripted()
    queue = FakeQueue(backend)
    await queue.add_many(3)
    consumer = await Consumer.open(queue.stream(), read_ahead_batches=1)
    await consumer.ack(await sequence_of_next(consumer))
    queue.fail("dequeue", Unavailable("later"))
    with pytest.raises(Unavailable):
        await consumer.close()
    gets = backend.count("get")
    await runtime.sleep(3600)
    assert consumer.metrics.gc_passes_failed == 0
    assert backend.count("get") == gets


@virtual
async def test_a_dropped_consumer_leaves_no_garbage_collection_behind() -> None:
    queue = FakeQueue()
    consumer = await Consumer.open(queue.stream(), gc_interval_s=10)
    await runtime.sleep(25)
    assert consumer.metrics.gc_passes_failed == 2  # this stream has no register to ask
    metrics = consumer.metrics
    del consumer
    gc.collect()
    await runtime.sleep(1000)
    assert metrics.gc_passes_failed == 2


@virtual
async def test_a_fenced_consumer_collects_no_more() -> None:
    queue = FakeQueue()
    consumer = await Consumer.open(queue.stream(), gc_interval_s=10)
    await opened(queue)
    with pytest.raises(Fenced):
        await consumer.flush()
    await runtime.sleep(100)
    assert consumer.metrics.gc_passes_failed == 0


@virtual
async def test_closing_leaves_no_reading_ahead_behind() -> None:
    class Slow(MemoryBackend):
        async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
            if key != first.location:
                await runtime.sleep(1e6)
            return await super().get(key, byte_range)

    queue = FakeQueue(Slow())
    first, *_ = await queue.add_many(4)
    consumer = await opened(queue)
    assert await sequence_of_next(consumer) == 0
    assert len(asyncio.all_tasks()) > 1
    await consumer.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
