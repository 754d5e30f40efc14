"""Batches come in order, whatever chunks come and go; asking for more costs little."""

from __future__ import annotations

from unittest import mock

import msgspec
import pytest

from headwater.buffer.queue.native.chunk import (
    LatestTimes,
    ProducerIncarnation,
    encode_chunk,
    first_chunk,
)
from headwater.buffer.queue.native.reader import FLOOR_POLLS
from headwater.core import limits, runtime
from headwater.store import MemoryBackend
from tests.buffer.native.given import NOTHING_KEPT, QUEUE, Cloud, Queue, batch, filled
from tests.buffer.native.watched import acknowledge_everything, client, polled
from tests.store.scripted import virtual

IDLE_POLLS = 64
shapes = pytest.mark.parametrize("shape", [MemoryBackend, Cloud])


async def _without_entries(queue: Queue, count: int) -> None:
    """So many closed chunks without entries, as notes of collectors are."""
    last = (await queue.chunks.last()).chunk
    if not last.closed:
        last = last.written(runtime.new_token(), closed=True)
        await queue.put_chunks([last])
    for _ in range(count):
        last = last.written(runtime.new_token(), closed=True)
        await queue.put_chunks([last])


@virtual
async def test_every_batch_comes_in_order_with_all_it_takes_to_fetch_it() -> None:
    queue = await Queue().create()
    appender = await queue.opened("größe")
    uploaded = await queue.upload(appender, 1)
    inline = batch(2, rows=3, size_bytes=7, metadata=b"m", inline=b"inline!", max_ms=9, min_ms=5)
    await appender.append([uploaded, inline])
    queue_consumer = queue.queue_consumer()
    assert await queue_consumer.open("g") is None
    first, second = await queue_consumer.after(None, 10)
    assert (first.sequence, first.first_lsn, first.rows, first.last_lsn) == (0, 1, 1, 1)
    assert (await queue.store.get(first.location)).data == uploaded.batch_id.encode()
    assert (second.sequence, second.first_lsn, second.last_lsn) == (1, 2, 4)
    assert (second.size_bytes, second.min_ms, second.max_ms) == (7, 5, 9)
    assert (second.inline, second.metadata) == (b"inline!", b"m")
    assert (second.producer, second.producer_sequence) == ("größe", 2)
    assert queue_consumer.pending == 2


@shapes
@pytest.mark.parametrize("limit", [1, 2, 7, 100])
@virtual
async def test_reading_on_goes_over_chunks_without_gap_or_repetition(
    limit: int, shape: type[MemoryBackend]
) -> None:
    queue = await filled(40, shape)
    queue_consumer, at, seen = await queue.taken(), None, list[int]()
    while found := await queue_consumer.after(at, limit):
        assert len(found) <= limit
        seen += [one.sequence for one in found]
        at = seen[-1]
    assert seen == list(range(40))
    assert queue_consumer.pending == 40
    assert await queue_consumer.after(at, 0) == []
    await queue_consumer.dequeue(12)
    assert queue_consumer.pending == 27
    successor = queue.queue_consumer()
    assert await successor.open("g") == 12
    assert [one.sequence for one in await successor.after(12, 3)] == [13, 14, 15]


@virtual
async def test_the_last_chunk_is_read_on_while_it_grows() -> None:
    queue = await Queue().create()
    appender, queue_consumer, at = await queue.opened(), await queue.taken(), None
    for sequence in range(1, 600):
        await appender.append([batch(sequence)])
        if sequence % 3 == 0:
            found = await queue_consumer.after(at, 100)
            assert [one.producer_sequence for one in found] == [
                sequence - 2,
                sequence - 1,
                sequence,
            ]
            at = found[-1].sequence


@virtual
async def test_a_batch_appended_while_chunks_are_read_is_not_jumped_over() -> None:
    queue = await filled(1)
    appender = await queue.opened("other")
    await appender.append([batch(1)])
    stale = await queue.chunks.load(2)
    await appender.append([batch(2)])
    await queue.close_last(appender)
    await appender.append([batch(3)])
    assert stale is not None
    queue_consumer = await queue.taken()
    plain = queue_consumer._chunks.load

    async def read(number: int) -> object:
        # The second chunk was read before it grew, the third after.
        return stale if number == 2 else await plain(number)

    with mock.patch.object(queue_consumer._chunks, "load", read):
        found = await queue_consumer.after(None, 10)
        found += await queue_consumer.after(found[-1].sequence, 10)
    found += await queue_consumer.after(found[-1].sequence, 10)
    assert [one.sequence for one in found] == [0, 1, 2, 3]


@virtual
async def test_what_is_retained_is_delivered_again_from_any_place() -> None:
    queue = await filled(8)
    await acknowledge_everything(queue)
    queue_consumer = await queue.taken()
    for start in (None, 0, 5, 6, 2):
        expected = list(range(0 if start is None else start + 1, 8))
        assert [one.sequence for one in await queue_consumer.after(start, 100)] == expected


