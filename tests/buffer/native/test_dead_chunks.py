"""A deleted number is no place to append, and what a late request leaves there is nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headwater.buffer.queue.contract import AppendedBatch, ProducerState
from headwater.buffer.queue.native.appender import NativeAppender
from headwater.buffer.queue.native.chunk import ProducerIncarnation, encode_chunk
from headwater.buffer.queue.native.chunk_log import ChunkLog
from headwater.buffer.queue.retention import Retention
from headwater.core.errors import Fenced, Trimmed
from tests.buffer.native.collected import uploads
from tests.buffer.native.given import NOTHING_KEPT, PREFIX, QUEUE, Queue, batch
from tests.buffer.native.watched import Watched, client, consume_and_collect, insist
from tests.store.scripted import Apply, after, virtual


@pytest.mark.parametrize("goes_on", [False, True])
@virtual
async def test_a_create_that_stalled_until_its_number_was_dead_lands_at_the_end(
    goes_on: bool,
) -> None:
    queue = await Queue().create()
    backend, store = client(queue)
    appender, other = await queue.opened(store=store), await queue.opened("other")
    await other.append([batch(1)])
    await queue.close_last(other)
    await appender.append([])
    await appender._tail.find()

    async def meanwhile() -> None:
        await other.append([batch(2)])
        await consume_and_collect(queue)
        if goes_on:
            await other.append([batch(3)])

    others = [("other", 3)] if goes_on else []
    backend.on("put_if_absent", f"chunks/{2:020d}", after(meanwhile))
    place = AppendedBatch(2 + len(others), 3 + len(others))
    assert await insist(appender.append, [batch(1)]) == [place]
    assert await queue.entries() == [*others, ("p", 1)]
    assert (await queue.store.get(queue.chunks.key(2))).data  # dead, and left to the collector
    await queue.collector().collect(Retention(None), full=True)
    assert await queue.chunks.load(2) is None
    assert await queue.entries() == [*others, ("p", 1)]


@virtual
async def test_what_a_stalled_writer_left_below_the_floor_is_not_added_to() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    await appender.append([batch(1)])
    first = await queue.chunk(1)
    await consume_and_collect(queue)
    # A copy of the request that created it comes late: the very bytes that the producer knows.
    await queue.store.put(queue.chunks.key(1), encode_chunk(first))
    assert await appender.append([batch(2)]) == [AppendedBatch(1, 2)]
    assert await queue.entries() == [("p", 2)]


@virtual
async def test_a_producer_that_finds_a_dead_chunk_first_opens_in_the_living_queue() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    await appender.append([batch(1)])
    first = await queue.chunk(1)
    await consume_and_collect(queue)
    await appender.append([batch(2)])
    await queue.store.put(queue.chunks.key(1), encode_chunk(first))

    successor, dead = queue.appender(), await queue.chunks.load(1)
    assert dead is not None
    successor._tail.adopt(dead)
    assert await successor.open() == ProducerState(2, None, 1)
    assert await successor.append([batch(3)]) == [AppendedBatch(2, 3)]
    with pytest.raises(Fenced):
        await appender.append([batch(3)])


@virtual
async def test_a_producer_learns_nothing_from_what_a_stalled_writer_left() -> None:
    queue = await Queue().create()
    stalled = await queue.opened()
    await stalled.append([batch(1)])
    await queue.close_last(stalled)
    # What it writes next loses to others, and is on its way all the same when it dies.
    late = stalled._tail.chunk.written(
        b"t" * 16, owner=stalled._marks.owner, batches=[batch(2)], closed=True
    )
    await queue.fill(3, "other")
    queue_consumer = await queue.taken()
    await queue_consumer.dequeue(3)
    await queue.collector().collect(NOTHING_KEPT)
    # Of what the floor has passed, one chunk is deleted, and the request finds its number free.
    await queue.delete_chunk(2)
    await queue.store.put(queue.chunks.key(2), encode_chunk(late))
    assert await queue.appender().open() == ProducerState(1, None, 0)


async def _haunted(
    *, entries: int, opened: list[ProducerIncarnation]
) -> tuple[Queue, NativeAppender, Watched]:
    """A producer whose last look showed a dead chunk, in which others wrote what is in no queue."""
    queue = await Queue().create()
    backend, store = client(queue)
    appender = await queue.opened(store=store)
    first = (await queue.chunk(0)).written(
        b"t" * 16,
        owner=ProducerIncarnation("lost", "1"),
        batches=[batch(sequence) for sequence in range(1, entries + 1)],
        opened=opened,
    )
    await queue.fill(1, "other")
    await consume_and_collect(queue)
    await queue.store.put(queue.chunks.key(1), encode_chunk(first))
    dead = await queue.chunks.load(1)
    assert dead is not None
    appender._tail.adopt(dead)
    return queue, appender, backend


@virtual
async def test_batches_in_a_dead_chunk_are_no_batches_that_were_lost() -> None:
    queue, appender, _ = await _haunted(entries=5, opened=[])
    assert await appender.append([batch(1)]) == [AppendedBatch(1, 2)]
    assert await queue.entries() == [("p", 1)]


@virtual
async def test_openings_in_a_dead_chunk_hide_none_in_the_queue() -> None:
    queue, appender, _ = await _haunted(entries=0, opened=[ProducerIncarnation("someone", "1")])
    await appender.append([batch(1)])
    successor = await queue.opened()
    with pytest.raises(Fenced):
        await appender.append([batch(2)])
    await successor.append([batch(2)])
    assert await queue.entries() == [("p", 1), ("p", 2)]


@virtual
async def test_openings_in_a_dead_chunk_hide_none_that_comes_while_its_death_is_noticed() -> None:
    others = [ProducerIncarnation(f"someone{number}", "1") for number in range(5)]
    queue, appender, backend = await _haunted(entries=0, opened=others)

    async def then_fenced(apply: Apply) -> Any:
        found = await apply()
        await queue.opened()
        return found

    # The write fell into the dead chunk; its mark is asked for; and only then a successor opens.
    backend.on("get", "producers/", then_fenced)
    with pytest.raises(Fenced):
        await appender.append([batch(1)])
    assert await queue.entries() == []


@virtual
async def test_what_a_stalled_writer_left_goes_and_what_it_names_stays() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    new = await queue.upload(appender, 1)
    lost = appender._tail.chunk.written(
        b"t" * 16, owner=appender._marks.owner, batches=[new], closed=True
    )
    await queue.fill(2, "other")
    await (await queue.taken()).dequeue(1)
    await queue.collector().collect(Retention(0, only_acknowledged=True), full=True)
    assert await appender.append([new]) == [AppendedBatch(2, 3)]
    await queue.store.put(queue.chunks.key(1), encode_chunk(lost))
    await queue.collector().collect(Retention(0, only_acknowledged=True), full=True)
    assert not await queue.chunks.exists(1)
    assert await uploads(queue) == [new.batch_id]


@virtual
async def test_nothing_is_folded_from_a_chunk_that_was_never_in_the_queue() -> None:
    queue = await Queue().create()
    stalled = await queue.opened("stalled")
    late = stalled._tail.chunk.written(
        b"t" * 16, owner=stalled._marks.owner, batches=[batch(1)], closed=True
    )
    await queue.fill(3, "other")
    queue_consumer = await queue.taken()
    await queue_consumer.dequeue(2)
    slow = queue.collector()
    run = slow._chunks.run

    async def stall(first: int, count: int) -> object:
        # Another collector was quicker, and what it deleted is created again by a late request.
        slow._chunks.run = run  # type: ignore[method-assign]
        await queue.collector().collect(NOTHING_KEPT, full=True)
        await queue.store.put(queue.chunks.key(1), encode_chunk(late))
        return await run(1, count)

    slow._chunks.run = stall  # type: ignore[method-assign,assignment]
    await slow.collect(NOTHING_KEPT)
    assert await queue.appender("stalled").open() == ProducerState(0, None)


async def _left_behind(queue: Queue, number: int) -> None:
    """Everything is consumed and deleted, the queue goes on, and a late request leaves a chunk."""
    late = msgspec.structs.replace(await queue.chunk(number), first_sequence=700, first_lsn=1)
    await consume_and_collect(queue)
    await queue.fill(2, "later")
    await queue.store.put(queue.chunks.key(number), encode_chunk(late))


@virtual
async def test_no_lsn_is_looked_up_in_what_a_stalled_writer_left() -> None:
    queue = await Queue().create()
    await queue.fill(3)
    backend, store = client(queue)
    backend.on("get", f"chunks/{1:020d}", after(lambda: _left_behind(queue, 1)))
    with pytest.raises(Trimmed):
        await queue.queue_reader(store=store).sequence_at_lsn(1)


@pytest.mark.parametrize("number", [1, 3])
@virtual
async def test_the_state_tells_nothing_of_what_a_stalled_writer_left(number: int) -> None:
    queue = await Queue().create()
    await queue.fill(3)
    backend, store = client(queue)
    backend.on("get", f"chunks/{number:020d}", after(lambda: _left_behind(queue, number)))
    state = await queue.queue_reader(store=store).state()
    assert (state.acked_sequence, state.next_sequence) == (3, 5)


@virtual
async def test_what_a_stalled_writer_left_is_no_end() -> None:
    queue = await Queue().create()
    await queue.fill(3)
    backend, store = client(queue)
    backend.on("get", f"chunks/{3:020d}", after(lambda: _left_behind(queue, 3)))
    end = await ChunkLog(store, PREFIX, QUEUE).last_alive()
    assert (end.chunk.number > 3, end.chunk.next_sequence) == (True, 5)
