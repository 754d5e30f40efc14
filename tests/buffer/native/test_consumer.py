"""The owning consumer: one at a time, and what it acknowledged only moves forward."""

from __future__ import annotations

import asyncio

import pytest

from headwater.buffer.queue.contract import BatchTrimmed
from headwater.buffer.queue.retention import Retention
from headwater.core import limits, runtime
from headwater.core.errors import Bug, Fenced, Refused, Trimmed
from tests.buffer.native.given import NOTHING_KEPT, filled
from tests.buffer.native.watched import acknowledge_through, client
from tests.store.scripted import Apply, after, virtual


@virtual
async def test_nothing_is_taken_before_opening() -> None:
    queue = await filled(1)
    queue_consumer = queue.queue_consumer()
    for call in (queue_consumer.after(None, 1), queue_consumer.dequeue(0)):
        with pytest.raises(Bug, match="not opened"):
            await call


@virtual
async def test_opening_raises_the_epoch_and_fences_whoever_had_it() -> None:
    queue = await filled(3)
    first = await queue.taken()
    await first.dequeue(0)
    second = queue.queue_consumer()
    assert await second.open("g") == 0
    assert (first.epoch, second.epoch) == (1, 2)
    for call in (
        first.check_fence(),
        first.after(None, 1),
        first.after(0, 1),
        first.after(100, 1),
        first.dequeue(0),
        first.dequeue(1),
        first.dequeue(100),
    ):
        with pytest.raises(Fenced, match="epoch 2"):
            await call
    state = await queue.queue_reader().state()
    assert (state.epoch, state.group, state.acked_sequence) == (2, "g", 1)
    await second.dequeue(1)


@virtual
async def test_who_is_fenced_is_told_so_also_where_its_place_is_gone() -> None:
    queue = await filled(5)
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
async def test_what_was_read_before_the_fence_is_not_handed_out() -> None:
    queue = await filled(3)
    backend, store = client(queue)
    first = queue.queue_consumer(store=store)
    await first.open("g")
    second = queue.queue_consumer()
    backend.on("get", f"chunks/{1:020d}", after(lambda: second.open("g")))
    with pytest.raises(Fenced):
        await first.after(None, 3)


@virtual
async def test_a_dequeue_that_meets_a_successor_changes_nothing() -> None:
    queue = await filled(3)
    backend, store = client(queue)
    first = queue.queue_consumer(store=store)
    await first.open("g")
    await first.after(None, 3)
    second = queue.queue_consumer()
    backend.on("put_if_unchanged", "consumer.json", after(lambda: second.open("g")))
    with pytest.raises(Fenced):
        await first.dequeue(2)
    assert (await queue.queue_reader().state()).acked_sequence == 0


@virtual
async def test_another_group_takes_over_only_when_told_to() -> None:
    queue = await filled(3)
    owner = await queue.taken("owner")
    await owner.dequeue(1)
    with pytest.raises(Refused, match="the group 'owner' owns"):
        await queue.queue_consumer().open("other")
    await owner.check_fence()
    other = queue.queue_consumer()
    assert await other.open("other", take_over=True) == 1
    with pytest.raises(Fenced, match="'other'"):
        await owner.check_fence()
    assert [one.sequence for one in await other.after(1, 5)] == [2]
    assert (await queue.queue_reader().state()).group == "other"
    with pytest.raises(Refused, match="name of its group"):
        await queue.queue_consumer().open("")


@virtual
async def test_a_dequeue_only_moves_forward() -> None:
    queue = await filled(5)
    backend, store = client(queue)
    queue_consumer = queue.queue_consumer(store=store)
    await queue_consumer.open("g")
    await queue_consumer.after(None, 5)
    await queue_consumer.dequeue(3)
    backend.requests()
    await queue_consumer.dequeue(1)
    assert backend.requests() == [("get", "q1/consumer.json")]
    state = await queue.queue_reader().state()
    assert (state.acked_sequence, state.acked_lsn, state.pending, queue_consumer.pending) == (
        4,
        5,
        1,
        1,
    )
    with pytest.raises(Refused, match="no batch 5 yet"):
        await queue_consumer.dequeue(5)
    with pytest.raises(Refused, match="lies ahead"):
        await queue_consumer.dequeue(50)
    assert (await queue.queue_reader().state()).acked_sequence == 4


@virtual
async def test_a_dequeue_that_was_cancelled_and_landed_is_not_taken_back_by_a_lower_one() -> None:
    queue = await filled(5)
    backend, store = client(queue)
    queue_consumer = queue.queue_consumer(store=store)
    await queue_consumer.open("g")
    await queue_consumer.after(None, 5)

    async def lands_and_stands_still(apply: Apply) -> None:
        await apply()
        await asyncio.Event().wait()

    backend.on("put_if_unchanged", "consumer.json", lands_and_stands_still)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await queue_consumer.dequeue(3)
    await queue_consumer.dequeue(1)
    assert (await queue.queue_reader().state()).acked_sequence == 4


