"""A consumer on a fake queue, and what it hands out next."""

from __future__ import annotations

from headwater.buffer.consumer import Consumer
from tests.buffer.consumer.fakes import FakeQueue


async def opened(queue: FakeQueue, **options: object) -> Consumer:
    return await Consumer.open(queue.stream(), gc=False, **options)  # type: ignore[arg-type]


async def sequence_of_next(consumer: Consumer) -> int:
    batch = await consumer.next_batch()
    assert batch is not None
    return batch.sequence
