"""A consumer of a queue that was damaged, or put back from a copy, is told so."""

from __future__ import annotations

import pytest

from headwater.buffer.queue.contract import BatchTrimmed
from headwater.core.errors import NotFound, Refused, RolledBack
from headwater.store import MemoryBackend, Object
from tests.buffer.native.given import NOTHING_KEPT, PREFIX, Queue, batch, filled
from tests.buffer.native.watched import acknowledge_everything, acknowledge_through, polled
from tests.store.scripted import virtual


def copied(queue: Queue) -> dict[str, Object]:
    """Everything there is, as a copy of it would have it."""
    assert isinstance(queue.backend, MemoryBackend)
    return dict(queue.backend._objects)


def restored(queue: Queue, copy: dict[str, Object], *, part: str = "") -> None:
    """Put a copy back over what is there, or only the objects whose key has this part."""
    assert isinstance(queue.backend, MemoryBackend)
    objects = queue.backend._objects
    for key in [key for key in objects if part in key]:
        del objects[key]
    objects.update({key: found for key, found in copy.items() if part in key})


@virtual
async def test_a_chunk_deleted_by_hand_is_reported_and_nothing_after_it_is_acknowledged() -> None:
    queue = await filled(4)
    queue_consumer = await queue.taken()
    await queue_consumer.after(None, 1)
    await queue.delete_chunk(2)
    with pytest.raises(RolledBack, match="Headwater did not delete it"):
        await queue_consumer.after(0, 10)
    for lost in (1, 2, 3):
        with pytest.raises(RolledBack):
            await queue.queue_consumer().open("g", last_acked_sequence=lost)
    with pytest.raises(RolledBack):
        await queue.queue_reader().state()
    await queue_consumer.check_fence()  # none of them became the owner


@virtual
async def test_the_last_chunk_deleted_by_hand_is_reported_by_an_idle_reader() -> None:
    queue = await filled(4)
    queue_consumer = await queue.taken()
    assert len(await queue_consumer.after(None, 10)) == 4
    assert await queue_consumer.after(3, 10) == []
    await queue.delete_chunk(4)
    with pytest.raises(RolledBack, match="Headwater did not delete it"):
        await polled(queue_consumer, 3)


@virtual
async def test_chunks_restored_from_an_older_copy_are_refused() -> None:
    queue = await filled(3)
    older = copied(queue)
    await queue.fill(2)
    queue_consumer = await queue.taken()
    await queue_consumer.after(None, 10)
    await queue_consumer.dequeue(4)
    restored(queue, older, part="/chunks/")
    with pytest.raises(RolledBack):
        await queue.queue_consumer().open("g")
    with pytest.raises(RolledBack):
        await polled(queue_consumer, 4)


@virtual
async def test_a_last_chunk_restored_from_an_older_copy_is_refused() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    await appender.append([batch(1)])
    older = copied(queue)
    await appender.append([batch(2)])
    await acknowledge_everything(queue)
    restored(queue, older, part="/chunks/")
    with pytest.raises(RolledBack, match="there are only 1"):
        await queue.queue_consumer().open("g")


@virtual
async def test_a_whole_older_copy_is_refused_by_whoever_knew_better() -> None:
    queue = await filled(3)
    await queue.taken()
    older = copied(queue)
    await queue.fill(2)
    queue_consumer = await queue.taken()
    await queue_consumer.after(None, 10)
    await queue_consumer.dequeue(4)
    restored(queue, older)
    with pytest.raises(RolledBack):
        await queue_consumer.after(4, 10)
    with pytest.raises(RolledBack):
        await queue_consumer.dequeue(4)
    with pytest.raises(Refused, match="was the queue replaced"):
        await queue.queue_consumer().open("g", last_acked_sequence=4)


@virtual
async def test_a_consumer_record_that_vanished_is_refused() -> None:
    queue = await filled(3)
    await acknowledge_through(queue, 1)
    await queue.collector().collect(NOTHING_KEPT, full=True)
    queue_consumer = await queue.taken()
    await queue.store.delete(f"{PREFIX}/consumer.json")
    with pytest.raises(RolledBack):
        await queue_consumer.check_fence()
    with pytest.raises(RolledBack):
        await queue_consumer.dequeue(2)
    with pytest.raises(RolledBack):
        await queue.queue_consumer().open("g")
    with pytest.raises(NotFound):
        await queue.store.get(f"{PREFIX}/consumer.json")


@virtual
async def test_a_consumer_record_below_the_floor_leads_to_trimmed() -> None:
    queue = await filled(3)
    await queue.taken()
    older = copied(queue)
    await acknowledge_through(queue, 1)
    await queue.collector().collect(NOTHING_KEPT, full=True)
    restored(queue, older, part="consumer.json")
    behind = queue.queue_consumer()
    assert await behind.open("g") is None
    with pytest.raises(BatchTrimmed) as trimmed:
        await behind.after(None, 1)
    assert (trimmed.value.floor_sequence, trimmed.value.floor_lsn) == (2, 3)


@virtual
async def test_a_queue_that_is_not_there_is_not_made_by_opening() -> None:
    queue = Queue()
    with pytest.raises(RolledBack, match="no queue"):
        await queue.queue_consumer().open("g")
    assert [meta async for meta in queue.store.list()] == []
