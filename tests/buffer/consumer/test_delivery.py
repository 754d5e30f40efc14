"""Delivery: in order, in turn, each once, also past what cannot be read."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from headwater.buffer.consumer import UnreadableBatch
from headwater.core import runtime
from headwater.core.errors import Denied, Fenced, Refused, Trimmed, Unavailable
from tests.buffer.consumer.fakes import FakeQueue, KeyFaults
from tests.buffer.consumer.opened import opened, sequence_of_next
from tests.store.scripted import Scripted, stalls, virtual

# Delivery


@virtual
async def test_next_batch_may_be_cancelled_at_any_point_and_nothing_is_passed_over() -> None:
    steps = 0
    finished = False
    while not finished:
        backend = Scripted()
        queue = FakeQueue(backend)
        await queue.add_many(3)
        consumer = await opened(queue)
        backend.next("get", *(stalls(0.001) for _ in range(3)))
        call = runtime.spawn(consumer.next_batch(), name="next_batch")
        await runtime.sleep(steps * 0.0002)
        finished = call.done()
        call.cancel()
        delivered = None
        with contextlib.suppress(asyncio.CancelledError):
            delivered = await call
        expected = 0 if delivered is None else 1
        assert consumer.last_handed_out_sequence == (None if delivered is None else 0)
        assert await sequence_of_next(consumer) == expected
        await consumer.close()
        steps += 1
    assert steps > 5


@virtual
async def test_a_failed_fetch_is_told_in_its_turn_and_tried_again_by_the_next_call() -> None:
    backend = KeyFaults()
    queue = FakeQueue(backend)
    _, second, _ = await queue.add_many(3)
    consumer = await opened(queue)
    backend.errors[second.location] = [Denied("not this one")]
    assert await sequence_of_next(consumer) == 0
    with pytest.raises(Denied):
        await consumer.next_batch()
    assert consumer.last_handed_out_sequence == 0
    assert [await sequence_of_next(consumer) for _ in range(2)] == [1, 2]


@virtual
async def test_a_batch_that_could_not_be_delivered_is_the_next_descriptor() -> None:
    backend = KeyFaults()
    queue = FakeQueue(backend)
    first, _ = await queue.add_many(2)
    consumer = await opened(queue)
    backend.errors[first.location] = [Denied("not this one")]
    with pytest.raises(Denied):
        await consumer.next_batch()
    assert [d.sequence for d in await consumer.next_descriptors(2)] == [0, 1]


@virtual
async def test_descriptors_and_batches_come_from_one_cursor() -> None:
    queue = FakeQueue()
    await queue.add_many(6)
    consumer = await opened(queue)
    assert await sequence_of_next(consumer) == 0
    assert [d.sequence for d in await consumer.next_descriptors(2)] == [1, 2]
    assert await sequence_of_next(consumer) == 3
    assert [d.sequence for d in await consumer.next_descriptors(10)] == [4, 5]
    assert await consumer.next_batch() is None
    await consumer.ack_through(5)


@virtual
async def test_descriptors_are_not_handed_out_again_when_the_queue_fails_in_between() -> None:
    queue = FakeQueue()
    await queue.add_many(3)
    consumer = await opened(queue)
    queue.fail("after", Unavailable("later"))
    with pytest.raises(Unavailable):
        await consumer.next_descriptors(2)
    assert [d.sequence for d in await consumer.next_descriptors(2)] == [0, 1]


@virtual
async def test_no_descriptors_are_asked_for_without_a_request() -> None:
    queue = FakeQueue()
    consumer = await opened(queue)
    queue.asked.clear()
    assert await consumer.next_descriptors(0) == []
    assert queue.asked == []
    with pytest.raises(Refused):
        await consumer.next_descriptors(-1)


@virtual
async def test_the_store_is_kept_busy() -> None:
    backend = Scripted()
    queue = FakeQueue(backend)
    await queue.add_many(16)
    consumer = await opened(queue)
    backend.next("get", *(stalls(0.5) for _ in range(16)))
    started_s = runtime.monotonic_s()
    assert [await sequence_of_next(consumer) for _ in range(16)] == list(range(16))
    assert runtime.monotonic_s() - started_s < 1.0


@virtual
async def test_reading_and_acknowledging_may_go_on_in_two_tasks() -> None:
    queue = FakeQueue()
    await queue.add_many(250)
    consumer = await opened(queue)
    delivered: asyncio.Queue[int] = asyncio.Queue()

    async def read() -> None:
        for _ in range(250):
            delivered.put_nowait(await sequence_of_next(consumer))

    async def acknowledge() -> None:
        for _ in range(250):
            await consumer.ack(await delivered.get())

    await asyncio.gather(read(), acknowledge())
    await consumer.close()
    assert queue.acked == 250


# What cannot be read


@virtual
async def test_a_missing_batch_is_a_clear_error_and_is_delivered_once_it_is_restored() -> None:
    queue = FakeQueue()
    first, _ = await queue.add_many(2)
    kept = (await queue.store.get(first.location)).data
    await queue.store.delete(first.location)
    consumer = await opened(queue)
    with pytest.raises(UnreadableBatch):
        await consumer.next_batch()
    with pytest.raises(UnreadableBatch) as told:
        await consumer.next_batch()
    for part in ("'orders'", "partition 0", "batch 0", "LSNs 1–2", first.location, "Restore"):
        assert part in str(told.value)
    await queue.store.put(first.location, kept)
    assert [await sequence_of_next(consumer) for _ in range(2)] == [0, 1]


@virtual
async def test_a_batch_that_went_with_the_retention_is_trimmed_and_not_damaged() -> None:
    queue = FakeQueue()
    (first, _) = await queue.add_many(2)
    consumer = await opened(queue, on_bad_batch="dead_letter")
    await queue.store.delete(first.location)
    queue.floor = 1
    with pytest.raises(Trimmed) as told:
        await consumer.next_batch()
    assert told.value.floor == 1
    assert consumer.metrics.dead_letters == 0


@virtual
async def test_a_batch_that_nobody_can_count_is_told_after_what_was_appended_before_it() -> None:
    queue = FakeQueue()
    await queue.add_many(3)
    queue.uncounted = {2}
    consumer = await opened(queue)
    assert [await sequence_of_next(consumer) for _ in range(2)] == [0, 1]
    with pytest.raises(Exception, match="its rows cannot be told"):
        await consumer.next_batch()
    queue.uncounted = set()
    assert await sequence_of_next(consumer) == 2


@virtual
async def test_a_consumer_whose_read_ahead_meets_an_uncounted_batch_still_checks_the_fence() -> (
    None
):
    queue = FakeQueue()
    await queue.add_many(3)
    queue.uncounted = {2}
    consumer = await opened(queue)
    assert await sequence_of_next(consumer) == 0
    await opened(queue)
    with pytest.raises(Fenced):
        await consumer.next_batch()
