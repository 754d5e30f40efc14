"""From a time, an LSN or a sequence to a batch, where chunks are empty and clocks are wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest

from headwater.buffer.queue.contract import BatchTrimmed, Descriptor, TimeBy
from headwater.buffer.queue.native.chunk import Chunk, ProducerIncarnation
from headwater.core import runtime
from headwater.core.errors import Refused, RolledBack, Trimmed
from headwater.store import MemoryBackend, Store
from tests.buffer.native.given import AT_MS, NOTHING_KEPT, Cloud, Queue, at_time, batch
from tests.store.scripted import virtual

KINDS: tuple[TimeBy, ...] = ("timestamp", "ingestion")
shapes = pytest.mark.parametrize("shape", [MemoryBackend, Cloud])


Content = tuple[int, int, int] | tuple[int, int, int, tuple[int, int] | None]
"""Rows, first and last ingestion time, and the timestamps if there are any."""


async def _queue(
    shape: type[MemoryBackend], contents: Sequence[Sequence[Content]]
) -> tuple[Queue, list[Chunk]]:
    """A queue whose chunks hold such batches."""
    queue = await Queue(shape(versions_by_content=True)).create()
    chunks, sequence = [await queue.chunk(0)], 0
    for content in contents:
        batches = []
        for rows, min_ms, max_ms, *stamps in content:
            sequence += 1
            timestamps_us = stamps[0] if stamps else None
            batches.append(
                batch(
                    sequence,
                    rows=rows,
                    min_ms=min_ms,
                    max_ms=max_ms,
                    timestamps_us=timestamps_us,
                )
            )
        chunks.append(
            chunks[-1].written(
                runtime.new_token(),
                owner=ProducerIncarnation("p", "1"),
                batches=batches,
                closed=True,
            )
        )
    await queue.put_chunks(chunks)
    return queue, chunks


def _contents(seed: int) -> list[list[Content]]:
    """Some chunks, many of them empty, of producers whose clocks disagree."""
    draw = random.Random(seed)
    contents, at_ms = list[list[Content]](), AT_MS
    for _ in range(draw.randint(0, 20)):
        chunk = list[Content]()
        for _ in range(draw.choice((0, 0, 1, 3))):
            at_ms += draw.randint(0, 5)
            skewed_ms = at_ms + draw.choice((0, 0, -50, 50))
            rows, first_ms = draw.choice((0, 1, 4)), skewed_ms - draw.randint(0, 3)
            stamp_us = (at_ms + draw.choice((0, -50, 50, 10**12))) * 1000
            stamps = draw.choice((None, (stamp_us - draw.randint(0, 3), stamp_us)))
            chunk.append((rows, first_ms, skewed_ms, stamps))
        contents.append(chunk)
    return contents


@shapes
@pytest.mark.parametrize("seed", range(25))
@virtual
async def test_every_look_up_finds_what_reading_everything_would(
    shape: type[MemoryBackend], seed: int
) -> None:
    queue, chunks = await _queue(shape, _contents(seed))
    every = await queue.queue_reader().after(None, 1000)
    end, queue_reader = chunks[-1], queue.queue_reader()
    assert [one.sequence for one in every] == list(range(end.next_sequence))
    for lsn in range(1, end.next_lsn + 2):
        found = [one.sequence for one in every if one.first_lsn <= lsn <= one.last_lsn]
        assert await queue_reader.sequence_at_lsn(lsn) == (found[0] if found else None)
    await _check_times(queue, every)
    for sequence in range(end.next_sequence):
        (found_one,) = await queue.queue_reader().after(sequence - 1 if sequence else None, 1)
        assert found_one == every[sequence]


async def _check_times(queue: Queue, kept: list[Descriptor]) -> None:
    queue_reader = queue.queue_reader()
    for kind in KINDS:
        for time_ms in (0, *range(AT_MS - 60, AT_MS + 130, 3), AT_MS + 10**12, AT_MS + 10**13):
            late = [one for one in kept if one.rows and one.range_us(kind)[1] >= time_ms * 1000]
            found = await queue_reader.batch_at_time(time_ms * 1000, kind)
            assert found == (late[0] if late else None), (kind, time_ms)


@pytest.mark.parametrize("seed", range(25))
@virtual
async def test_a_time_is_found_among_what_is_kept_wherever_the_floor_lies(seed: int) -> None:
    queue, _ = await _queue(MemoryBackend, _contents(seed))
    every = await queue.queue_reader().after(None, 1000)
    draw = random.Random(seed)
    queue_consumer = await queue.taken()
    for sequence in sorted(draw.sample(range(len(every)), min(4, len(every)))):
        await queue_consumer.dequeue(sequence)
        await queue.collector().collect(NOTHING_KEPT, full=True)
        await _check_times(queue, every[sequence + 1 :])


@pytest.mark.parametrize("kind", KINDS)
@virtual
async def test_a_time_is_found_in_as_many_reads_as_halving_takes(kind: TimeBy) -> None:
    count = 3000
    ahead = 10**9
    contents: list[list[Content]] = [[(1, AT_MS + n, AT_MS + n)] for n in range(count)]
    # One clock was far ahead: that record is the first one of every time, until it is deleted.
    contents[5] = [(1, AT_MS + ahead, AT_MS + ahead)]
    queue, _ = await _queue(Cloud, contents)
    halvings = count.bit_length()
    reads = await _reads_of_times(
        queue, kind, {3: 3, 7: 5, count - 1: 5, ahead: 5, ahead + 1: None}
    )
    assert max(reads) <= halvings + 4
    await (await queue.taken()).dequeue(1000)
    await queue.collector().collect(NOTHING_KEPT)
    wanted = {0: 1001, 1001: 1001, 1002: 1002, 2047: 2047, 2500: 2500, count - 1: count - 1}
    reads = await _reads_of_times(queue, kind, {**wanted, count: None, ahead: None})
    # Where the floor lies within a block, both of its halves may have to be looked at.
    assert max(reads) <= 2 * halvings + 4


async def _reads_of_times(queue: Queue, kind: TimeBy, wanted: dict[int, int | None]) -> list[int]:
    """How many objects were read for each time."""
    reads = []
    for after_ms, sequence in wanted.items():
        store = Store(queue.backend)
        queue_reader = queue.queue_reader(store=store)
        assert await at_time(queue_reader, AT_MS + after_ms, kind) == sequence, after_ms
        # Not how the end is found, which is the same for every look.
        reads.append(store.stats.operations["get"].requests)
    return reads


@shapes
@virtual
async def test_an_empty_queue_has_nothing_to_find(shape: type[MemoryBackend]) -> None:
    queue, _ = await _queue(shape, [])
    queue_reader = queue.queue_reader()
    assert await queue_reader.after(None, 10) == []
    assert await queue_reader.sequence_at_lsn(1) is None
    assert await at_time(queue_reader, 0) is None
    state = await queue_reader.state()
    assert (state.pending, state.pending_bytes, state.oldest_pending_ms) == (0, 0, None)


@shapes
@virtual
async def test_what_lies_ahead_is_refused_and_what_is_gone_is_trimmed(
    shape: type[MemoryBackend],
) -> None:
    queue = await Queue(shape(versions_by_content=True)).create()
    await queue.fill(10)
    with pytest.raises(Refused, match="lies ahead"):
        await queue.queue_reader().after(10, 1)
    queue_consumer = await queue.taken()
    await queue_consumer.dequeue(5)
    await queue.collector().collect(NOTHING_KEPT)
    queue_reader = queue.queue_reader()
    assert [one.sequence for one in await queue_reader.after(None, 100)] == [6, 7, 8, 9]
    with pytest.raises(BatchTrimmed) as trimmed:
        await queue_reader.after(3, 1)
    assert trimmed.value.floor_sequence == 6
    with pytest.raises(Trimmed):
        await queue_reader.sequence_at_lsn(6)
    assert await queue_reader.sequence_at_lsn(7) == 6
    assert await at_time(queue_reader, 0) == 6


@virtual
async def test_the_lag_is_told_in_batches_bytes_and_time() -> None:
    queue, _ = await _queue(MemoryBackend, [[(1, AT_MS, AT_MS + 1), (2, AT_MS + 5, AT_MS + 6)]])
    queue_reader, queue_consumer = queue.queue_reader(), await queue.taken()
    state = await queue_reader.state()
    assert (state.pending, state.pending_bytes, state.oldest_pending_ms) == (2, 20, AT_MS)
    await queue_consumer.dequeue(0)
    state = await queue_reader.state()
    assert (state.pending, state.pending_bytes, state.oldest_pending_ms) == (1, 10, AT_MS + 5)
    assert (state.acked_sequence, state.acked_lsn, state.next_lsn) == (1, 2, 4)
    await queue_consumer.dequeue(1)
    state = await queue_reader.state()
    assert (state.pending, state.pending_bytes, state.oldest_pending_ms) == (0, 0, None)


@virtual
async def test_a_hole_in_the_queue_is_no_end() -> None:
    queue = await Queue(Cloud(versions_by_content=True)).create()
    await queue.fill(20)
    await queue.delete_chunk(7)
    with pytest.raises(RolledBack):
        await queue.queue_reader().after(5, 1)


@shapes
@virtual
async def test_batches_that_are_missing_between_two_chunks_are_noticed(
    shape: type[MemoryBackend],
) -> None:
    queue, chunks = await _queue(shape, [[(1, AT_MS, AT_MS)] for _ in range(5)])
    lost = msgspec.structs.replace(chunks[3], entries=())
    await queue.put_chunks([lost])
    with pytest.raises(RolledBack, match="does not continue with batch 1"):
        await queue.queue_reader().after(0, 10)