@shapes
@pytest.mark.parametrize("closed", [False, True])
@virtual
async def test_an_idle_poll_asks_for_little_and_never_lists(
    closed: bool, shape: type[MemoryBackend]
) -> None:
    queue = await Queue(shape(versions_by_content=True)).create()
    appender = await queue.opened()
    await appender.append([batch(1)])
    if closed:
        await queue.close_last(appender)
    backend, store = client(queue)
    queue_consumer = queue.queue_consumer(store=store)
    await queue_consumer.open("g")
    assert len(await queue_consumer.after(None, 10)) == 1
    backend.requests()
    asked = []
    for _ in range(IDLE_POLLS):
        assert await queue_consumer.after(0, 10) == []
        operations = backend.operations()
        assert set(operations) <= {"get", "head"}
        asked.append(len(operations))
    assert sorted(asked)[: IDLE_POLLS * 15 // 16][-1] <= 3
    assert max(asked) <= 5  # one poll in sixteen makes sure of the floor and of both neighbours
    assert sum(asked) <= 2.5 * IDLE_POLLS
    await appender.append([batch(2)])
    assert [one.sequence for one in await queue_consumer.after(0, 10)] == [1]
    assert "list" not in backend.operations()


@virtual
async def test_a_poll_of_a_growing_chunk_takes_two_requests() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    backend, store = client(queue)
    queue_consumer = queue.queue_consumer(store=store)
    await queue_consumer.open("g")
    await appender.append([batch(1)])
    await queue_consumer.after(None, 10)
    for sequence in range(2, 30):
        await appender.append([batch(sequence)])
        backend.requests()
        assert len(await queue_consumer.after(sequence - 2, 10)) == 1
        assert backend.requests() == [("get", f"chunks/{1:020d}"), ("get", "q1/consumer.json")]


@virtual
async def test_a_reader_goes_on_over_chunks_without_entries_that_were_collected() -> None:
    queue = await filled(2)
    queue_consumer = await queue.taken()
    await queue_consumer.after(None, 10)
    await queue_consumer.dequeue(1)
    assert await queue_consumer.after(1, 10) == []
    # Chunks without entries come and go, as notes of collectors do, while nobody appends.
    await _without_entries(queue, 6)
    await queue.collector().collect(NOTHING_KEPT, full=True)
    assert (await queue.chunks.floors()).chunk_floor > 4
    appender = await queue.opened("late")
    await appender.append([batch(1)])
    found = await polled(queue_consumer, 1, times=FLOOR_POLLS + 1)
    assert [(one.sequence, one.producer) for one in found] == [(2, "late")]


@virtual
async def test_what_stands_below_the_floor_is_not_handed_out() -> None:
    queue = await filled(2)
    queue_consumer = await queue.taken()
    await queue_consumer.after(None, 10)
    await queue_consumer.dequeue(1)
    assert await queue_consumer.after(1, 10) == []
    await _without_entries(queue, 4)
    await queue.collector().collect(NOTHING_KEPT, full=True)
    # A create that stalled until its number was dead: what it says was never appended.
    ghost = first_chunk(QUEUE).next_chunk()
    ghost = msgspec.structs.replace(
        ghost, number=3, first_sequence=2, first_lsn=3, newest_before=(LatestTimes(), LatestTimes())
    )
    owner = ProducerIncarnation("ghost", "1")
    await queue.put_chunks([ghost.written(runtime.new_token(), owner=owner, batches=[batch(1)])])
    await runtime.sleep(limits.FLOOR_LEASE_S)
    assert await queue_consumer.after(1, 10) == []
    real = await queue.opened("real")
    await real.append([batch(1)])
    assert [one.producer for one in await queue_consumer.after(1, 10)] == ["real"]


@virtual
async def test_what_stands_at_a_deleted_number_is_not_handed_out() -> None:
    queue = await Queue().create()
    stalled = await queue.opened("stalled")
    # What it would write as chunk 1, were it not so slow.
    late = stalled._tail.chunk.written(
        b"t" * 16, owner=stalled._marks.owner, batches=[batch(1), batch(2)], closed=True
    )
    appender = await queue.opened()
    await appender.append([batch(1)])
    queue_consumer = await queue.taken()
    assert len(await queue_consumer.after(None, 10)) == 1
    await queue_consumer.dequeue(0)
    await queue.collector().collect(NOTHING_KEPT, full=True)
    await queue.store.put(queue.chunks.key(1), encode_chunk(late))
    await appender.append([batch(2)])
    found = []
    for _ in range(20):
        found += await queue_consumer.after(0, 10)
    assert {(one.sequence, one.producer) for one in found} == {(1, "p")}
    assert [one.producer for one in await queue.queue_reader().after(None, 10)] == ["p"]
