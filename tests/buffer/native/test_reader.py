"""Whoever looks finds a batch by sequence, LSN or time, and changes nothing."""

from __future__ import annotations

from functools import partial

import pytest

from headwater.buffer.queue.contract import BatchTrimmed, NewBatch, QueueState
from headwater.buffer.queue.native.chunk import ProducerIncarnation
from headwater.core import runtime
from headwater.core.errors import Trimmed
from headwater.store import MemoryBackend
from tests.buffer.native.given import AT_MS, NOTHING_KEPT, Cloud, Queue, at_time, batch
from tests.buffer.native.watched import client, consume_and_collect
from tests.store.scripted import after, virtual

shapes = pytest.mark.parametrize("shape", [MemoryBackend, Cloud])
OWNER = ProducerIncarnation("p", "1")


async def a_queue(
    chunks: list[list[tuple[int, int]]], shape: type[MemoryBackend] = MemoryBackend
) -> Queue:
    """A queue of closed chunks: the rows and the time of each batch; some have no entries."""
    queue = await Queue(shape(versions_by_content=True)).create()
    last, sequence = await queue.chunk(0), 0
    for batches in chunks:
        group: list[NewBatch] = []
        for rows, at_ms in batches:
            sequence += 1
            group.append(batch(sequence, rows=rows, size_bytes=10 * rows, min_ms=at_ms))
        owner = OWNER if group else None
        last = last.written(runtime.new_token(), owner=owner, batches=group, closed=True)
        await queue.put_chunks([last])
    return queue


async def collect_through(queue: Queue, sequence: int) -> None:
    queue_consumer = await queue.taken()
    await queue_consumer.dequeue(sequence)
    await queue.collector().collect(NOTHING_KEPT, full=True)


@shapes
@virtual
async def test_the_state_of_a_queue_from_its_first_batch_to_its_last(
    shape: type[MemoryBackend],
) -> None:
    queue = await a_queue([], shape)
    queue_reader = queue.queue_reader()
    assert await queue_reader.state() == QueueState(0, "", 0, 1, 0, 1, 0, 1, 0, None)
    queue = await a_queue([[(3, AT_MS), (2, AT_MS + 5)], [], [(4, AT_MS + 9)]], shape)
    queue_reader = queue.queue_reader()
    assert await queue_reader.state() == QueueState(0, "", 0, 1, 0, 1, 3, 10, 90, AT_MS)
    queue_consumer = await queue.taken("readers")
    await queue_consumer.dequeue(0)
    state = await queue_reader.state()
    opened_ms = state.opened_ms
    assert opened_ms > 0
    assert state == QueueState(1, "readers", 0, 1, 1, 4, 3, 10, 60, AT_MS + 5, opened_ms)
    await queue_consumer.dequeue(2)
    state = await queue_reader.state()
    assert state == QueueState(1, "readers", 0, 1, 3, 10, 3, 10, 0, None, opened_ms)
    assert state.pending == 0
    await queue.collector().collect(NOTHING_KEPT)
    state = await queue_reader.state()
    assert (state.floor_sequence, state.floor_lsn) == (3, 10)


@shapes
@virtual
async def test_looking_asks_and_never_writes(shape: type[MemoryBackend]) -> None:
    queue = await a_queue([[(1, AT_MS)]] * 20, shape)
    backend, store = client(queue)
    queue_reader = queue.queue_reader(store=store)
    await queue_reader.state()
    await queue_reader.after(None, 5)
    await queue_reader.after(3, 50)
    await queue_reader.sequence_at_lsn(7)
    await at_time(queue_reader, AT_MS)
    assert set(backend.operations()) <= {"get", "head", "list"}


@shapes
@virtual
async def test_batches_from_any_place_on(shape: type[MemoryBackend]) -> None:
    queue = await a_queue([[(1, AT_MS)], [], [(1, AT_MS)] * 3, [], [], [(1, AT_MS)]], shape)
    queue_reader = queue.queue_reader()
    for start in (None, 0, 3, 1, 4, 2):
        first = 0 if start is None else start + 1
        found = await queue_reader.after(start, 10)
        assert [one.sequence for one in found] == list(range(first, 5))
    assert await queue_reader.after(0, 0) == []
    assert [one.sequence for one in await queue_reader.after(0, 2)] == [1, 2]


