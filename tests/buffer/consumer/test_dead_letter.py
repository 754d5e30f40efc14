"""Dead letters: what cannot be read is written down before anybody goes on without it."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.buffer.consumer import ConsumedBatch, Consumer, Follower, list_dead_letters
from headwater.core.errors import Denied, Fenced, RolledBack, Unavailable
from tests.buffer.consumer.fakes import FakeQueue, KeyFaults
from tests.store.scripted import LOST, Scripted, fails, lands_then, virtual


async def opened(queue: FakeQueue, **options: Any) -> Consumer:
    return await Consumer.open(queue.stream(), gc=False, on_bad_batch="dead_letter", **options)


async def next_of(consumer: Consumer | Follower) -> ConsumedBatch:
    batch = await consumer.next_batch()
    assert batch is not None
    return batch


async def queue_with_a_hole(backend: Scripted | KeyFaults | None = None) -> FakeQueue:
    """Three batches of two records; the second is gone."""
    queue = FakeQueue(backend)
    _, lost, _ = await queue.add_many(3)
    await queue.store.delete(lost.location)
    return queue


@virtual
async def test_a_lost_batch_is_delivered_as_lost_and_what_follows_keeps_its_numbers() -> None:
    queue = await queue_with_a_hole()
    consumer = await opened(queue)
    first, lost, third = [await next_of(consumer) for _ in range(3)]
    assert (first.lost, third.lost) == (None, None)
    assert lost.lost is not None
    assert (lost.lost.first_lsn, lost.lost.last_lsn) == (3, 4)
    assert "NotFound" in lost.lost.cause
    assert (lost.sequence, len(lost), lost.entries, lost.lsns.to_pylist()) == (1, 0, [], [])
    assert third.lsns.to_pylist() == [5, 6]
    for batch in (first, lost, third):
        await consumer.ack(batch.sequence)
    await consumer.close()
    assert queue.acked == 3


@virtual
async def test_the_list_says_what_was_lost_and_why() -> None:
    queue = await queue_with_a_hole()
    consumer = await opened(queue)
    for _ in range(3):
        await next_of(consumer)
    (letter,) = await list_dead_letters(consumer.stream)
    described = queue.entries[1]
    assert (letter.stream, letter.partition, letter.sequence) == ("orders", 0, 1)
    assert (letter.first_lsn, letter.last_lsn, letter.rows) == (3, 4, 2)
    assert (letter.location, letter.batch_id) == (described.location, described.batch_id)
    assert (letter.producer, letter.producer_sequence) == ("p", 2)
    assert "NotFound" in letter.cause
    assert consumer.metrics.dead_letters == 1


@virtual
async def test_a_corrupt_batch_goes_there_too() -> None:
    queue = FakeQueue()
    (descriptor,) = await queue.add_many(1)
    await queue.store.put(descriptor.location, b"not a batch")
    consumer = await opened(queue)
    lost = (await next_of(consumer)).lost
    assert lost is not None
    assert "Corrupt" in lost.cause


@virtual
async def test_a_restart_finds_the_letter_and_goes_on() -> None:
    queue = await queue_with_a_hole()
    consumer = await opened(queue)
    for _ in range(3):
        await next_of(consumer)
    again = await opened(queue)
    assert [(await next_of(again)).lost is not None for _ in range(3)] == [False, True, False]
    assert len(await list_dead_letters(again.stream)) == 1


@virtual
async def test_without_a_letter_nobody_goes_on() -> None:
    backend = Scripted()
    queue = await queue_with_a_hole(backend)
    consumer = await opened(queue)
    await next_of(consumer)
    backend.next("put_if_absent", fails(Denied("read only")))
    with pytest.raises(Denied):
        await consumer.next_batch()
    assert consumer.last_handed_out_sequence == 0
    assert (await next_of(consumer)).lost is not None


@virtual
async def test_a_letter_whose_answer_was_lost_is_found_by_looking() -> None:
    backend = Scripted()
    queue = await queue_with_a_hole(backend)
    consumer = await opened(queue)
    await next_of(consumer)
    backend.next("put_if_absent", lands_then(LOST))
    assert (await next_of(consumer)).lost is not None
    assert len(await list_dead_letters(consumer.stream)) == 1


@pytest.mark.parametrize("error", [Unavailable("down"), Denied("no")])
def test_a_store_that_cannot_answer_makes_no_dead_letter(error: Exception) -> None:
    @virtual
    async def run() -> None:
        backend = KeyFaults()
        queue = FakeQueue(backend)
        (descriptor,) = await queue.add_many(1)
        backend.errors[descriptor.location] = [error] * 20
        consumer = await opened(queue)
        with pytest.raises(type(error)):
            await consumer.next_batch()
        assert await list_dead_letters(consumer.stream) == []
        backend.errors.clear()
        assert (await next_of(consumer)).lost is None

    run()


@virtual
async def test_nothing_is_written_for_a_batch_that_was_only_read_ahead() -> None:
    queue = await queue_with_a_hole()
    consumer = await opened(queue)
    await next_of(consumer)
    await consumer.close()
    assert await list_dead_letters(consumer.stream) == []


@virtual
async def test_a_letter_of_other_records_is_not_believed() -> None:
    queue = await queue_with_a_hole()
    consumer = await opened(queue)
    for _ in range(2):
        await next_of(consumer)
    key = f"{consumer.stream.dead_letter_prefix(0)}/{1:020d}.json"
    data = bytes((await queue.store.get(key)).data)
    await queue.store.put(key, data.replace(b'"first_lsn":3', b'"first_lsn":2'))
    again = await opened(queue)
    await next_of(again)
    with pytest.raises(RolledBack, match="LSNs 2–4"):
        await again.next_batch()


@virtual
async def test_a_follower_writes_letters_as_well() -> None:
    queue = await queue_with_a_hole()
    follower = await Follower.open(queue.stream(), group="audit", on_bad_batch="dead_letter")
    assert [(await next_of(follower)).lost is not None for _ in range(3)] == [False, True, False]


# Batches of the published format whose rows nobody can count


@virtual
async def test_an_uncounted_batch_is_written_down_before_it_is_given_up() -> None:
    queue = FakeQueue()
    await queue.add_many(3)
    queue.uncounted = {1}
    consumer = await opened(queue)
    found = [await next_of(consumer) for _ in range(3)]
    assert [batch.sequence for batch in found] == [0, 1, 2]
    assert [batch.lost is not None for batch in found] == [False, True, False]
    (letter,) = await list_dead_letters(consumer.stream)
    assert (letter.sequence, letter.rows) == (1, 0)
    assert "its rows cannot be told" in letter.cause


@virtual
async def test_it_is_still_delivered_as_lost_after_a_restart() -> None:
    queue = FakeQueue()
    await queue.add_many(2)
    queue.uncounted = {0}
    await (await opened(queue)).next_batch()
    assert (await next_of(await opened(queue))).lost is not None


@virtual
async def test_it_is_not_given_up_without_a_letter() -> None:
    backend = Scripted()
    queue = FakeQueue(backend)
    await queue.add_many(2)
    queue.uncounted = {0}
    consumer = await opened(queue)
    backend.next("put_if_absent", fails(Denied("read only")))
    with pytest.raises(Denied):
        await consumer.next_descriptors(2)
    assert queue.uncounted == {0}
    assert [d.sequence for d in await consumer.next_descriptors(2)] == [0, 1]


@virtual
async def test_a_fenced_consumer_gives_nothing_up() -> None:
    queue = FakeQueue()
    await queue.add_many(1)
    queue.uncounted = {0}
    consumer = await opened(queue)
    await opened(queue)
    with pytest.raises(Fenced):
        await consumer.next_batch()
    assert await list_dead_letters(consumer.stream) == []
