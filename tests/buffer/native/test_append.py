"""Every batch is appended exactly once, whatever becomes of requests and answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headwater.buffer.queue import BelowFloor, Placed, Resumed
from headwater.buffer.queue.native.chunk import Owner, encode_chunk
from headwater.core import limits, runtime
from headwater.core.backoff import RetryPolicy
from headwater.core.errors import Bug, Contended, Fenced, OutcomeUnknown, Unavailable
from headwater.store import MemoryBackend, PreconditionFailed, Store
from tests.buffer.native.given import NOTHING_KEPT, Queue, batch
from tests.store.scripted import LOST, Scripted, after, fails, lands_then, lands_then_after, virtual

REFUSED = PreconditionFailed("412 PreconditionFailed")
DOWN = Unavailable("500 InternalError")
ONCE = RetryPolicy(attempts=1, attempt_timeout_s=1e6, deadline_s=1e6)


class Faulty(Queue):
    """A queue with one producer whose requests do as they are told; others' go through."""

    def __init__(self) -> None:
        plain = MemoryBackend(versions_by_content=True)
        super().__init__(plain)
        self.scripted = Scripted(plain)
        self.once = Store(self.scripted, policy=ONCE)

    def next(self, operation: str, *steps: Any) -> None:
        """What becomes of the producer's next requests."""
        self.scripted.next(operation, *steps)


async def _given() -> tuple[Faulty, Any]:
    queue = Faulty()
    await queue.create()
    return queue, await queue.opened("p", store=queue.once)


# What was lost on the way


@virtual
async def test_an_addition_whose_answer_was_lost_is_recognised() -> None:
    queue, appender = await _given()
    await appender.append([batch(1)])
    queue.next("put_if_unchanged", lands_then(LOST))
    with pytest.raises(OutcomeUnknown):
        await appender.append([batch(2)])
    assert await appender.append([batch(2), batch(3)]) == [Placed(1, 2), Placed(2, 3)]
    assert await queue.entries() == [("p", 1), ("p", 2), ("p", 3)]


@virtual
async def test_a_creation_whose_answer_was_lost_is_recognised() -> None:
    queue, appender = await _given()
    queue.next("put_if_absent", lands_then(LOST))
    with pytest.raises(OutcomeUnknown):
        await appender.append([batch(1)])
    assert await appender.append([batch(1)]) == [Placed(0, 1)]
    assert await queue.entries() == [("p", 1)]


@pytest.mark.parametrize("before", [0, 1], ids=["create", "add"])
@virtual
async def test_an_attempt_that_lands_late_is_not_made_twice(before: int) -> None:
    queue, appender = await _given()
    for sequence in range(1, before + 1):
        await appender.append([batch(sequence)])
    operation = "put_if_unchanged" if before else "put_if_absent"
    late: list[Callable[[], Awaitable[Any]]] = []

    async def waits(apply: Callable[[], Awaitable[Any]]) -> None:
        late.append(apply)
        raise LOST

    queue.next(operation, waits)
    with pytest.raises(OutcomeUnknown):
        await appender.append([batch(before + 1)])

    async def lands_first(apply: Callable[[], Awaitable[Any]]) -> Any:
        await late[0]()
        return await apply()

    # Looked at, it has not landed; it lands just before the next attempt does.
    queue.next(operation, lands_first)
    await appender.append([batch(before + 1), batch(before + 2)])
    assert await queue.entries() == [("p", n) for n in range(1, before + 3)]


@virtual
async def test_a_refusal_of_ones_own_write_is_no_failure() -> None:
    queue, appender = await _given()
    other = await queue.opened("other")
    await appender.append([batch(1)])

    async def others_go_on() -> None:
        await other.append([batch(1)])

    # Carried out, refused all the same, and grown by the time one looks.
    queue.next("put_if_unchanged", lands_then_after(others_go_on, REFUSED))
    assert await appender.append([batch(2)]) == [Placed(1, 2)]
    assert await queue.entries() == [("p", 1), ("p", 2), ("other", 1)]


