"""What an append, a poll or a dequeue moves does not depend on how much is pending."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headwater.core import runtime
from headwater.store import MemoryBackend, Store
from tests.buffer.native.given import Cloud, Queue, batch
from tests.store.scripted import virtual

FEW, MANY = 10, 5000
# Numbers with more digits take more bytes.
DIGITS_BYTES = 64

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
    taker = queue.taker()
    await taker.open("g")
    found["first poll"] = await moved.by(lambda: taker.after(None, 1))
    found["poll"] = await moved.by(lambda: taker.after(0, 1))
    found["dequeue"] = await moved.by(lambda: taker.dequeue(1))
    await taker.after(pending, 1)
    found["poll at the end"] = await moved.by(lambda: taker.after(pending + 1, 1))
    found["idle poll"] = await moved.by(lambda: taker.after(pending + 1, 1))
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


@shapes
@virtual
async def test_a_lone_producer_needs_one_request_for_a_small_batch(
    shape: type[MemoryBackend],
) -> None:
    queue = await Queue(shape(versions_by_content=True)).create()
    appender, moved = await queue.opened(), Moved(queue.store)
    await appender.append([batch(1)])
    assert (await moved.by(lambda: appender.append([batch(2)])))[0] == 1
    assert (await moved.by(lambda: appender.append([batch(3), batch(4), batch(5)])))[0] == 1


@virtual
async def test_the_floor_is_asked_for_once_in_a_while_and_not_at_every_append() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    reads = queue.store.stats.of("get")
    before = reads.requests
    for sequence in range(1, 61):
        await appender.append([batch(sequence)])
        await runtime.sleep(1.0)
    assert reads.requests - before <= 60 / 10 + 1


@shapes
@virtual
async def test_a_chunk_that_is_full_is_followed_by_another(shape: type[MemoryBackend]) -> None:
    queue = await Queue(shape(versions_by_content=True)).create()
    appender = await queue.opened()
    places = await appender.append([batch(n) for n in range(1, 701)])
    assert [place.sequence for place in places] == list(range(700))
    sizes = [len((await queue.chunk(number)).entries) for number in (1, 2, 3)]
    assert sizes == [256, 256, 188]
    large = b"x" * 60_000
    await appender.append([batch(n, inline=large) for n in range(701, 706)])
    last = (await queue.chunks.last()).chunk
    for number in range(1, last.number):
        assert (await queue.chunk(number)).stored_bytes <= 200_000
    assert await queue.entries() == [("p", n) for n in range(1, 706)]
