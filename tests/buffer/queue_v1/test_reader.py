"""Whoever only looks sees pending and retained batches alike, and changes nothing."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from headwater.buffer.queue.contract import BatchTrimmed
from headwater.buffer.queue.retention import Retention
from headwater.core import limits
from headwater.core.errors import NotFound, Refused
from headwater.store import Store
from tests.buffer.native.given import at_time
from tests.buffer.queue_v1.given import Queue, either, memory, produce, real, scripted
from tests.store.scripted import after, virtual

ROWS = (2, 0, 1, 3, 1, 2)
TIMES_MS = (100, 900, 50, 300, 200, 400)
LSN_AT = [0, 0, 2, 3, 3, 3, 4, 5, 5]


async def given(queue: Queue, *acked: int) -> Queue:
    """Six batches, acknowledged in these steps."""
    await queue.made()
    appender = queue.appender()
    for rows, time_ms in zip(ROWS, TIMES_MS, strict=True):
        await produce(appender, *[b"x"] * rows, time_ms=time_ms)
    queue_consumer = await queue.opened()
    for sequence in acked:
        await queue_consumer.dequeue(sequence)
    return queue


STEPS = [(), (0,), (2,), (0, 1, 2, 3), (5,), (0, 1, 2, 3, 4, 5), (1, 4)]


@pytest.mark.parametrize("acked", STEPS)
@virtual
async def test_every_batch_is_seen_however_it_was_acknowledged(acked: tuple[int, ...]) -> None:
    queue = await given(memory(), *acked)
    queue_reader = queue.queue_reader()
    batches = await queue_reader.after(None, 99)
    assert [batch.rows for batch in batches] == list(ROWS)
    firsts = [1, *itertools.accumulate(ROWS, initial=1)][1:-1]
    assert [batch.first_lsn for batch in batches] == firsts
    assert [batch.max_ms for batch in batches] == list(TIMES_MS)
    for start, limit in itertools.product(range(-1, 6), (0, 1, 2, 9)):
        position = None if start < 0 else start
        assert await queue_reader.after(position, limit) == batches[start + 1 : start + 1 + limit]
    assert await queue.records(batches) == [b"x"] * sum(ROWS)


@pytest.mark.parametrize("acked", STEPS)
@virtual
async def test_every_lsn_and_every_time_is_found(acked: tuple[int, ...]) -> None:
    queue_reader = (await given(memory(), *acked)).queue_reader()
    assert [await queue_reader.sequence_at_lsn(lsn) for lsn in range(1, 10)] == LSN_AT
    assert await queue_reader.sequence_at_lsn(10) is None
    with pytest.raises(Refused):
        await queue_reader.sequence_at_lsn(0)
    for time_ms in range(0, 1001, 50):
        # A batch without records has none that was ingested at any time.
        found = [s for s in range(6) if ROWS[s] and TIMES_MS[s] >= time_ms]
        assert await at_time(queue_reader, time_ms) == (found[0] if found else None)


@pytest.mark.parametrize("kind", ["memory", "local"])
@real
async def test_the_state_tells_positions_bytes_and_the_oldest(kind: str, tmp_path: Path) -> None:
    queue = await given(either(kind, tmp_path), 0)
    state = await queue.queue_reader().state()
    batches = await queue.queue_reader().after(0, 9)
    assert (state.epoch, state.group) == (1, "g")
    assert (state.floor_sequence, state.floor_lsn) == (0, 1)
    assert (state.acked_sequence, state.acked_lsn) == (1, 3)
    assert (state.next_sequence, state.next_lsn, state.pending) == (6, 10, 5)
    assert state.pending_bytes == sum(batch.size_bytes for batch in batches)
    assert state.oldest_pending_ms == 50  # the one before it has no records
    queue_consumer = await queue.opened()
    await queue_consumer.dequeue(5)
    state = await queue.queue_reader().state()
    assert (state.pending, state.pending_bytes, state.oldest_pending_ms) == (0, 0, None)


@virtual
async def test_a_queue_before_anybody_opened_it() -> None:
    queue = await memory().made()
    state = await queue.queue_reader().state()
    assert (state.epoch, state.group, state.next_sequence, state.next_lsn) == (0, "", 0, 1)
    assert await queue.queue_reader().after(None, 9) == []
    assert await queue.queue_reader().sequence_at_lsn(1) is None
    assert await at_time(queue.queue_reader(), 0) is None
    with pytest.raises(NotFound):
        await memory().queue_reader().state()


@virtual
async def test_looking_writes_nothing_and_fences_nobody() -> None:
    backend, queue = scripted()
    await given(queue, 1)
    queue_consumer = await queue.opened()
    queue_reader = queue.queue_reader(Store(backend))
    await queue_reader.state()
    await queue_reader.after(None, 9)
    await queue_reader.sequence_at_lsn(1)
    await at_time(queue_reader, 0)
    assert {name for name, _ in backend.calls} == {"get", "list"}
    await queue_consumer.check_fence()


@virtual
async def test_a_second_look_counts_only_what_came_since() -> None:
    backend, queue = scripted()
    await given(queue)
    queue_reader = queue.queue_reader(Store(backend))
    await queue_reader.state()
    await produce(queue.appender(), b"y")
    backend.calls.clear()
    assert (await queue_reader.state()).next_lsn == 11
    assert sum(key.endswith(".batch") for _, key in backend.calls) == 1
    assert len(backend.calls) == 3


@virtual
async def test_below_the_floor_everything_is_trimmed() -> None:
    queue = await given(memory(), 1, 3)
    await queue.collector().collect(Retention(None, retention_bytes=0))
    queue_reader = queue.queue_reader()
    assert [batch.sequence for batch in await queue_reader.after(None, 9)] == [4, 5]
    for call in (queue_reader.after(2, 1), queue_reader.sequence_at_lsn(6)):
        with pytest.raises(BatchTrimmed) as trimmed:
            await call
        assert trimmed.value.floor_sequence == 4
    assert await queue_reader.after(3, 1)
    assert await queue_reader.sequence_at_lsn(7) == 4
    assert await at_time(queue_reader, 0) == 4


@virtual
async def test_a_position_past_the_end_is_refused() -> None:
    queue_reader = (await given(memory(), 1)).queue_reader()
    assert await queue_reader.after(5, 9) == []
    with pytest.raises(Refused, match="the next one is 6"):
        await queue_reader.after(6, 9)


@virtual
async def test_a_dequeue_between_two_reads_is_not_another_implementations() -> None:
    backend, queue = scripted()
    await given(queue)
    queue_consumer = await queue.opened()
    await queue_consumer.after(None, 9)

    async def acknowledge() -> None:
        await queue_consumer.dequeue(3)
        await produce(queue.appender(), b"y")
        await queue_consumer.dequeue(6)

    queue_reader = queue.queue_reader(Store(backend))
    backend.next("get", after(acknowledge))
    assert (await queue_reader.state()).pending == 0
    backend.next("get", after(_nothing), after(acknowledge_more := _More(queue)))
    assert (await queue_reader.state()).next_sequence == acknowledge_more.produced


async def _nothing() -> None:
    return None


class _More:
    """Appends and acknowledges, while somebody has read the manifest and not the side object."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.produced = 0

    async def __call__(self) -> None:
        placed = await produce(self.queue.appender(), b"z")
        queue_consumer = await self.queue.opened()
        await queue_consumer.dequeue(placed.sequence)
        self.produced = placed.sequence + 1