@virtual
async def test_what_was_consumed_and_deleted_meanwhile_is_told_by_the_mark() -> None:
    queue, appender = await _given()
    taker = await queue.taken()
    queue.next("put_if_absent", lands_then(LOST))
    with pytest.raises(OutcomeUnknown):
        await appender.append([batch(1, rows=3), batch(2, rows=4)])
    await taker.dequeue(1)
    await queue.collector().collect(NOTHING_KEPT, full=True)
    assert not await queue.chunks.exists(1)
    assert await appender.append([batch(1, rows=3), batch(2, rows=4), batch(3)]) == [
        Placed(0, 1),
        Placed(1, 4),
        Placed(2, 8),
    ]
    assert await queue.entries() == [("p", 3)]


# Numbers that are free a second time


async def _deleted(queue: Queue) -> None:
    """Everything there is, acknowledged, expired and deleted."""
    taker = await queue.taken()
    state = await queue.looker().state()
    await taker.dequeue(state.next_sequence - 1)
    await queue.collector().collect(NOTHING_KEPT, full=True)


@virtual
async def test_a_number_that_was_deleted_is_no_place_to_append() -> None:
    queue, stalled = await _given()
    other = await queue.opened("other")

    async def meanwhile() -> None:
        await other.append([batch(1), batch(2)])
        await _deleted(queue)
        await other.append([batch(3)])

    # Its create finds number 1 free, which held others' batches and is gone.
    queue.next("put_if_absent", after(meanwhile))
    assert await stalled.append([batch(1)]) == [Placed(3, 4)]
    assert await queue.entries() == [("other", 3), ("p", 1)]


@virtual
async def test_what_a_stalled_writer_left_below_the_floor_is_not_added_to() -> None:
    queue, appender = await _given()
    await appender.append([batch(1)])
    first = await queue.chunk(1)
    await _deleted(queue)
    # A copy of the request that created it comes late: the very bytes that the producer knows.
    await queue.store.put(queue.chunks.key(1), encode_chunk(first))
    assert await appender.append([batch(2)]) == [Placed(1, 2)]
    assert await queue.entries() == [("p", 2)]


@virtual
async def test_a_producer_that_finds_a_dead_chunk_first_opens_in_the_living_queue() -> None:
    queue, appender = await _given()
    await appender.append([batch(1)])
    first = await queue.chunk(1)
    await _deleted(queue)
    await appender.append([batch(2)])
    await queue.store.put(queue.chunks.key(1), encode_chunk(first))

    successor, dead = queue.appender(), await queue.chunks.get(1)
    assert dead is not None
    successor._tail.adopt(dead)
    assert await successor.open() == Resumed(2, None, 1)
    assert await successor.append([batch(3)]) == [Placed(2, 3)]
    with pytest.raises(Fenced):
        await appender.append([batch(3)])


@virtual
async def test_a_producer_learns_nothing_from_what_a_stalled_writer_left() -> None:
    queue, stalled = await _given()
    await stalled.append([batch(1)])
    await queue.close_last(stalled)
    # What it writes next loses to others, and is on its way all the same when it dies.
    late = stalled._tail.chunk.written(
        b"t" * 16, owner=stalled._marks.owner, batches=[batch(2)], closed=True
    )
    await queue.fill(3, "other")
    taker = await queue.taken()
    await taker.dequeue(3)
    await queue.collector().collect(NOTHING_KEPT)
    # Of what the floor has passed, one chunk is deleted, and the request finds its number free.
    await queue.delete_chunk(2)
    await queue.store.put(queue.chunks.key(2), encode_chunk(late))
    assert await queue.appender().open() == Resumed(1, None, 0)


