"""The consumer as others see it: its metrics, its truth, its one call at a time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest

from headwater.buffer.consumer import BlockingConsumer, Consumer, ownership
from headwater.buffer.stream import create_stream
from headwater.core import portal, runtime
from headwater.core.errors import Fenced, LimitExceeded, OutcomeUnknown, Refused, Unavailable
from headwater.core.limits import ACKS_PER_DEQUEUE
from headwater.store import MemoryBackend, open_store
from headwater.store.objects import ByteRange, Object
from tests.buffer.consumer.fakes import FakeQueue
from tests.buffer.consumer.given import opened, sequence_of_next
from tests.store.scripted import Scripted, virtual


@virtual
async def test_the_metrics_have_their_published_names() -> None:
    queue = FakeQueue()
    await queue.add_many(3)
    consumer = await opened(queue)
    await consumer.ack(await sequence_of_next(consumer))
    await consumer.next_descriptors(1)
    await consumer.flush()
    await runtime.sleep(60)
    found = consumer.metrics.published()
    assert found["buffer.acks"] == 1
    assert found["buffer.descriptors_handed_out"] == 1
    assert found["buffer.queue_length"] == 3
    assert found['buffer.manifest_writes{role="consumer"}'] == 1
    assert found["buffer.consumer_lag_seconds"] == pytest.approx(60, abs=1)
    assert {name.removeprefix("buffer.").split("{")[0] for name in found} == {
        "batches_collected",
        "entries_collected",
        "bytes_collected",
        "consumer_lag_seconds",
        "queue_length",
        "acks",
        "gc_files_deleted",
        "gc_files_failed",
        "gc_duration_seconds",
        "fetch_duration_seconds",
        "descriptors_handed_out",
        "manifest_writes",
        "manifest_conflicts",
    }


@virtual
async def test_an_empty_consumer_is_still_a_consumer() -> None:
    consumer = await opened(FakeQueue())
    assert len(consumer) == 0
    assert consumer
    assert consumer.conflict_rate == 0.0


@virtual
async def test_the_queue_is_asked_one_thing_at_a_time() -> None:
    """Its door remembers where it stands: two questions at once would be answered from between."""

    class Narrow(FakeQueue):
        inside = most = 0

        async def ask(self, call: str) -> None:
            self.inside += 1
            self.most = max(self.most, self.inside)
            try:
                await super().ask(call)
            finally:
                self.inside -= 1

    queue = Narrow()
    await queue.add_many(3)
    consumer = await opened(queue)
    await consumer.next_descriptors(1)
    await consumer.ack(0)
    await asyncio.gather(consumer.flush(), consumer.next_descriptors(1))
    assert queue.asked.count("dequeue") == 1
    assert queue.most == 1
    await consumer.close()


# Acknowledging: in order, all or nothing, and where a successor goes on.


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
            with pytest.raises(LimitExceeded, match="3 delivered batches are not ack"):
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


# A successor fences, and whoever was fenced is told.


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


# Closing flushes, hides no error, and leaves nothing behind.


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