@virtual
async def test_a_batch_collected_while_it_is_counted_is_not_a_lost_one() -> None:
    backend, queue = scripted()
    await given(queue)

    async def consume_and_collect() -> None:
        queue_consumer = await queue.opened()
        await queue_consumer.dequeue(5)
        await queue.collector().collect(Retention(0))

    queue_reader = queue.queue_reader(Store(backend))
    backend.next("get", after(_nothing), after(_nothing), after(consume_and_collect))
    state = await queue_reader.state()
    assert (state.floor_sequence, state.next_lsn) == (6, 10)
    assert await queue_reader.after(None, 9) == []


@virtual
async def test_many_small_segments_are_read_in_one_listing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "V1_SEGMENTS_AT_ONCE", 4)
    backend, queue = scripted()
    await queue.made()
    appender = queue.appender()
    queue_consumer = await queue.opened()
    for number in range(10):
        await produce(appender, b"x")
        await queue_consumer.dequeue(number)
    backend.calls.clear()
    queue_reader = queue.queue_reader(Store(backend))
    assert [batch.sequence for batch in await queue_reader.after(None, 10)] == list(range(10))
    assert backend.count("list") == 1


@virtual
async def test_a_large_acknowledgement_is_kept_in_bounded_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "V1_SEGMENT_ENTRIES", 2)
    queue = await given(memory(), 4)
    assert list(await queue.segments()) == [1, 3, 4]
    monkeypatch.setattr(limits, "V1_SEGMENT_BYTES", 100)
    monkeypatch.setattr(limits, "V1_SEGMENT_ENTRIES", 99)
    queue = await given(memory(), 4)
    assert len([key for key in await queue.keys() if "/acked/" in key]) == 5
    assert await queue.queue_reader().sequence_at_lsn(6) == 3