async def _haunted(*, entries: int, opened: list[Owner]) -> tuple[Queue, Any]:
    """A producer whose last look showed a dead chunk, in which others wrote what is in no queue."""
    queue = await Queue().create()
    appender = await queue.opened()
    first = (await queue.chunk(0)).written(
        b"t" * 16,
        owner=Owner("lost", "1"),
        batches=[batch(sequence) for sequence in range(1, entries + 1)],
        opened=opened,
    )
    await queue.fill(1, "other")
    await _deleted(queue)
    await queue.store.put(queue.chunks.key(1), encode_chunk(first))
    dead = await queue.chunks.get(1)
    assert dead is not None
    appender._tail.adopt(dead)
    return queue, appender


@virtual
async def test_batches_in_a_dead_chunk_are_no_batches_that_were_lost() -> None:
    queue, appender = await _haunted(entries=5, opened=[])
    assert await appender.append([batch(1)]) == [Placed(1, 2)]
    assert await queue.entries() == [("p", 1)]


@virtual
async def test_openings_in_a_dead_chunk_hide_none_in_the_queue() -> None:
    queue, appender = await _haunted(entries=0, opened=[Owner("someone", "1")])
    await appender.append([batch(1)])
    successor = await queue.opened()
    with pytest.raises(Fenced):
        await appender.append([batch(2)])
    await successor.append([batch(2)])
    assert await queue.entries() == [("p", 1), ("p", 2)]


@virtual
async def test_an_attempt_that_lands_late_is_seen_by_whoever_looks_first() -> None:
    queue, appender = await _given()
    other = await queue.opened("other")
    await appender.append([batch(1)])
    await other.append([batch(1)])
    await appender.append([batch(2)])
    late: list[Callable[[], Awaitable[Any]]] = []

    async def waits(apply: Callable[[], Awaitable[Any]]) -> None:
        late.append(apply)
        raise LOST

    queue.next("put_if_unchanged", waits)
    with pytest.raises(OutcomeUnknown):
        await appender.append([batch(3)])
    assert not appender._tail.is_alone

    async def lands(apply: Callable[[], Awaitable[Any]]) -> Any:
        await late[0]()
        return await apply()

    # It lands after the first look at the chunk and before the next.
    queue.next("get", after(_nothing), lands)
    await appender.append([batch(3), batch(4)])
    assert await queue.entries() == [("p", 1), ("other", 1), ("p", 2), ("p", 3), ("p", 4)]


async def _nothing() -> None:
    return


# Fencing


@virtual
async def test_a_producer_learns_what_its_predecessor_had_accepted() -> None:
    queue = await Queue().create()
    first = queue.appender()
    assert await first.open() == Resumed(0, None, is_known=False)
    await first.append([batch(1, metadata=b"one"), batch(2, metadata=b"two")])
    second = queue.appender()
    assert await second.open() == Resumed(2, b"two", 1)
    await second.append([batch(3)])
    assert await queue.appender().open() == Resumed(3, None, 2)
    assert await queue.appender("another").open() == Resumed(0, None, is_known=False)


@virtual
async def test_a_successor_fences() -> None:
    queue = await Queue().create()
    first = await queue.opened()
    await first.append([batch(1)])
    second = await queue.opened()
    with pytest.raises(Fenced):
        await first.append([batch(2)])
    await second.append([batch(2)])
    with pytest.raises(Fenced):
        await first.append([batch(2)])
    assert await queue.entries() == [("p", 1), ("p", 2)]


@virtual
async def test_a_successor_fences_whoever_was_away_for_more_openings_than_are_remembered() -> None:
    queue = await Queue().create()
    first = await queue.opened()
    await first.append([batch(1)])
    await queue.opened()
    for number in range(limits.CHUNK_OPENINGS + 1):
        await queue.opened(f"other{number}")
        await queue.opened(f"other{number}")
    with pytest.raises(Fenced):
        await first.append([batch(2)])


@virtual
async def test_many_openings_of_others_fence_nobody() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    for number in range(limits.CHUNK_OPENINGS + 1):
        await queue.opened(f"other{number}")
        await queue.opened(f"other{number}")
    assert await appender.append([batch(1)]) == [Placed(0, 1)]


