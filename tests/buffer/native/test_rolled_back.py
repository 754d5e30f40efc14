"""A queue that was deleted, or went back to an earlier state, is noticed and refused."""

from __future__ import annotations

from unittest import mock

import pytest

from headwater.buffer.queue.contract import BatchTrimmed
from headwater.buffer.queue.native.chunk_log import create_native_queue
from headwater.core import runtime
from headwater.core.errors import Corrupt, RolledBack
from headwater.store import MemoryBackend, Store
from headwater.store.objects import Object
from tests.buffer.native.given import NOTHING_KEPT, PREFIX, Cloud, Queue, batch
from tests.store.scripted import virtual

shapes = pytest.mark.parametrize("shape", [MemoryBackend, Cloud])


class Restorable:
    """A queue and its objects, which can be put back to what they were."""

    def __init__(self, shape: type[MemoryBackend]) -> None:
        self.backend = shape(versions_by_content=True)
        self.queue = Queue(self.backend)

    def copy(self) -> dict[str, Object]:
        return dict(self.backend._objects)

    def restore(self, copy: dict[str, Object], *, but: str = "nothing") -> None:
        """Everything as it was then, but for keys that contain `but`."""
        objects = self.backend._objects
        kept = {key: found for key, found in objects.items() if but in key}
        objects.clear()
        objects.update({key: found for key, found in copy.items() if but not in key} | kept)

    def delete(self, part: str) -> None:
        """All objects whose key contains `part`."""
        for key in [key for key in self.backend._objects if part in key]:
            del self.backend._objects[key]


@shapes
@virtual
async def test_where_there_is_no_queue_one_was_lost(shape: type[MemoryBackend]) -> None:
    queue = Restorable(shape).queue
    with pytest.raises(RolledBack, match=r"no queue.* Restore the folder"):
        await queue.appender().open()
    with pytest.raises(RolledBack, match=r"no queue.* Restore the folder"):
        await queue.queue_consumer().open("g")
    with pytest.raises(RolledBack, match=r"no queue.* Restore the folder"):
        await queue.queue_reader().state()
    with pytest.raises(RolledBack, match=r"no queue.* Restore the folder"):
        await queue.collector().collect(NOTHING_KEPT)


@virtual
async def test_another_queue_at_the_same_place_is_refused() -> None:
    queue = await Queue().create()
    with pytest.raises(Corrupt, match="holds queue q1, not q2"):
        await create_native_queue(queue.store, PREFIX, "q2")


@virtual
async def test_making_a_queue_twice_changes_nothing() -> None:
    queue = await Queue().create()
    await queue.fill(3)
    await queue.create()
    assert len(await queue.entries()) == 3


@shapes
@virtual
async def test_a_deleted_queue_is_noticed_by_whoever_was_there(shape: type[MemoryBackend]) -> None:
    world = Restorable(shape)
    queue = await world.queue.create()
    appender = await queue.opened()
    await appender.append([batch(1)])
    queue_consumer = await queue.taken()
    await queue_consumer.after(None, 1)
    world.delete(PREFIX)
    with pytest.raises(RolledBack):
        await appender.append([batch(2)])
    with pytest.raises(RolledBack):
        await queue_consumer.after(0, 1)
    with pytest.raises(RolledBack):
        await queue_consumer.dequeue(0)


@shapes
@virtual
async def test_chunks_that_vanish_are_noticed(shape: type[MemoryBackend]) -> None:
    world = Restorable(shape)
    queue = await world.queue.create()
    await queue.fill(5)
    queue_consumer = await queue.taken()
    await queue_consumer.dequeue(4)
    reader = await queue.taken()
    appender = await queue.opened()
    world.delete("/chunks/")
    with pytest.raises(RolledBack):
        await queue.queue_consumer().open("g")
    with pytest.raises(RolledBack):
        await queue.opened()
    with pytest.raises(RolledBack):
        await appender.append([batch(6)])
    with pytest.raises(RolledBack):
        await reader.after(4, 1)
    with pytest.raises(RolledBack):
        await queue.queue_reader().state()
    with pytest.raises(RolledBack):
        await queue.collector().collect(NOTHING_KEPT)


@shapes
@virtual
async def test_a_queue_behind_its_consumer_is_refused(shape: type[MemoryBackend]) -> None:
    world = Restorable(shape)
    queue = await world.queue.create()
    await queue.fill(2)
    earlier = world.copy()
    await queue.fill(3)
    queue_consumer = await queue.taken()
    await queue_consumer.dequeue(4)
    world.restore(earlier, but="consumer.json")
    with pytest.raises(RolledBack):
        await queue.queue_consumer().open("g")


