"""The consumer as others see it: its metrics, its truth, its one call at a time."""

from __future__ import annotations

import asyncio

import pytest

from headwater.core import runtime
from tests.buffer.consumer.fakes import FakeQueue
from tests.buffer.consumer.opened import opened, sequence_of_next
from tests.store.scripted import virtual


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