@virtual
async def test_an_opening_that_comes_late_does_not_fence_its_successor() -> None:
    queue, _ = await _given()
    slow = queue.appender(store=queue.once)
    later: list[Any] = []

    async def a_successor_opens() -> None:
        later.append(await queue.opened())

    # Its record is written; before its opening stands in the queue, somebody else opens.
    queue.next("put_if_absent", after(a_successor_opens))
    with pytest.raises((Fenced, Contended)):
        await slow.open()
    assert await later[0].append([batch(1)]) == [Placed(0, 1)]


@virtual
async def test_a_fenced_producer_that_is_in_doubt_is_told_so() -> None:
    queue, first = await _given()
    await first.append([batch(1)])
    queue.next("put_if_unchanged", fails(LOST))
    with pytest.raises(OutcomeUnknown):
        await first.append([batch(2)])
    second = queue.appender()
    assert (await second.open()).producer_sequence == 1
    with pytest.raises(Fenced):
        await first.append([batch(2)])
    await second.append([batch(2)])
    assert await queue.entries() == [("p", 1), ("p", 2)]


# The collector's floor


@virtual
async def test_an_upload_below_the_floor_is_refused_and_lands_under_another_id() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    old = await queue.upload(appender, 1)
    await runtime.sleep(1.0)
    await queue.collector().collect(NOTHING_KEPT)
    with pytest.raises(BelowFloor) as refused:
        await appender.append([old])
    assert old.batch_id <= refused.value.floor
    again = await queue.upload(appender, 1, batch_id=runtime.new_ulid(above=refused.value.floor))
    assert await appender.append([again]) == [Placed(0, 1)]


@virtual
async def test_a_small_batch_has_nothing_that_the_floor_could_pass() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    await queue.upload(appender, 9)
    small = batch(1)
    await runtime.sleep(1.0)
    await queue.collector().collect(NOTHING_KEPT)
    assert await appender.append([small]) == [Placed(0, 1)]


# What callers do wrong, and what contention does


@virtual
async def test_what_is_no_continuation_is_a_bug_of_the_caller() -> None:
    queue = await Queue().create()
    unopened = queue.appender()
    with pytest.raises(Bug, match="before open"):
        await unopened.append([batch(1)])
    appender = await queue.opened()
    with pytest.raises(Bug, match="where 1 follows"):
        await appender.append([batch(2)])
    await appender.append([batch(1), batch(2)])
    await appender.append([batch(2), batch(3)])
    with pytest.raises(Bug, match="long ago"):
        await appender.append([batch(1)])
    assert await queue.entries() == [("p", 1), ("p", 2), ("p", 3)]
    assert await appender.append([]) == []


@virtual
async def test_who_loses_every_race_is_told_that_nothing_landed() -> None:
    queue, appender = await _given()
    other = await queue.opened("other")
    sequence = 0

    async def others_win() -> None:
        nonlocal sequence
        sequence += 1
        await other.append([batch(sequence)])

    for operation in ("put_if_absent", "put_if_unchanged"):
        for _ in range(limits.APPEND_ATTEMPTS + 1):
            queue.next(operation, after(others_win))
    with pytest.raises(Contended, match="not appended"):
        await appender.append([batch(1)])
    queue.scripted._steps.clear()
    await appender.append([batch(1)])
    assert ("p", 1) in await queue.entries()


@virtual
async def test_a_floor_that_cannot_be_read_leaves_the_outcome_open() -> None:
    queue, appender = await _given()
    await runtime.sleep(limits.FLOOR_LEASE_S + 1)
    queue.next("get", fails(DOWN))
    with pytest.raises(OutcomeUnknown, match="floor"):
        await appender.append([batch(1)])
    assert await appender.append([batch(1)]) == [Placed(0, 1)]
    assert await queue.entries() == [("p", 1)]