@shapes
@virtual
async def test_an_lsn_is_found_among_empty_chunks_and_batches_without_rows(
    shape: type[MemoryBackend],
) -> None:
    zero = (0, AT_MS)
    queue = await a_queue(
        [[(3, AT_MS), zero], [], [zero], [zero, (2, AT_MS)], [], [zero], [(1, AT_MS)], []], shape
    )
    queue_reader = queue.queue_reader()
    found = [await queue_reader.sequence_at_lsn(lsn) for lsn in range(1, 8)]
    assert found == [0, 0, 0, 4, 4, 6, None]
    batches = await queue_reader.after(None, 10)
    assert [(one.first_lsn, one.last_lsn) for one in batches] == [
        (1, 3),
        (4, 3),
        (4, 3),
        (4, 3),
        (4, 5),
        (6, 5),
        (6, 6),
    ]
    with pytest.raises(Trimmed):
        await queue_reader.sequence_at_lsn(0)


@shapes
@virtual
async def test_a_time_is_found_though_the_producers_clocks_disagree(
    shape: type[MemoryBackend],
) -> None:
    times = [100, 50, 300, 200, 250, 400]
    queue = await a_queue(
        [[(1, 100)], [], [(1, 50), (1, 300)], [(1, 200)], [(1, 250)], [], [(1, 400)], []], shape
    )
    queue_reader = queue.queue_reader()
    for time_ms in range(0, 450, 25):
        expected = next((n for n, at_ms in enumerate(times) if at_ms >= time_ms), None)
        assert await at_time(queue_reader, time_ms) == expected


@shapes
@virtual
async def test_a_time_is_looked_for_among_what_is_kept_alone(shape: type[MemoryBackend]) -> None:
    queue = await a_queue([[(1, 900)], [(1, 100)], [], [(1, 300)], [(1, 200)], [(1, 500)]], shape)
    await collect_through(queue, 0)
    queue_reader = queue.queue_reader()
    # The latest time is gone with the first batch, and those after it are found all the same.
    found = [await at_time(queue_reader, time_ms) for time_ms in (0, 101, 250, 301, 501, 900)]
    assert found == [1, 2, 2, 4, None, None]


@shapes
@virtual
async def test_what_is_not_kept_any_more_is_trimmed(shape: type[MemoryBackend]) -> None:
    queue = await a_queue([[(2, AT_MS)]] * 6, shape)
    await collect_through(queue, 3)
    queue_reader = queue.queue_reader()
    assert [one.sequence for one in await queue_reader.after(None, 10)] == [4, 5]
    assert [one.sequence for one in await queue_reader.after(3, 10)] == [4, 5]
    with pytest.raises(BatchTrimmed) as trimmed:
        await queue_reader.after(2, 10)
    assert trimmed.value.floor_sequence == 4
    for lsn, expected in ((9, 4), (12, 5), (13, None)):
        assert await queue_reader.sequence_at_lsn(lsn) == expected
    with pytest.raises(BatchTrimmed) as trimmed:
        await queue_reader.sequence_at_lsn(8)
    assert trimmed.value.floor_sequence == 4


@virtual
async def test_a_queue_of_which_nothing_is_kept() -> None:
    queue = await a_queue([[(2, AT_MS)]] * 3)
    await consume_and_collect(queue)
    queue_reader = queue.queue_reader()
    assert await queue_reader.after(None, 10) == []
    assert await queue_reader.after(2, 10) == []
    assert await at_time(queue_reader, 0) is None
    assert await queue_reader.sequence_at_lsn(7) is None
    state = await queue_reader.state()
    assert (state.floor_sequence, state.next_sequence, state.next_lsn) == (3, 3, 7)


@pytest.mark.parametrize("look", ["state", "after", "lsn", "time"])
@virtual
async def test_looking_while_the_collector_works_tells_no_lie(look: str) -> None:
    for position in range(12):
        queue = await a_queue([[(2, AT_MS + number)] for number in range(6)])
        await (await queue.taken()).dequeue(3)
        backend, store = client(queue)
        queue_reader = queue.queue_reader(store=store)
        collector = queue.collector()
        for _ in range(position):
            backend.next("get", lambda apply: apply())
        backend.next("get", after(partial(collector.collect, NOTHING_KEPT, full=True)))
        try:
            if look == "state":
                state = await queue_reader.state()
                assert (state.acked_sequence, state.next_sequence) == (4, 6)
                assert state.oldest_pending_ms == AT_MS + 4
            elif look == "after":
                found = [one.sequence for one in await queue_reader.after(None, 10)]
                assert found == list(range(found[0], 6))
                assert found[0] in (0, 4)
            elif look == "lsn":
                assert await queue_reader.sequence_at_lsn(9) == 4
            else:
                assert await at_time(queue_reader, AT_MS + 4) == 4
        except BatchTrimmed as trimmed:
            pytest.fail(f"what is kept was called trimmed: {trimmed}")
