"""One owner at a time: it reads in order, acknowledges, resumes, and stops when it is fenced."""

from __future__ import annotations

from unittest import mock

import pytest

from headwater.buffer.queue.native.chunk import encode_chunk
from headwater.core.errors import Bug, Fenced, Refused, Trimmed
from headwater.store import MemoryBackend
from tests.buffer.native.given import NOTHING_KEPT, Cloud, Queue, batch
from tests.store.scripted import virtual

shapes = pytest.mark.parametrize("shape", [MemoryBackend, Cloud])


async def _filled(count: int, shape: type[MemoryBackend] = MemoryBackend) -> Queue:
    queue = await Queue(shape(versions_by_content=True)).create()
    await queue.fill(count)
    return queue


@shapes
@virtual
async def test_reads_in_order_and_goes_on_after_what_is_acknowledged(
    shape: type[MemoryBackend],
) -> None:
    queue = await _filled(30, shape)
    taker, position, seen = await queue.taken(), None, []
    while found := await taker.after(position, 7):
        seen += [one.sequence for one in found]
        position = seen[-1]
    assert seen == list(range(30))
    assert taker.pending == 30
    await taker.dequeue(12)
    assert taker.pending == 17
    successor = queue.taker()
    assert await successor.open("g") == 12
    assert [one.sequence for one in await successor.after(12, 3)] == [13, 14, 15]


@virtual
async def test_a_successor_fences_every_call() -> None:
    queue = await _filled(3)
    first, second = await queue.taken(), await queue.taken()
    assert second.epoch == first.epoch + 1
    for call in (
        lambda: first.after(None, 1),
        lambda: first.dequeue(0),
        first.check_fence,
        lambda: first.after(100, 1),
        lambda: first.dequeue(100),
    ):
        with pytest.raises(Fenced, match="epoch 2"):
            await call()
    assert (await queue.looker().state()).acked_sequence == 0
    await second.dequeue(1)


@virtual
async def test_who_is_fenced_is_told_so_also_where_its_place_is_gone() -> None:
    queue = await _filled(5)
    first = await queue.taken()
    await first.after(None, 1)
    second = await queue.taken()
    await second.dequeue(4)
    await queue.collector().collect(NOTHING_KEPT, full=True)
    with pytest.raises(Fenced):
        await first.after(0, 1)
    with pytest.raises(Fenced):
        await first.dequeue(0)


@virtual
async def test_another_group_is_refused_unless_it_takes_over() -> None:
    queue = await _filled(2)
    first = await queue.taken("mine")
    with pytest.raises(Refused, match="'mine' owns"):
        await queue.taker().open("yours")
    await first.dequeue(0)
    second = await queue.taken("yours", take_over=True)
    with pytest.raises(Fenced, match="'yours'"):
        await first.dequeue(1)
    assert [one.sequence for one in await second.after(0, 5)] == [1]
    with pytest.raises(Refused, match="name of its group"):
        await queue.taker().open("")


@virtual
async def test_resumes_where_its_caller_says() -> None:
    queue = await _filled(6)
    assert await queue.taker().open("g") is None
    assert await queue.taker().open("g", last_acked_sequence=2) == 2
    assert (await queue.looker().state()).acked_sequence == 3
    behind = queue.taker()
    assert await behind.open("g", last_acked_sequence=0) == 0
    assert [one.sequence for one in await behind.after(0, 2)] == [1, 2]
    assert (await queue.looker().state()).acked_sequence == 3
    for ahead in (6, 7, 1000):
        with pytest.raises(Refused, match="there are only 6"):
            await queue.taker().open("g", last_acked_sequence=ahead)
    assert (await queue.looker().state()).epoch == 3


@virtual
async def test_what_follows_the_position_must_be_there() -> None:
    queue = await _filled(6)
    taker = await queue.taken()
    await taker.dequeue(3)
    await queue.collector().collect(NOTHING_KEPT)
    with pytest.raises(Trimmed) as trimmed:
        await queue.taker().open("g", last_acked_sequence=1)
    assert trimmed.value.floor == 4
    assert await queue.taker().open("g", last_acked_sequence=3) == 3


@virtual
async def test_acknowledging_less_than_before_changes_nothing() -> None:
    queue = await _filled(4)
    taker = await queue.taken()
    await taker.dequeue(2)
    await taker.dequeue(0)
    assert (await queue.looker().state()).acked_sequence == 3
    with pytest.raises(Refused, match="no batch 4 yet"):
        await taker.dequeue(4)


@virtual
async def test_a_consumer_that_was_not_opened_is_a_bug_of_the_caller() -> None:
    queue = await _filled(1)
    with pytest.raises(Bug, match="not opened"):
        await queue.taker().after(None, 1)


@virtual
async def test_an_idle_consumer_reads_on_over_chunks_that_were_deleted_without_entries() -> None:
    queue = await _filled(3)
    taker = await queue.taken()
    assert len(await taker.after(None, 10)) == 3
    await taker.dequeue(2)
    for _ in range(3):
        await queue.collector().collect(NOTHING_KEPT, full=True)
        appender = await queue.opened("other")
        await queue.close_last(appender)
    await queue.collector().collect(NOTHING_KEPT, full=True)
    await queue.fill(1, "another")
    found = []
    for _ in range(20):
        found += await taker.after(2, 10)
    assert {one.sequence for one in found} == {3}


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
    taker = await queue.taken()
    assert len(await taker.after(None, 10)) == 1
    await taker.dequeue(0)
    await queue.collector().collect(NOTHING_KEPT, full=True)
    await queue.store.put(queue.chunks.key(1), encode_chunk(late))
    await appender.append([batch(2)])
    found = []
    for _ in range(20):
        found += await taker.after(0, 10)
    assert {(one.sequence, one.producer) for one in found} == {(1, "p")}
    assert [one.producer for one in await queue.looker().after(None, 10)] == ["p"]


@virtual
async def test_a_batch_appended_while_chunks_are_read_is_not_jumped_over() -> None:
    queue = await _filled(1)
    appender = await queue.opened("other")
    await appender.append([batch(1)])
    stale = await queue.chunks.get(2)
    await appender.append([batch(2)])
    await queue.close_last(appender)
    await appender.append([batch(3)])
    assert stale is not None
    taker = await queue.taken()
    plain = taker._chunks.get

    async def read(number: int) -> object:
        # The second chunk was read before it grew, the third after.
        return stale if number == 2 else await plain(number)

    with mock.patch.object(taker._chunks, "get", read):
        found = await taker.after(None, 10)
        found += await taker.after(found[-1].sequence, 10)
    found += await taker.after(found[-1].sequence, 10)
    assert [one.sequence for one in found] == [0, 1, 2, 3]