@shapes
@virtual
async def test_an_open_last_chunk_behind_its_consumer_is_refused_by_a_producer_that_opens(
    shape: type[MemoryBackend],
) -> None:
    where = Restorable(shape)
    queue = await where.queue.create()
    producer = await queue.opened()
    await producer.append([batch(1)])
    before = where.copy()
    await producer.append([batch(2)])
    await (await queue.taken()).dequeue(1)
    where.restore(before, but="consumer.json")
    with pytest.raises(RolledBack, match="2 batches are acknowledged and there are only 1"):
        await queue.appender("another").open()


@shapes
@virtual
async def test_a_consumer_behind_the_floor_gets_trimmed(shape: type[MemoryBackend]) -> None:
    world = Restorable(shape)
    queue = await world.queue.create()
    await queue.fill(5)
    queue_consumer = await queue.taken()
    earlier = world.copy()
    await queue_consumer.dequeue(3)
    await queue.collector().collect(NOTHING_KEPT)
    now = world.copy()
    now |= {key: found for key, found in earlier.items() if "consumer.json" in key}
    world.restore(now)
    behind = queue.queue_consumer()
    assert await behind.open("g") is None
    with pytest.raises(BatchTrimmed, match="batch 0 was deleted by retention"):
        await behind.after(None, 1)
    assert (await queue.queue_reader().state()).pending == 1
    world.delete("consumer.json")
    with pytest.raises(RolledBack):
        await queue.queue_consumer().open("g")


@shapes
@virtual
async def test_a_queue_behind_what_a_producer_was_told_is_refused(
    shape: type[MemoryBackend],
) -> None:
    world = Restorable(shape)
    queue = await world.queue.create()
    appender = await queue.opened()
    await appender.append([batch(1)])
    earlier = world.copy()
    await appender.append([batch(2)])
    await appender.close()
    world.restore(earlier, but="producers/")
    with pytest.raises(RolledBack, match="went back"):
        await queue.opened()


@shapes
@virtual
async def test_a_producer_and_a_consumer_notice_that_the_queue_went_back_under_them(
    shape: type[MemoryBackend],
) -> None:
    world = Restorable(shape)
    queue = await world.queue.create()
    appender = await queue.opened()
    await appender.append([batch(1)])
    earlier = world.copy()
    await appender.append([batch(2), batch(3)])
    queue_consumer = await queue.taken()
    assert len(await queue_consumer.after(None, 10)) == 3
    world.restore(earlier, but=".json")
    with pytest.raises(RolledBack):
        await appender.append([batch(4)])
    with pytest.raises(RolledBack):
        await queue_consumer.after(2, 10)


@shapes
@virtual
async def test_a_dead_chunk_that_is_taken_for_the_end_is_no_queue_that_went_back(
    shape: type[MemoryBackend],
) -> None:
    world = Restorable(shape)
    queue = await world.queue.create()
    await queue.fill(1)
    long_ago = await queue.chunks.load(1)
    await (await queue.taken()).dequeue(0)
    await queue.collector().collect(NOTHING_KEPT, full=True)
    await queue.fill(3)
    await (await queue.taken()).dequeue(3)
    assert long_ago is not None
    successor, answers = queue.appender(), []
    plain = successor._chunks.last

    async def last(start: int = 0) -> object:
        # The second look is slow: it shows what was there, and what a late request made of it.
        answers.append(start)
        return long_ago if len(answers) == 2 else await plain(start)

    with mock.patch.object(successor._chunks, "last", last):
        assert (await successor.open()).producer_sequence == 4
    assert len(answers) > 2


@virtual
async def test_a_collector_of_a_queue_with_a_hole_deletes_nothing() -> None:
    queue = await Queue(Cloud(versions_by_content=True)).create()
    appender = await queue.opened()
    for sequence in range(1, 6):
        await appender.append([await queue.upload(appender, sequence)])
        await queue.close_last(appender)
    await queue.upload(appender, 9)
    await queue.delete_chunk(3)
    await runtime.sleep(1.0)
    before = [meta.key async for meta in queue.store.list(f"{PREFIX}/batches")]
    with pytest.raises(RolledBack):
        await queue.collector().collect(NOTHING_KEPT)
    assert [meta.key async for meta in queue.store.list(f"{PREFIX}/batches")] == before


@virtual
async def test_a_consumer_whose_record_goes_back_under_it_stops() -> None:
    world = Restorable(MemoryBackend)
    queue = await world.queue.create()
    await queue.fill(3)
    earlier = world.copy()
    queue_consumer = await queue.taken()
    world.restore(earlier)
    with pytest.raises(RolledBack):
        await queue_consumer.after(None, 1)
    with pytest.raises(RolledBack):
        await queue_consumer.dequeue(0)


@virtual
async def test_a_store_that_is_shared_is_read_alike_through_every_client() -> None:
    queue = await Queue().create()
    await queue.fill(2)
    assert len(await queue.queue_reader(store=Store(queue.backend)).after(None, 10)) == 2
