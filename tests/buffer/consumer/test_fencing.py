"""A successor fences, and whoever was fenced is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headwater.buffer.consumer import Consumer
from headwater.core import runtime
from headwater.core.errors import Fenced, Refused
from headwater.core.limits import ACKS_PER_DEQUEUE
from tests.buffer.consumer.fakes import FakeQueue
from tests.buffer.consumer.opened import opened, sequence_of_next
from tests.store.scripted import virtual

Call = Callable[[Consumer], Awaitable[object]]
TOUCHES_THE_QUEUE: dict[str, Call] = {
    "next_batch": lambda consumer: consumer.next_batch(),
    "next_descriptors": lambda consumer: consumer.next_descriptors(1),
    "ack_through": lambda consumer: consumer.ack_through(0),
    "flush": lambda consumer: consumer.flush(),
    "close": lambda consumer: consumer.close(),
}


@pytest.mark.parametrize("call", TOUCHES_THE_QUEUE.values(), ids=TOUCHES_THE_QUEUE.keys())
@pytest.mark.parametrize("acked", [False, True], ids=["nothing acked", "an ack to flush"])
def test_every_call_that_touches_the_queue_says_that_a_successor_took_over(
    call: Call, acked: bool
) -> None:
    @virtual
    async def run() -> None:
        queue = FakeQueue()
        await queue.add_many(100)
        consumer = await opened(queue, read_ahead_batches=64)
        await sequence_of_next(consumer)
        if acked and call is not TOUCHES_THE_QUEUE["ack_through"]:
            await consumer.ack(0)
        await opened(queue)
        with pytest.raises(Fenced):
            await call(consumer)

    run()


@virtual
async def test_the_acknowledgement_that_dequeues_says_so_and_changes_nothing() -> None:
    queue = FakeQueue()
    await queue.add_many(ACKS_PER_DEQUEUE)
    consumer = await opened(queue)
    await consumer.next_descriptors(ACKS_PER_DEQUEUE)
    for sequence in range(ACKS_PER_DEQUEUE - 1):
        await consumer.ack(sequence)
    await opened(queue)
    with pytest.raises(Fenced):
        await consumer.ack(ACKS_PER_DEQUEUE - 1)
    assert consumer.last_acked_sequence == ACKS_PER_DEQUEUE - 2
    assert queue.acked == 0


@virtual
async def test_a_batch_that_was_read_ahead_is_not_delivered_after_a_successor_took_over() -> None:
    queue = FakeQueue()
    await queue.add_many(40)
    consumer = await opened(queue)
    await sequence_of_next(consumer)
    await runtime.sleep(60)  # everything ahead is fetched and decoded
    await opened(queue)
    queue.asked.clear()
    with pytest.raises(Fenced):
        await consumer.next_batch()
    assert queue.asked == ["check_fence"]
    assert consumer.last_handed_out_sequence == 0


@virtual
async def test_a_fetch_handle_knows_no_fence() -> None:
    queue = FakeQueue()
    await queue.add_many(1)
    consumer = await opened(queue)
    (descriptor,) = await consumer.next_descriptors(1)
    await opened(queue)
    batch = await consumer.fetch_handle().fetch(descriptor)
    assert batch.entries == [b"data1", b"data2"]


@virtual
async def test_another_group_is_refused_unless_it_takes_over() -> None:
    queue = FakeQueue()
    await queue.add_many(1)
    first = await opened(queue, group="billing")
    with pytest.raises(Refused, match="billing"):
        await opened(queue, group="audit")
    assert await sequence_of_next(first) == 0
    await opened(queue, group="audit", take_over=True)
    with pytest.raises(Fenced):
        await first.flush()


@virtual
async def test_what_can_be_refused_is_refused_before_anybody_is_fenced() -> None:
    queue = FakeQueue()
    for wrong in (
        {"on_bad_batch": "ignore"},
        {"read_ahead_batches": 0},
        {"gc": True, "gc_interval_s": 0},
        {"group": "a/b"},
        {"partition": 1},
        {"name": "invoices"},
    ):
        options = {"gc": False, **wrong}
        with pytest.raises(Refused):
            await Consumer.open(queue.stream(), **options)  # type: ignore[arg-type]
    with pytest.raises(Refused, match=r"stream alter memory:// orders --set consumer=query"):
        await Consumer.open(queue.stream(consumer="nodes"))
    assert queue.asked == []
