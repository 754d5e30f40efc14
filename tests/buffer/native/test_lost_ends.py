"""Chunks that somebody deleted are missed, also at the end, and no LSN is given twice."""

from __future__ import annotations

import contextlib

import pytest

from headwater.buffer.queue.contract import AppendedBatch, Descriptor, ProducerState
from headwater.core import runtime
from headwater.core.errors import RolledBack, Unavailable
from headwater.store import MemoryBackend
from tests.buffer.native.given import NOTHING_KEPT, PREFIX, Cloud, Queue, batch, filled
from tests.buffer.native.watched import client
from tests.store.scripted import fails, virtual

shapes = pytest.mark.parametrize("shape", [MemoryBackend, Cloud])
CHUNKS = 6


async def consumed(queue: Queue) -> list[Descriptor]:
    """What a consumer that opens at this moment is handed."""
    return await (await queue.taken()).after(None, 100)


@shapes
@pytest.mark.parametrize("lost", range(CHUNKS))
@virtual
async def test_a_hole_is_no_end_even_where_nothing_says_how_far_the_queue_came(
    shape: type[MemoryBackend], lost: int
) -> None:
    queue = await Queue(shape(versions_by_content=True)).create()
    await queue.fill_at_once(CHUNKS)
    await queue.delete_chunk(lost)
    with pytest.raises(RolledBack, match=f"chunk {lost} "):
        await queue.queue_reader().after(None, 100)
    with pytest.raises(RolledBack, match=f"chunk {lost} "):
        await consumed(queue)
    with contextlib.suppress(RolledBack):
        assert (await queue.queue_reader().state()).next_sequence == CHUNKS
    with contextlib.suppress(RolledBack):
        assert await (await queue.opened()).append([batch(1)]) == [
            AppendedBatch(CHUNKS, CHUNKS + 1)
        ]


@shapes
@pytest.mark.parametrize("count", [1, 2, CHUNKS])
@virtual
async def test_a_last_chunk_that_was_deleted_is_missed_by_everybody(
    shape: type[MemoryBackend], count: int
) -> None:
    queue = await filled(CHUNKS, shape)
    await runtime.sleep(1.0)
    for number in range(CHUNKS, CHUNKS - count, -1):
        await queue.delete_chunk(number)
    with pytest.raises(RolledBack, match="the queue went back"):
        await queue.queue_reader().state()
    with pytest.raises(RolledBack, match="the queue went back"):
        await queue.queue_reader().after(None, 100)
    with pytest.raises(RolledBack, match="the queue went back"):
        await queue.opened("another")
    with pytest.raises(RolledBack, match="the queue went back"):
        await queue.taken()
    with pytest.raises(RolledBack, match="the queue went back"):
        await queue.collector().collect(NOTHING_KEPT)


@shapes
@virtual
async def test_a_queue_that_lost_the_record_of_its_end_is_refused(
    shape: type[MemoryBackend],
) -> None:
    queue = await filled(2, shape)
    await queue.store.delete(f"{PREFIX}/end.json")
    with pytest.raises(RolledBack, match=r"end\.json is gone"):
        await queue.queue_reader().state()
    with pytest.raises(RolledBack, match=r"end\.json is gone"):
        await queue.opened()


@virtual
async def test_an_append_neither_waits_for_the_record_of_the_end_nor_fails_with_it() -> None:
    queue = await Queue().create()
    backend, store = client(queue)
    appender = await queue.opened(store=store)
    backend.on("put_if_unchanged", "end.json", fails(Unavailable("503")))
    assert await appender.append([batch(1)]) == [AppendedBatch(0, 1)]
    await runtime.sleep(1.0)
    assert appender.counters.ends_unwritten == 1
    assert (await queue.chunks.ends.register.read()).value.chunk == 0
    # Whoever opens next says what was not said.
    await queue.opened("another")
    await runtime.sleep(1.0)
    assert (await queue.chunks.ends.register.read()).value.chunk == 1


@virtual
async def test_the_record_of_the_end_is_written_once_a_second_and_at_last() -> None:
    queue = await Queue().create()
    backend, store = client(queue)
    appender = await queue.opened(store=store)
    for sequence in range(1, 51):
        await appender.append([batch(sequence)])
        await queue.close_last(appender)
        await runtime.sleep(0.05)
    await appender.close()
    writes = [key for name, key in backend.calls if name.startswith("put") and "end.json" in key]
    assert len(writes) <= 4
    end = (await queue.chunks.ends.register.read()).value
    assert (end.chunk, end.first_sequence, end.first_lsn) == (50, 49, 50)


@shapes
@virtual
async def test_a_producer_whose_record_is_gone_is_refused_while_its_batches_are_there(
    shape: type[MemoryBackend],
) -> None:
    queue = await Queue(shape(versions_by_content=True)).create()
    appender = await queue.opened()
    await appender.append([batch(n) for n in range(1, 6)])
    await appender.close()
    async for meta in queue.store.list(f"{PREFIX}/producers"):
        await queue.store.delete(meta.key)
    with pytest.raises(RolledBack, match=r"'p', and its record .* is gone"):
        await queue.opened()
    assert await queue.appender("another").open() == ProducerState(0, None, is_known=False)


@virtual
async def test_a_producer_whose_record_is_gone_is_refused_though_an_empty_chunk_follows() -> None:
    queue = await filled(2)
    tail = (await queue.opened("another"))._tail
    await tail.write(tail.chunk.written(runtime.new_token()))
    async for meta in queue.store.list(f"{PREFIX}/producers"):
        await queue.store.delete(meta.key)
    with pytest.raises(RolledBack, match="its record"):
        await queue.opened()


@virtual
async def test_a_listing_that_shows_a_hole_is_believed() -> None:
    queue = await Queue(Cloud(versions_by_content=True)).create()
    await queue.fill_at_once(CHUNKS)
    await queue.delete_chunk(2)
    with pytest.raises(RolledBack, match="chunk 2 "):
        await queue.opened()
    with pytest.raises(RolledBack, match="chunk 2 "):
        await queue.queue_reader().state()
