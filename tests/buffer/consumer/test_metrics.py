"""Lag: what the queue says at the moment it is asked, however long nobody did anything."""

from __future__ import annotations

from unittest import mock

import pytest

from headwater.buffer.consumer import Consumer, FollowerRegister, Lag, Ownership, lag
from headwater.buffer.consumer.progress import lag_behind
from headwater.buffer.queue.contract import QueuePosition
from headwater.core import limits, runtime
from headwater.core.errors import NotFound, RolledBack
from tests.buffer.consumer.fakes import FakeLooker, FakeQueue
from tests.store.scripted import virtual


@virtual
async def test_nothing_waits_in_an_empty_queue() -> None:
    assert await lag(FakeQueue().stream()) == Lag(0, 0, 0, 0.0)


@virtual
async def test_it_grows_while_everybody_stands_still() -> None:
    queue = FakeQueue()
    first, second = await queue.add_many(2)
    consumer = await Consumer.open(queue.stream(), gc=False)
    await runtime.sleep(100)
    for asked in (await consumer.lag(), await lag(queue.stream())):
        assert (asked.batches, asked.records) == (2, 4)
        assert asked.size_bytes == first.size_bytes + second.size_bytes
        assert asked.seconds == pytest.approx(100, abs=1)
    await queue.add_many(1)
    await runtime.sleep(100)
    later = await consumer.lag()
    assert later.batches == 3
    assert later.seconds == pytest.approx(200, abs=1)


@virtual
async def test_it_is_zero_when_everything_is_acknowledged_though_not_yet_flushed() -> None:
    queue = FakeQueue()
    await queue.add_many(3)
    consumer = await Consumer.open(queue.stream(), gc=False)
    while batch := await consumer.next_batch():
        await consumer.ack(batch.sequence)
    await runtime.sleep(100)
    assert queue.acked == 0
    assert await consumer.lag() == Lag(0, 0, 0, 0.0)
    assert consumer.metrics.consumer_lag_seconds == 0.0
    # Readers see what the queue knows.
    assert (await lag(queue.stream())).batches == 3
    await consumer.flush()
    assert await lag(queue.stream()) == Lag(0, 0, 0, 0.0)


@virtual
async def test_it_counts_from_the_oldest_that_is_not_acknowledged() -> None:
    queue = FakeQueue()
    await queue.add()
    await runtime.sleep(100)
    second = await queue.add()
    consumer = await Consumer.open(queue.stream(), gc=False)
    await consumer.next_batch()
    await consumer.ack(0)
    await runtime.sleep(10)
    # The second one was not even handed out.
    waits = await consumer.lag()
    assert (waits.batches, waits.records, waits.size_bytes) == (1, 2, second.size_bytes)
    assert waits.seconds == pytest.approx(10, abs=1)
    await consumer.next_batch()
    assert (await consumer.lag()).seconds == pytest.approx(10, abs=1)


@virtual
async def test_asking_changes_nothing() -> None:
    queue = FakeQueue()
    await queue.add_many(1)
    await lag(queue.stream())
    assert (queue.epoch, queue.acked, queue.asked) == (0, 0, ["state"])


@virtual
async def test_the_gauge_goes_on_while_the_consumer_stands_still() -> None:
    queue = FakeQueue()
    await queue.add_many(1)
    consumer = await Consumer.open(queue.stream(), gc=False)
    await consumer.next_batch()
    await runtime.sleep(50)
    assert consumer.metrics.consumer_lag_seconds == pytest.approx(50, abs=1)
    await runtime.sleep(50)
    assert consumer.metrics.consumer_lag_seconds == pytest.approx(100, abs=1)


@virtual
async def test_bytes_that_would_take_too_long_to_add_up_are_left_out() -> None:
    queue = FakeQueue()
    (only,) = await queue.add_many(1)
    queue.entries *= limits.LAG_WALK_BATCHES + limits.LOOK_BATCHES
    queue.entries = [
        type(only)(n, only.location, 2 * n + 1, 2, 10, only.min_ms, only.max_ms)
        for n, _ in enumerate(queue.entries)
    ]
    found = await lag_behind(FakeLooker(queue), -1)
    assert found.batches == len(queue.entries)
    assert found.size_bytes is None
    assert len(queue.asked) <= 2 + limits.LAG_WALK_BATCHES // limits.LOOK_BATCHES + 1


@virtual
async def test_a_groups_own_position_counts_also_within_a_batch() -> None:
    queue = FakeQueue()
    await queue.add_many(3)
    stream = queue.stream()
    with pytest.raises(NotFound, match=r"'audit' has no position .* which no group owns"):
        await lag(stream, group="audit")
    await FollowerRegister(stream, 0, "audit").begin(QueuePosition(1, 4))
    found = await lag(stream, group="audit")
    assert (found.batches, found.records) == (2, 3)
    owner = await Ownership.open(stream, 0, "billing", gc=False)
    await owner.acknowledge(0)
    assert (await lag(stream, group="billing")).records == 4
    await FollowerRegister(stream, 0, "billing").advance(QueuePosition(1, 4))
    assert (await lag(stream, group="billing")).records == 3


@virtual
async def test_a_group_that_stands_beyond_the_end_is_not_taken_for_one_that_keeps_up() -> None:
    queue = FakeQueue()
    await queue.add_many(3)
    stream = queue.stream()
    await FollowerRegister(stream, 0, "audit").begin(QueuePosition(4, 9))
    with pytest.raises(RolledBack, match=r"'audit' is at batch 3 .* whose next one is 3"):
        await lag(stream, group="audit")
    await queue.add_many(1)
    assert await lag(stream, group="audit") == Lag(0, 0, 0, 0.0)


@virtual
async def test_a_group_that_goes_on_while_it_is_asked_for_has_no_lag_below_zero() -> None:
    queue = FakeQueue()
    await queue.add_many(1)
    stream = queue.stream()
    register = FollowerRegister(stream, 0, "audit")
    await register.begin(QueuePosition(0, 1))
    queue_reader = stream.queue_reader(0)
    state = type(queue_reader).state

    async def late(asked: FakeLooker) -> object:
        found = await state(asked)
        await queue.add_many(1)
        await register.advance(QueuePosition(2, 5))
        return found

    with mock.patch.object(FakeLooker, "state", late):
        assert (await lag(stream, group="audit")).records >= 0
