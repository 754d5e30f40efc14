"""Delivery: in order, in turn, each once, also past what cannot be read."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from headwater.buffer.consumer import UnreadableBatch
from headwater.buffer.consumer.consumed_batch import ConsumedBatch
from headwater.buffer.consumer.delivery import ReadAhead
from headwater.buffer.queue.contract import BatchTrimmed, Descriptor
from headwater.buffer.records import from_values
from headwater.core import runtime
from headwater.core.errors import Corrupt, Denied, Fenced, Refused, Unavailable
from tests.buffer.consumer.fakes import FakeQueue, KeyFaults
from tests.buffer.consumer.given import opened, sequence_of_next
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
    with pytest.raises(BatchTrimmed) as told:
        await consumer.next_batch()
    assert told.value.floor_sequence == 1
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


# Read-ahead: many fetches at once, bounded, delivered in order, safe against cancellation.


def described(sequence: int, size_bytes: int = 10) -> Descriptor:
    return Descriptor(sequence, f"batches/{sequence}", sequence + 1, 1, size_bytes, 0, 0)


class Fetches:
    """Fetches that take as long as they are told, and count how many are under way."""

    def __init__(self) -> None:
        self.takes_s: dict[int, float] = {}
        self.errors: dict[int, list[Exception]] = {}
        self.value = b"x"
        self.under_way = 0
        self.most_under_way = 0
        self.begun: list[int] = []

    async def __call__(self, descriptor: Descriptor) -> ConsumedBatch:
        self.begun.append(descriptor.sequence)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await runtime.sleep(self.takes_s.get(descriptor.sequence, 1.0))
            if self.errors.get(descriptor.sequence):
                raise self.errors[descriptor.sequence].pop(0)
        finally:
            self.under_way -= 1
        records = from_values([self.value])
        return ConsumedBatch(descriptor, records, stream="orders", partition=0)


async def take(ahead: ReadAhead) -> int:
    outcome = await ahead.first()
    assert isinstance(outcome, ConsumedBatch)
    ahead.pop()
    return outcome.sequence


@virtual
async def test_batches_come_in_order_though_later_ones_arrive_first() -> None:
    fetches = Fetches()
    fetches.takes_s = {0: 9.0, 1: 5.0, 2: 1.0}
    ahead = ReadAhead(fetches)
    ahead.add(described(n) for n in range(3))
    assert [await take(ahead) for _ in range(3)] == [0, 1, 2]


@virtual
async def test_fetches_are_under_way_together() -> None:
    fetches = Fetches()
    ahead = ReadAhead(fetches, max_batches=4)
    ahead.add(described(n) for n in range(4))
    started_s = runtime.monotonic_s()
    for _ in range(4):
        await take(ahead)
    assert runtime.monotonic_s() - started_s < 2.0
    assert fetches.most_under_way == 4


@virtual
async def test_no_more_are_under_way_or_decoded_than_the_bound() -> None:
    fetches = Fetches()
    ahead = ReadAhead(fetches, max_batches=3)
    ahead.add(described(n) for n in range(10))
    await runtime.sleep(5)
    assert sorted(fetches.begun) == [0, 1, 2]
    await take(ahead)
    await runtime.sleep(5)
    assert sorted(fetches.begun) == [0, 1, 2, 3]


@virtual
async def test_no_more_bytes_are_under_way_than_the_bound() -> None:
    fetches = Fetches()
    ahead = ReadAhead(fetches, max_bytes=25)
    ahead.add(described(n, size_bytes=10) for n in range(10))
    await runtime.sleep(5)
    assert sorted(fetches.begun) == [0, 1]


@virtual
async def test_a_batch_counts_with_what_it_takes_once_it_is_decoded() -> None:
    fetches = Fetches()
    fetches.value = b"x" * 1000
    ahead = ReadAhead(fetches, max_bytes=1500)
    ahead.add(described(n, size_bytes=600) for n in range(4))
    await runtime.sleep(5)
    assert sorted(fetches.begun) == [0, 1]
    await take(ahead)
    await runtime.sleep(5)
    # One decoded batch of a thousand bytes leaves no room for another six hundred.
    assert sorted(fetches.begun) == [0, 1]


@virtual
async def test_a_batch_above_the_bound_is_fetched_all_the_same() -> None:
    ahead = ReadAhead(Fetches(), max_bytes=5)
    ahead.add([described(0, size_bytes=1_000), described(1, size_bytes=1_000)])
    assert [await take(ahead), await take(ahead)] == [0, 1]


@virtual
async def test_a_failure_stays_at_its_place_until_it_was_told_and_is_tried_again_then() -> None:
    fetches = Fetches()
    fetches.errors = {1: [Corrupt("once")]}
    ahead = ReadAhead(fetches)
    ahead.add(described(n) for n in range(3))
    await runtime.sleep(5)
    assert await take(ahead) == 0
    assert isinstance(await ahead.first(), Corrupt)
    assert isinstance(await ahead.first(), Corrupt)
    ahead.retry_first()
    assert [await take(ahead), await take(ahead)] == [1, 2]
    assert sorted(fetches.begun) == [0, 1, 1, 2]


@virtual
async def test_a_store_that_failed_before_the_batch_was_asked_for_is_asked_again() -> None:
    fetches = Fetches()
    fetches.errors = {1: [Unavailable("early"), Unavailable("still")]}
    ahead = ReadAhead(fetches)
    ahead.add(described(n) for n in range(2))
    await runtime.sleep(500)
    assert await take(ahead) == 0
    outcome = await ahead.first()
    assert str(outcome) == "still"
    ahead.retry_first()
    assert await take(ahead) == 1


@virtual
async def test_whoever_waits_may_be_cancelled_and_the_fetch_goes_on() -> None:
    fetches = Fetches()
    ahead = ReadAhead(fetches)
    ahead.add([described(0)])
    waiting = runtime.spawn(ahead.first(), name="waiting")
    await runtime.sleep(0.5)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    assert await take(ahead) == 0
    assert fetches.begun == [0]


@virtual
async def test_closing_stops_what_is_under_way_and_waits_for_it() -> None:
    fetches = Fetches()
    ahead = ReadAhead(fetches)
    ahead.add(described(n) for n in range(3))
    await runtime.sleep(0.5)
    assert fetches.under_way == 3
    await ahead.close()
    assert fetches.under_way == 0


@virtual
async def test_whoever_waits_while_it_is_closed_is_told() -> None:
    ahead = ReadAhead(Fetches())
    ahead.add([described(0)])
    waiting = runtime.spawn(ahead.first(), name="waiting")
    await runtime.sleep(0.5)
    await ahead.close()
    with pytest.raises(Refused, match="closed while"):
        await waiting


@virtual
async def test_what_was_handed_out_another_way_is_dropped() -> None:
    fetches = Fetches()
    ahead = ReadAhead(fetches)
    ahead.add(described(n) for n in range(4))
    await runtime.sleep(0.5)
    ahead.drop_through(2)
    assert await take(ahead) == 3
    assert fetches.under_way == 0


def test_bounds_that_allow_nothing_are_refused() -> None:
    with pytest.raises(Refused, match="read-ahead"):
        ReadAhead(Fetches(), max_batches=0)


@virtual
async def test_an_error_of_any_kind_is_told_in_its_turn_and_the_batch_fetched_again() -> None:
    fetches = Fetches()
    fetches.takes_s = {0: 3.0}
    fetches.errors = {1: [MemoryError("no room to decode")]}
    ahead = ReadAhead(fetches)
    ahead.add(described(n) for n in range(3))
    assert await take(ahead) == 0
    assert isinstance(await ahead.first(), MemoryError)
    ahead.retry_first()
    assert [await take(ahead) for _ in range(2)] == [1, 2]
