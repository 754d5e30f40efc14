"""Dead letters: what cannot be read is written down before anybody goes on without it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from headwater.buffer.consumer import (
    ConsumedBatch,
    Consumer,
    Follower,
    UnreadableBatch,
    lag,
    list_dead_letters,
    read,
)
from headwater.buffer.consumer.fetcher import FetchHandle
from headwater.buffer.queue.contract import Descriptor, Uncounted
from headwater.buffer.stream import Stream, create_stream
from headwater.core.errors import Corrupt, Denied, Fenced, RolledBack, Unavailable
from headwater.store import MemoryBackend, Store
from tests.buffer.consumer.fakes import FakeQueue, KeyFaults
from tests.buffer.consumer.given import produce
from tests.buffer.native.given import at_time
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


# What a lost object of a published v1 queue does to those who read it: no more than it must.
#
# The manifest does not say how many records a batch has, so that an object which is gone before
# anybody counted it leaves whatever follows without numbers.


async def given(batches: int) -> tuple[Stream, list[Descriptor]]:
    """A stream with so many batches of one record each, and what they are."""
    stream = await create_stream(Store(MemoryBackend()), "orders", format="v1")
    await produce(stream, *[[b"%d" % number] for number in range(batches)])
    return stream, await stream.queue_reader(0).after(None, batches)


async def damage(stream: Stream, batch: Descriptor) -> None:
    """Spoil the records; the count at the end of the object stays as it was."""
    data = bytes((await stream.store.get(batch.location)).data)
    await stream.store.put(batch.location, b"\xff\xff\xff\x7f" + data[4:])


async def some_of(consumer: Consumer, count: int) -> list[ConsumedBatch]:
    found = [await consumer.next_batch() for _ in range(count)]
    return [batch for batch in found if batch is not None]


@virtual
async def test_a_bad_batch_is_passed_over_though_a_later_one_cannot_be_counted() -> None:
    stream, batches = await given(40)
    await damage(stream, batches[0])
    await stream.store.delete(batches[39].location)
    consumer = await Consumer.open(stream, gc=False, on_bad_batch="dead_letter")
    first, second = await some_of(consumer, 2)
    assert first.lost is not None
    assert (second.lost, second.entries, second.first_lsn) == (None, [b"1"], 2)
    assert [letter.sequence for letter in await list_dead_letters(stream)] == [0]


@virtual
async def test_whoever_looks_sees_all_that_stands_before_an_uncountable_batch() -> None:
    stream, batches = await given(5)
    await stream.store.delete(batches[3].location)
    state = await stream.queue_reader(0).state()
    assert (state.next_sequence, state.next_lsn, state.uncounted_sequence) == (5, 4, 3)
    assert state.pending_bytes == sum(batch.size_bytes for batch in batches[:3])
    assert (await lag(stream)).batches == 5
    assert await stream.queue_reader(0).sequence_at_lsn(3) == 2
    assert await stream.queue_reader(0).sequence_at_lsn(4) == 3
    with pytest.raises(Uncounted):
        await stream.queue_reader(0).sequence_at_lsn(5)
    assert await at_time(stream.queue_reader(0), batches[0].max_ms) == 0
    with pytest.raises(Uncounted):
        await at_time(stream.queue_reader(0), batches[4].max_ms + 1)


@virtual
async def test_a_reading_meets_an_uncountable_batch_in_its_turn() -> None:
    stream, batches = await given(5)
    await stream.store.delete(batches[3].location)
    async with read(stream, end=4, columns=["_lsn"]) as reader:
        assert [batch.to_pydict() async for batch in reader] == [
            {"_lsn": [lsn]} for lsn in (1, 2, 3)
        ]
    async with read(stream, columns=["_lsn"]) as reader:
        for _ in range(3):
            assert await reader.next_batch() is not None
        with pytest.raises(Uncounted):
            await reader.next_batch()
    async with read(stream, on_bad_batch="skip", columns=["_lsn"]) as reader:
        assert len([batch async for batch in reader]) == 3
        assert [lost.first_lsn for lost in reader.lost] == [4]


@virtual
async def test_a_follower_reads_up_to_an_uncountable_batch_and_on_once_it_is_given_up() -> None:
    stream, batches = await given(5)
    await stream.store.delete(batches[3].location)
    follower = await Follower.open(stream, group="audit", on_bad_batch="dead_letter")
    for sequence in range(3):
        found = await follower.next_batch()
        assert found is not None
        await follower.commit(sequence)
    assert (await follower.lag()).batches == 2
    with pytest.raises(Uncounted):
        await follower.next_batch()
    owner = await Consumer.open(stream, gc=False, on_bad_batch="dead_letter")
    assert len(await some_of(owner, 5)) == 5
    lost, last = await follower.next_batch(), await follower.next_batch()
    assert lost is not None
    assert last is not None
    assert (lost.lost is not None, last.entries, last.first_lsn) == (True, [b"4"], 4)


@virtual
async def test_resuming_past_an_uncountable_batch_gives_it_up_or_fences_nobody() -> None:
    stream, batches = await given(5)
    before = await Consumer.open(stream, gc=False)
    await stream.store.delete(batches[2].location)
    with pytest.raises(Uncounted):
        await Consumer.open(stream, gc=False, last_acked_sequence=3)
    await before.flush()
    after = await Consumer.open(stream, gc=False, last_acked_sequence=3, on_bad_batch="dead_letter")
    assert [letter.sequence for letter in await list_dead_letters(stream)] == [2]
    assert after.last_acked_sequence == 3
    (last,) = await some_of(after, 1)
    assert (last.sequence, last.first_lsn, last.entries) == (4, 4, [b"4"])
    await after.ack(4)
    await after.close()


@virtual
async def test_a_batch_lost_once_it_was_counted_keeps_its_lsns_over_a_restart() -> None:
    stream, batches = await given(3)
    await damage(stream, batches[1])
    before = await Consumer.open(stream, gc=False, on_bad_batch="dead_letter")
    _, lost, last = await some_of(before, 3)
    assert lost.lost is not None
    assert (lost.lost.first_lsn, lost.lost.last_lsn, last.first_lsn) == (2, 2, 3)
    await stream.store.delete(batches[1].location)

    after = await Consumer.open(stream, gc=False, on_bad_batch="dead_letter")
    _, lost_again, last_again = await some_of(after, 3)
    assert lost_again.lost == lost.lost
    assert (last_again.first_lsn, last_again.entries) == (3, [b"2"])
    await after.ack_through(2)
    assert [one.first_lsn for one in await stream.queue_reader(0).after(None, 3)] == [1, 2, 3]
    assert (await stream.queue_reader(0).state()).next_lsn == 4


@virtual
async def test_a_letter_stays_true_of_its_batch_when_one_before_it_is_given_up_later() -> None:
    stream, batches = await given(3)
    await damage(stream, batches[1])
    before = await Consumer.open(stream, gc=False, on_bad_batch="dead_letter")
    assert [batch.lost is not None for batch in await some_of(before, 2)] == [False, True]
    await stream.store.delete(batches[0].location)

    after = await Consumer.open(stream, gc=False, on_bad_batch="dead_letter")
    gone, bad, last = await some_of(after, 3)
    assert (gone.lost is not None, len(gone)) == (True, 0)
    assert bad.lost is not None
    assert (bad.lost.first_lsn, bad.lost.last_lsn, last.first_lsn) == (1, 1, 2)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("01 00000000 0100", id="compressed-and-no-frame"),
        pytest.param("28b52ffd00 01 00000000 0100", id="half-a-frame"),
        pytest.param("78 00 00000000 0100", id="a-byte-of-nothing"),
    ],
)
@virtual
async def test_an_empty_batch_that_is_damaged_is_not_delivered(data: str) -> None:
    stream, batches = await given(3)
    await stream.store.put(batches[1].location, bytes.fromhex(data))
    consumer = await Consumer.open(stream, gc=False)
    (first,) = await some_of(consumer, 1)
    assert first.entries == [b"0"]
    with pytest.raises(UnreadableBatch, match="batch 1"):
        await consumer.next_batch()
    passing = await Consumer.open(stream, gc=False, on_bad_batch="dead_letter")
    found = await some_of(passing, 3)
    assert [batch.entries for batch in found] == [[b"0"], [], [b"2"]]
    assert [letter.sequence for letter in await list_dead_letters(stream)] == [1]


@virtual
async def test_an_empty_batch_that_cannot_be_read_is_not_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only one that is gone is: it was counted while it was there."""
    stream, (batch,) = await given(1)

    async def damaged(*_: object, **__: object) -> None:
        raise Corrupt("the object is not what was stored")

    monkeypatch.setattr(stream.store, "get", damaged)
    with pytest.raises(UnreadableBatch, match="not what was stored"):
        await FetchHandle.of(stream, 0).fetch(structs.replace(batch, rows=0))


@pytest.mark.parametrize("data", ["00 00000000 0100", "28b52ffd2000010000 01 00000000 0100"])
@virtual
async def test_an_empty_batch_is_delivered_also_once_its_object_is_gone(data: str) -> None:
    stream, batches = await given(3)
    await stream.store.put(batches[1].location, bytes.fromhex(data))
    consumer = await Consumer.open(stream, gc=False)
    assert [batch.entries for batch in await some_of(consumer, 3)] == [[b"0"], [], [b"2"]]
    await consumer.ack_through(2)
    # The collector of another implementation knows no retention.
    await stream.store.delete(batches[1].location)
    follower = await Follower.open(stream, group="f")
    assert [
        batch.entries for batch in [await follower.next_batch() for _ in range(3)] if batch
    ] == [
        [b"0"],
        [],
        [b"2"],
    ]