@virtual
async def test_resuming_acknowledges_ahead_and_delivers_again_behind() -> None:
    queue = await filled(6)
    queue_consumer = queue.queue_consumer()
    assert await queue_consumer.open("g", last_acked_sequence=3) == 3
    assert (await queue.queue_reader().state()).acked_sequence == 4
    again = queue.queue_consumer()
    assert await again.open("g", last_acked_sequence=1) == 1
    assert [one.sequence for one in await again.after(1, 10)] == [2, 3, 4, 5]
    assert (await queue.queue_reader().state()).acked_sequence == 4
    await again.dequeue(2)
    assert (await queue.queue_reader().state()).acked_sequence == 4
    fresh = queue.queue_consumer()
    assert await fresh.open("g") == 3


@virtual
async def test_resuming_at_or_past_the_next_is_refused_and_changes_nothing() -> None:
    queue = await filled(3)
    await queue.taken()
    for ahead in (3, 4, 1000):
        with pytest.raises(Refused, match="there are only 3"):
            await queue.queue_consumer().open("g", last_acked_sequence=ahead)
    assert (await queue.queue_reader().state()).epoch == 1


@virtual
async def test_resuming_before_the_first_begins_with_it_and_further_back_is_refused() -> None:
    queue = await filled(3)
    await acknowledge_through(queue, 1)
    queue_consumer = queue.queue_consumer()
    assert await queue_consumer.open("g", last_acked_sequence=-1) == -1
    assert [one.sequence for one in await queue_consumer.after(-1, 10)] == [0, 1, 2]
    epoch = (await queue.queue_reader().state()).epoch
    with pytest.raises(Refused, match="or -1 if there is none"):
        await queue.queue_consumer().open("g", last_acked_sequence=-2)
    assert (await queue.queue_reader().state()).epoch == epoch


@virtual
async def test_resuming_where_nothing_is_kept_any_more_is_trimmed() -> None:
    queue = await filled(6)
    await acknowledge_through(queue, 3)
    await queue.collector().collect(NOTHING_KEPT, full=True)
    floor = (await queue.queue_reader().state()).floor_sequence
    assert floor == 4
    with pytest.raises(BatchTrimmed) as trimmed:
        await queue.queue_consumer().open("g", last_acked_sequence=1)
    assert trimmed.value.floor_sequence == floor
    # What was acknowledged last may be gone; what follows it is not.
    queue_consumer = queue.queue_consumer()
    assert await queue_consumer.open("g", last_acked_sequence=3) == 3
    assert [one.sequence for one in await queue_consumer.after(3, 10)] == [4, 5]
    with pytest.raises(Trimmed):
        await queue_consumer.after(None, 10)


@virtual
async def test_the_rate_of_conflicts_counts_lost_races_among_the_writes_tried() -> None:
    queue = await filled(3)
    backend, store = client(queue)
    first = queue.queue_consumer(store=store)
    await first.open("g")
    await first.dequeue(0)
    await first.dequeue(0)  # which has nothing to write
    assert (first.counters.writes, first.counters.conflicts) == (2, 0)
    second = queue.queue_consumer()
    backend.on("put_if_unchanged", "consumer.json", after(lambda: second.open("g")))
    with pytest.raises(Fenced):
        await first.dequeue(1)
    assert (first.counters.writes, first.counters.conflicts) == (3, 1)
    assert first.counters.conflict_rate == pytest.approx(100 / 3)


@virtual
async def test_what_retention_deleted_unread_is_trimmed_and_may_not_be_passed_silently() -> None:
    queue = await filled(6)
    queue_consumer = await queue.taken()
    assert [one.sequence for one in await queue_consumer.after(None, 2)] == [0, 1]
    await queue.collector().collect(Retention(None, grace_ms=0, before_sequence=4))
    await runtime.sleep(limits.FLOOR_LEASE_S)
    with pytest.raises(Trimmed):
        await queue_consumer.after(1, 1)
    for sequence in (0, 1):
        await queue_consumer.dequeue(sequence)
    assert (await queue.queue_reader().state()).pending == 2
    # A successor is not led past the records that were lost.
    successor = queue.queue_consumer()
    position = await successor.open("g")
    assert position is None or position < 3
    with pytest.raises(BatchTrimmed):
        await successor.after(position, 1)
    # It goes on at the oldest record if it says so.
    assert await successor.open("g", last_acked_sequence=3) == 3
    with pytest.raises(Refused):
        await successor.dequeue(6)  # never appended
    assert [one.sequence for one in await successor.after(3, 9)] == [4, 5]


@virtual
async def test_the_first_consumer_begins_at_the_oldest_record() -> None:
    queue = await filled(6)
    await queue.collector().collect(Retention(None, grace_ms=0, before_sequence=4))
    queue_consumer = queue.queue_consumer()
    assert await queue_consumer.open("g") == 3
    assert [one.sequence for one in await queue_consumer.after(3, 9)] == [4, 5]
    await queue_consumer.dequeue(5)
