"""What an append, a poll or a dequeue moves does not depend on how much is pending."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headwater.core import runtime
from headwater.store import MemoryBackend, Store
from tests.buffer.native.given import Cloud, Queue, batch
from tests.store.scripted import virtual

FEW, MANY = 10, 5000
# Numbers with more digits take more bytes, and a chunk has two times for each bit of its number.
DIGITS_BYTES = 64 + 2 * 19 * MANY.bit_length()

shapes = pytest.mark.parametrize("shape", [MemoryBackend, Cloud])


class Moved:
    """What one client has sent, received and asked for."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def counts(self) -> tuple[int, int]:
        """Requests and bytes so far."""
        every = self.store.stats.operations.values()
        return (
            sum(one.requests for one in every),
            sum(one.bytes_sent + one.bytes_received for one in every),
        )

    async def by(self, call: Callable[[], Awaitable[object]]) -> tuple[int, int]:
        """Requests and bytes of one call."""
        requests, size_bytes = self.counts()
        await call()
        after_requests, after_bytes = self.counts()
        return after_requests - requests, after_bytes - size_bytes


async def _measured(shape: type[MemoryBackend], pending: int) -> dict[str, tuple[int, int]]:
    queue = Queue(shape(versions_by_content=True))
    await queue.create()
    await queue.fill_at_once(pending)
    moved, found = Moved(queue.store), {}
    appender = queue.appender()
    found["open a producer"] = await moved.by(appender.open)
    found["append"] = await moved.by(lambda: appender.append([batch(1)]))
    found["append again"] = await moved.by(lambda: appender.append([batch(2)]))
    await runtime.sleep(1.0)  # what is written beside is written
    queue_consumer = queue.queue_consumer()
    await queue_consumer.open("g")
    found["first poll"] = await moved.by(lambda: queue_consumer.after(None, 1))
    found["poll"] = await moved.by(lambda: queue_consumer.after(0, 1))
    found["dequeue"] = await moved.by(lambda: queue_consumer.dequeue(1))
    await queue_consumer.after(pending, 1)
    found["poll at the end"] = await moved.by(lambda: queue_consumer.after(pending + 1, 1))
    found["idle poll"] = await moved.by(lambda: queue_consumer.after(pending + 1, 1))
    return found


@shapes
@virtual
async def test_bytes_moved_are_the_same_with_few_and_with_many_pending(
    shape: type[MemoryBackend],
) -> None:
    few, many = await _measured(shape, FEW), await _measured(shape, MANY)
    for call in ("append", "append again", "poll", "dequeue", "poll at the end", "idle poll"):
        assert few[call][0] == many[call][0], call
        assert abs(few[call][1] - many[call][1]) < DIGITS_BYTES, call
    # Whoever begins looks for its place, by halving: more digits, not more chunks.
    assert many["open a producer"][0] <= 50
    assert many["first poll"][0] <= 50
    assert many["first poll"][1] < 2 * few["first poll"][1] + DIGITS_BYTES
