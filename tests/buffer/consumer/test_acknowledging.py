"""Acknowledging: in order, all or nothing, and where a successor goes on."""

from __future__ import annotations

import pytest

from headwater.buffer.consumer import ownership
from headwater.core.errors import LimitExceeded, OutcomeUnknown, Refused, Unavailable
from headwater.core.limits import ACKS_PER_DEQUEUE
from tests.buffer.consumer.fakes import FakeQueue
from tests.buffer.consumer.opened import opened, sequence_of_next
from tests.store.scripted import virtual


@virtual
async def test_whoever_never_acknowledges_is_told_and_goes_on_once_something_is() -> None:
    queue = FakeQueue()
    await queue.add_many(5)
    consumer = await opened(queue)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ownership, "UNACKED_MAX_BATCHES", 3)
        assert await sequence_of_next(consumer) == 0
        assert [one.sequence for one in await consumer.next_descriptors(5)] == [1, 2]
        for ask in (consumer.next_batch, lambda: consumer.next_descriptors(1)):
            with pytest.raises(LimitExceeded, match="3 batches were handed out and not ack"):
                await ask()
        await consumer.ack_through(0)
        assert await sequence_of_next(consumer) == 3
        await consumer.ack(1)
        assert await sequence_of_next(consumer) == 4


@pytest.mark.parametrize("error", [Unavailable("later"), OutcomeUnknown("lost")])
def test_an_error_at_the_hundredth_acknowledgement_can_be_tried_again(error: Exception) -> None:
    @virtual
    async def run() -> None:
        queue = FakeQueue()
        await queue.add_many(ACKS_PER_DEQUEUE)
        consumer = await opened(queue)
        await consumer.next_descriptors(ACKS_PER_DEQUEUE)
        last = ACKS_PER_DEQUEUE - 1
        for sequence in range(last):
            await consumer.ack(sequence)
        assert "dequeue" not in queue.asked
        queue.fail("dequeue", error)
        with pytest.raises(type(error)):
            await consumer.ack(last)
        assert consumer.last_acked_sequence == last - 1
        assert consumer.metrics.acks == last
        await consumer.ack(last)
        assert consumer.last_acked_sequence == last
        assert queue.acked == ACKS_PER_DEQUEUE
        assert consumer.metrics.acks == ACKS_PER_DEQUEUE

    run()


@virtual
async def test_acknowledging_through_leaves_everything_as_it_was_when_the_queue_fails() -> None:
    queue = FakeQueue()
    await queue.add_many(3)
    consumer = await opened(queue)
    await consumer.next_descriptors(3)
    queue.fail("dequeue", Unavailable("later"))
    with pytest.raises(Unavailable):
        await consumer.ack_through(1)
    assert consumer.last_acked_sequence is None
    assert consumer.metrics.acks == 0
    await consumer.ack_through(1)
    assert (consumer.metrics.acks, queue.acked) == (2, 2)


@virtual
async def test_acknowledging_what_was_not_handed_out_is_refused_and_dequeues_nothing() -> None:
    queue = FakeQueue()
    await queue.add_many(3)
    consumer = await opened(queue)
    await consumer.next_batch()  # reads all three ahead, and hands out one
    with pytest.raises(Refused, match="beyond what was handed out"):
        await consumer.ack_through(1)
    await consumer.ack(0)
    with pytest.raises(Refused, match="beyond what was handed out"):
        await consumer.ack(1)
    assert queue.acked == 0


@virtual
async def test_what_was_acknowledged_and_not_flushed_is_delivered_again() -> None:
    queue = FakeQueue()
    await queue.add_many(2)
    first = await opened(queue)
    await first.ack(await sequence_of_next(first))
    again = await opened(queue)
    assert await sequence_of_next(again) == 0


@virtual
async def test_a_position_behind_what_is_acknowledged_delivers_it_again() -> None:
    queue = FakeQueue()
    await queue.add_many(4)
    first = await opened(queue)
    await first.next_descriptors(4)
    await first.ack_through(2)
    again = await opened(queue, last_acked_sequence=0)
    assert await sequence_of_next(again) == 1
    await again.ack(1)
    await again.close()
    assert queue.acked == 3


@virtual
async def test_resuming_at_or_past_the_next_sequence_is_refused() -> None:
    queue = FakeQueue()
    await queue.add_many(2)
    with pytest.raises(Refused):
        await opened(queue, last_acked_sequence=2)
