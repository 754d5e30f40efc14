"""The owning consumer: one at a time, in order, and never on a queue that went back."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from headwater.buffer.queue.contract import Descriptor
from headwater.buffer.queue.native import NativeTaker
from headwater.buffer.queue.native.chunk import Owner, first_chunk
from headwater.buffer.queue.native.reading import FLOOR_POLLS, LAST_POLLS
from headwater.core import limits, runtime
from headwater.core.errors import (
    Bug,
    Fenced,
    Refused,
    Trimmed,
)
from headwater.store import MemoryBackend
from tests.buffer.native.given import NOTHING_KEPT, QUEUE, Cloud, Queue, batch
from tests.buffer.native.watched import (
    acknowledge_everything,
    client,
)
from tests.store.scripted import Apply, after, virtual

IDLE_POLLS = 64


async def a_queue(batches: int, *, backend: MemoryBackend | None = None) -> Queue:
    """A queue with so many batches, one chunk each."""
    queue = await Queue(backend).create()
    await queue.fill(batches)
    return queue


async def polled(taker: NativeTaker, sequence: int, *, times: int = LAST_POLLS) -> list[Descriptor]:
    """Read on as often as it may take until a reader looks at what it need not look at always."""
    for _ in range(times):
        if found := await taker.after(sequence, 10):
            return found
    return []


async def collect_some(queue: Queue, through: int) -> None:
    """Acknowledge through a batch, and let the collector take what it can."""
    taker = await queue.taken()
    await taker.dequeue(through)
    await queue.collector().collect(NOTHING_KEPT, full=True)


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
    taker = queue.taker()
    assert await taker.open("g") is None
    first, second = await taker.after(None, 10)
    assert (first.sequence, first.first_lsn, first.rows, first.last_lsn) == (0, 1, 1, 1)
    assert (await queue.store.get(first.location)).data == uploaded.batch_id.encode()
    assert (second.sequence, second.first_lsn, second.last_lsn) == (1, 2, 4)
    assert (second.size_bytes, second.min_ms, second.max_ms) == (7, 5, 9)
    assert (second.inline, second.metadata) == (b"inline!", b"m")
    assert (second.producer, second.producer_sequence) == ("größe", 2)
    assert taker.pending == 2


@pytest.mark.parametrize("limit", [1, 2, 7, 100])
@virtual
async def test_reading_on_goes_over_chunks_without_gap_or_repetition(limit: int) -> None:
    queue = await a_queue(40)
    taker, at, seen = await queue.taken(), None, list[int]()
    while found := await taker.after(at, limit):
        assert len(found) <= limit
        seen += [one.sequence for one in found]
        at = seen[-1]
    assert seen == list(range(40))
    assert await taker.after(at, 0) == []


@virtual
async def test_the_last_chunk_is_read_on_while_it_grows() -> None:
    queue = await Queue().create()
    appender, taker, at = await queue.opened(), await queue.taken(), None
    for sequence in range(1, 600):
        await appender.append([batch(sequence)])
        if sequence % 3 == 0:
            found = await taker.after(at, 100)
            assert [one.producer_sequence for one in found] == [
                sequence - 2,
                sequence - 1,
                sequence,
            ]
            at = found[-1].sequence


@virtual
async def test_opening_raises_the_epoch_and_fences_whoever_had_it() -> None:
    queue = await a_queue(3)
    first = await queue.taken()
    await first.dequeue(0)
    second = queue.taker()
    assert await second.open("g") == 0
    assert (first.epoch, second.epoch) == (1, 2)
    for call in (first.check_fence(), first.after(0, 1), first.dequeue(1), first.dequeue(0)):
        with pytest.raises(Fenced, match="epoch 2"):
            await call
    state = await queue.looker().state()
    assert (state.epoch, state.group, state.acked_sequence) == (2, "g", 1)


@virtual
async def test_what_was_read_before_the_fence_is_not_handed_out() -> None:
    queue = await a_queue(3)
    backend, store = client(queue)
    first = queue.taker(store=store)
    await first.open("g")
    second = queue.taker()
    backend.on("get", f"chunks/{1:020d}", after(lambda: second.open("g")))
    with pytest.raises(Fenced):
        await first.after(None, 3)


@virtual
async def test_a_dequeue_that_meets_a_successor_changes_nothing() -> None:
    queue = await a_queue(3)
    backend, store = client(queue)
    first = queue.taker(store=store)
    await first.open("g")
    await first.after(None, 3)
    second = queue.taker()
    backend.on("put_if_unchanged", "consumer.json", after(lambda: second.open("g")))
    with pytest.raises(Fenced):
        await first.dequeue(2)
    assert (await queue.looker().state()).acked_sequence == 0


@virtual
async def test_another_group_takes_over_only_when_told_to() -> None:
    queue = await a_queue(3)
    owner = await queue.taken("owner")
    await owner.dequeue(1)
    with pytest.raises(Refused, match="the group 'owner' owns"):
        await queue.taker().open("other")
    await owner.check_fence()
    other = queue.taker()
    assert await other.open("other", take_over=True) == 1
    with pytest.raises(Fenced, match="'other'"):
        await owner.check_fence()
    assert (await queue.looker().state()).group == "other"
    with pytest.raises(Refused, match="name of its group"):
        await queue.taker().open("")


@virtual
async def test_nothing_is_taken_before_opening() -> None:
    queue = await a_queue(1)
    with pytest.raises(Bug, match="not opened"):
        await queue.taker().dequeue(0)


@virtual
async def test_a_dequeue_only_moves_forward() -> None:
    queue = await a_queue(5)
    backend, store = client(queue)
    taker = queue.taker(store=store)
    await taker.open("g")
    await taker.after(None, 5)
    await taker.dequeue(3)
    backend.requests()
    await taker.dequeue(1)
    assert backend.requests() == [("get", "q1/consumer.json")]
    state = await queue.looker().state()
    assert (state.acked_sequence, state.acked_lsn, state.pending, taker.pending) == (4, 5, 1, 1)
    with pytest.raises(Refused, match="no batch 5 yet"):
        await taker.dequeue(5)
    with pytest.raises(Refused, match="lies ahead"):
        await taker.dequeue(50)
    assert (await queue.looker().state()).acked_sequence == 4


@virtual
async def test_a_dequeue_that_was_cancelled_and_landed_is_not_taken_back_by_a_lower_one() -> None:
    queue = await a_queue(5)
    backend, store = client(queue)
    taker = queue.taker(store=store)
    await taker.open("g")
    await taker.after(None, 5)

    async def lands_and_stands_still(apply: Apply) -> None:
        await apply()
        await asyncio.Event().wait()

    backend.on("put_if_unchanged", "consumer.json", lands_and_stands_still)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await taker.dequeue(3)
    await taker.dequeue(1)
    assert (await queue.looker().state()).acked_sequence == 4


@virtual
async def test_resuming_acknowledges_ahead_and_delivers_again_behind() -> None:
    queue = await a_queue(6)
    taker = queue.taker()
    assert await taker.open("g", last_acked_sequence=3) == 3
    assert (await queue.looker().state()).acked_sequence == 4
    again = queue.taker()
    assert await again.open("g", last_acked_sequence=1) == 1
    assert [one.sequence for one in await again.after(1, 10)] == [2, 3, 4, 5]
    assert (await queue.looker().state()).acked_sequence == 4
    await again.dequeue(2)
    assert (await queue.looker().state()).acked_sequence == 4
    fresh = queue.taker()
    assert await fresh.open("g") == 3


@virtual
async def test_resuming_at_or_past_the_next_is_refused_and_changes_nothing() -> None:
    queue = await a_queue(3)
    await queue.taken()
    for ahead in (3, 4, 1000):
        with pytest.raises(Refused, match="there are only 3"):
            await queue.taker().open("g", last_acked_sequence=ahead)
    assert (await queue.looker().state()).epoch == 1


@virtual
async def test_resuming_where_nothing_is_kept_any_more_is_trimmed() -> None:
    queue = await a_queue(6)
    await collect_some(queue, 3)
    floor = (await queue.looker().state()).floor_sequence
    assert floor == 4
    with pytest.raises(Trimmed) as trimmed:
        await queue.taker().open("g", last_acked_sequence=1)
    assert trimmed.value.floor == floor
    # What was acknowledged last may be gone; what follows it is not.
    taker = queue.taker()
    assert await taker.open("g", last_acked_sequence=3) == 3
    assert [one.sequence for one in await taker.after(3, 10)] == [4, 5]
    with pytest.raises(Trimmed):
        await taker.after(None, 10)


@virtual
async def test_what_is_retained_is_delivered_again_from_any_place() -> None:
    queue = await a_queue(8)
    await acknowledge_everything(queue)
    taker = await queue.taken()
    for start in (None, 0, 5, 6, 2):
        expected = list(range(0 if start is None else start + 1, 8))
        assert [one.sequence for one in await taker.after(start, 100)] == expected


@pytest.mark.parametrize("shape", [MemoryBackend, Cloud])
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
    taker = queue.taker(store=store)
    await taker.open("g")
    assert len(await taker.after(None, 10)) == 1
    backend.requests()
    asked = []
    for _ in range(IDLE_POLLS):
        assert await taker.after(0, 10) == []
        operations = backend.operations()
        assert set(operations) <= {"get", "head"}
        asked.append(len(operations))
    assert sorted(asked)[: IDLE_POLLS * 15 // 16][-1] <= 3
    assert max(asked) <= 5  # one poll in sixteen makes sure of the floor and of both neighbours
    assert sum(asked) <= 2.5 * IDLE_POLLS
    await appender.append([batch(2)])
    assert [one.sequence for one in await taker.after(0, 10)] == [1]
    assert "list" not in backend.operations()


@virtual
async def test_a_poll_of_a_growing_chunk_takes_two_requests() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    backend, store = client(queue)
    taker = queue.taker(store=store)
    await taker.open("g")
    await appender.append([batch(1)])
    await taker.after(None, 10)
    for sequence in range(2, 30):
        await appender.append([batch(sequence)])
        backend.requests()
        assert len(await taker.after(sequence - 2, 10)) == 1
        assert backend.requests() == [("get", f"chunks/{1:020d}"), ("get", "q1/consumer.json")]


@virtual
async def test_a_reader_goes_on_over_chunks_without_entries_that_were_collected() -> None:
    queue = await a_queue(2)
    taker = await queue.taken()
    await taker.after(None, 10)
    await taker.dequeue(1)
    assert await taker.after(1, 10) == []
    # Chunks without entries come and go, as notes of collectors do, while nobody appends.
    await _without_entries(queue, 6)
    await queue.collector().collect(NOTHING_KEPT, full=True)
    assert (await queue.chunks.floors()).chunk_floor > 4
    appender = await queue.opened("late")
    await appender.append([batch(1)])
    found = await polled(taker, 1, times=FLOOR_POLLS + 1)
    assert [(one.sequence, one.producer) for one in found] == [(2, "late")]


@virtual
async def test_what_stands_below_the_floor_is_not_handed_out() -> None:
    queue = await a_queue(2)
    taker = await queue.taken()
    await taker.after(None, 10)
    await taker.dequeue(1)
    assert await taker.after(1, 10) == []
    await _without_entries(queue, 4)
    await queue.collector().collect(NOTHING_KEPT, full=True)
    # A create that stalled until its number was dead: what it says was never appended.
    ghost = first_chunk(QUEUE).follower()
    ghost = msgspec.structs.replace(ghost, number=3, first_sequence=2, first_lsn=3)
    owner = Owner("ghost", "1")
    await queue.put_chunks([ghost.written(runtime.new_token(), owner=owner, batches=[batch(1)])])
    await runtime.sleep(limits.FLOOR_LEASE_S)
    assert await taker.after(1, 10) == []
    real = await queue.opened("real")
    await real.append([batch(1)])
    assert [one.producer for one in await taker.after(1, 10)] == ["real"]
