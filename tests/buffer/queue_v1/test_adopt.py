"""What another implementation did to the queue, or an operator to its objects, is noticed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headwater.buffer.queue.contract import Descriptor
from headwater.buffer.queue.retention import Retention
from headwater.buffer.queue.v1.manifest_format import Manifest, encode_manifest
from headwater.buffer.queue.v1.side_object import Adopted, ConsumedElsewhere, adopt_v1_queue
from headwater.core import limits
from headwater.core.errors import (
    Corrupt,
    Fenced,
    NotSupported,
    OutcomeUnknown,
    RolledBack,
    Unavailable,
)
from headwater.core.retry import RetryPolicy
from headwater.store import Store
from tests.buffer.queue_v1.given import (
    MANIFEST,
    PREFIX,
    QUEUE,
    SIDE,
    OtherConsumer,
    OtherProducer,
    Queue,
    memory,
    produce,
    scripted,
    then,
)
from tests.store.scripted import Apply, after, fails, virtual

ROWS_MAX = limits.V1_BATCH_ROWS_MAX


async def fails_nothing(apply: Apply) -> object:
    return await apply()


async def three(queue: Queue | None = None) -> Queue:
    queue = await (queue or memory()).made()
    appender = queue.appender()
    for values in ((b"a", b"b"), (b"c",), (b"d",)):
        await produce(appender, *values)
    return queue


async def taken_by_other(queue: Queue, through: int) -> None:
    consumer = OtherConsumer(queue)
    await consumer.open()
    await consumer.dequeue(through)


def places(batches: list[Descriptor]) -> list[tuple[int, int, int]]:
    return [(batch.sequence, batch.first_lsn, batch.rows) for batch in batches]


async def batch_keys(queue: Queue) -> list[str]:
    return [key for key in await queue.keys() if key.endswith(".batch")]


def doors(queue: Queue) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: queue.queue_consumer().open("g"),
        lambda: queue.queue_reader().state(),
        lambda: queue.queue_reader().after(None, 1),
        lambda: queue.collector().collect(Retention(0)),
    ]


@virtual
async def test_what_another_consumer_dequeued_has_no_lsns_and_opening_says_so() -> None:
    queue = await three()
    await taken_by_other(queue, 0)
    before = await queue.keys()
    for call in doors(queue):
        with pytest.raises(
            ConsumedElsewhere, match=r"sequences 0 to 0 .*stream adopt URL orders --partition 0"
        ):
            await call()
    assert await queue.keys() == before
    assert (await queue.side()).claim == ""


@virtual
async def test_it_is_noticed_also_when_everything_was_dequeued() -> None:
    queue = await three()
    await taken_by_other(queue, 2)
    for call in doors(queue):
        with pytest.raises(ConsumedElsewhere, match="sequences 0 to 2"):
            await call()


@pytest.mark.parametrize("through", [0, 2])
@virtual
async def test_without_a_side_object_a_queue_that_was_dequeued_from_is_refused(
    through: int,
) -> None:
    queue = await three()
    await taken_by_other(queue, through)
    await queue.store.delete(SIDE)
    with pytest.raises(ConsumedElsewhere, match="side object"):
        await queue.queue_consumer().open("g")
    with pytest.raises(ConsumedElsewhere, match="side object"):
        await queue.made()


@virtual
async def test_a_consumer_whose_entries_vanish_under_its_epoch_is_told() -> None:
    queue = await three()
    queue_consumer = await queue.opened()
    manifest = await queue.manifest()
    await queue.store.put(MANIFEST, encode_manifest(manifest.dequeued(0)))
    for call in (
        queue_consumer.after(None, 1),
        queue_consumer.dequeue(2),
        queue_consumer.check_fence(),
    ):
        with pytest.raises(ConsumedElsewhere):
            await call


@virtual
async def test_adopting_begins_at_what_is_pending_and_goes_on_with_the_lsns() -> None:
    queue = await three()
    first = await queue.opened()
    await first.after(None, 1)
    await first.dequeue(0)
    await taken_by_other(queue, 1)
    lsn = 3 + 2 * ROWS_MAX
    adopted = await adopt_v1_queue(queue.store, PREFIX, QUEUE)
    assert adopted == Adopted(2, lsn, left_out=1, readable=1)
    with pytest.raises(Fenced):
        await first.check_fence()
    queue_consumer = queue.queue_consumer()
    assert await queue_consumer.open("g") == 1
    (batch,) = await queue_consumer.after(1, 9)
    assert (batch.sequence, batch.first_lsn) == (2, lsn)


@virtual
async def test_no_lsn_that_was_told_before_an_adoption_means_another_record_after_it() -> None:
    queue = await memory().made()
    appender, told = queue.appender(), {}
    for number in range(5):
        placed = await produce(appender, b"%d" % number)
        told[placed.first_lsn] = b"%d" % number
    await (await queue.opened()).dequeue(0)
    await taken_by_other(queue, 2)
    # It counts by itself, and has not heard of the other consumer.
    told[(await produce(appender, b"5")).first_lsn] = b"5"
    await adopt_v1_queue(queue.store, PREFIX, QUEUE)
    told[(await produce(appender, b"6")).first_lsn] = b"6"
    told[(await produce(queue.appender(), b"7")).first_lsn] = b"7"
    assert len(told) == 8
    queue_consumer = queue.queue_consumer()
    batches = await queue_consumer.after(await queue_consumer.open("g"), 9)
    records = await queue.records(batches)
    assert records == [b"3", b"4", b"5", b"6", b"7"]
    for batch, record in zip(batches, records, strict=True):
        assert told.get(batch.first_lsn, record) == record
    assert [batch.first_lsn for batch in batches[-2:]] == sorted(told)[-2:]


@virtual
async def test_adopting_fences_the_other_consumer() -> None:
    queue = await three()
    consumer = OtherConsumer(queue)
    await consumer.open()
    await consumer.dequeue(0)
    await adopt_v1_queue(queue.store, PREFIX, QUEUE)
    with pytest.raises(Fenced):
        await consumer.dequeue(1)
    assert [entry.sequence for entry in (await queue.manifest()).entries] == [1, 2]


@virtual
async def test_what_the_other_consumer_takes_until_it_is_fenced_is_left_out() -> None:
    backend, queue = scripted()
    await three(queue)
    await (await queue.opened()).dequeue(0)
    consumer = OtherConsumer(queue)
    await consumer.open()
    await consumer.dequeue(1)
    # The claim comes first; the other one takes on, and the epoch's write is refused.
    backend.next("put_if_unchanged", fails_nothing, after(then(consumer.dequeue, 2)))
    adopted = await adopt_v1_queue(Store(backend), PREFIX, QUEUE)
    assert (adopted.sequence, adopted.left_out, adopted.readable) == (3, 2, 1)
    assert await (await queue.opened()).after(2, 9) == []
    assert places(await queue.queue_reader().after(None, 9))[0] == (0, 1, 2)


@virtual
async def test_an_adoption_that_stops_half_way_is_made_again() -> None:
    backend, queue = scripted()
    await three(queue)
    await (await queue.opened()).dequeue(0)
    await taken_by_other(queue, 1)
    down = Unavailable("500 InternalError")
    for survives in range(3):
        steps = [fails_nothing] * survives + [fails(down)] * 500
        backend.next("put_if_unchanged", *steps)
        with pytest.raises((OutcomeUnknown, Unavailable)):
            await adopt_v1_queue(Store(backend, policy=RetryPolicy(attempts=1)), PREFIX, QUEUE)
        backend._steps.clear()
        with pytest.raises(ConsumedElsewhere):
            await queue.queue_consumer().open("g")
    assert (await adopt_v1_queue(queue.store, PREFIX, QUEUE)).sequence == 2
    assert await queue.records(await queue.queue_reader().after(None, 9)) == [b"a", b"b", b"d"]


@virtual
async def test_what_was_acknowledged_before_stays_readable_across_what_another_took() -> None:
    queue = await three()
    await (await queue.opened()).dequeue(0)
    await taken_by_other(queue, 1)
    await adopt_v1_queue(queue.store, PREFIX, QUEUE)
    queue_reader = queue.queue_reader()
    batches = await queue_reader.after(None, 9)
    lsn = 3 + 2 * ROWS_MAX
    assert places(batches) == [(0, 1, 2), (1, lsn, 0), (2, lsn, 1)]
    assert await queue.records(batches) == [b"a", b"b", b"d"]
    assert [batch.duplicate for batch in batches] == [False, True, False]
    assert [await queue_reader.sequence_at_lsn(at) for at in (1, 2, lsn)] == [0, 0, 2]
    # From an LSN that nobody will ever have it goes on with what came next.
    assert [await queue_reader.sequence_at_lsn(at) for at in (3, lsn - 1)] == [2, 2]
    await (await queue.opened()).dequeue(2)
    assert [await queue_reader.sequence_at_lsn(at) for at in (2, 3, lsn, lsn + 1)] == [
        0,
        2,
        2,
        None,
    ]
    state = await queue_reader.state()
    assert (state.floor_sequence, state.floor_lsn, state.pending) == (0, 1, 0)
    again = queue.queue_consumer()
    assert await again.open("g", last_acked_sequence=-1) == -1
    assert await queue.records(await again.after(-1, 9)) == [b"a", b"b", b"d"]


@virtual
async def test_what_was_retained_when_a_queue_was_adopted_goes_with_its_retention() -> None:
    queue = await three()
    await (await queue.opened()).dequeue(0)
    await taken_by_other(queue, 1)
    before = await batch_keys(queue)
    await adopt_v1_queue(queue.store, PREFIX, QUEUE)
    await queue.collector().collect(Retention(None), full=True)
    assert await batch_keys(queue) == before
    done = await queue.collector().collect(Retention(0), full=True)
    assert (done.batches_expired, done.batches_left, done.floor_sequence) == (1, 0, 2)
    # What the other one took is its own to delete.
    assert await batch_keys(queue) == before[1:]
    assert not [key for key in await queue.keys() if "/acked/" in key]


@virtual
async def test_behind_too_much_that_another_took_nothing_stays_and_the_collector_deletes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "V1_TAKEN_MAX", 1)
    monkeypatch.setattr(limits, "V1_SEGMENT_ENTRIES", 1)
    queue = await three()
    await (await queue.opened()).dequeue(0)
    await taken_by_other(queue, 2)
    before = await batch_keys(queue)
    lsn = 3 + 2 * ROWS_MAX
    adopted = await adopt_v1_queue(queue.store, PREFIX, QUEUE)
    assert adopted == Adopted(3, lsn, left_out=2, given_up=1)
    state = await queue.queue_reader().state()
    assert (state.floor_sequence, state.floor_lsn) == (3, lsn)
    done = await queue.collector().collect(Retention(None))
    assert done.batches_expired == 1
    assert await batch_keys(queue) == before[1:]
    assert (await queue.side()).swept_sequence == 3


@virtual
async def test_a_batch_that_comes_again_is_known_across_what_another_took() -> None:
    queue = memory()
    other = OtherProducer(queue)
    for number in range(3):
        await other.produce(f"o/{number}", b"a", b"b")
    await queue.made()
    await (await queue.opened()).dequeue(0)
    await taken_by_other(queue, 1)
    await adopt_v1_queue(queue.store, PREFIX, QUEUE)
    await other.enqueue("o/0")
    batches = await queue.queue_reader().after(1, 9)
    lsn = 3 + 2 * ROWS_MAX
    assert places(batches) == [(2, lsn, 2), (3, lsn + 2, 0)]


@virtual
async def test_what_a_crashed_consumer_wrote_of_entries_that_another_took_counts_for_nothing() -> (
    None
):
    queue = await three()
    first = await queue.opened()
    await first.dequeue(0)
    side = await queue.side()
    crashing = queue.queue_consumer()
    await crashing.open("g")
    await crashing._queue.acked.discard_from(1)  # it gave something up before
    async with crashing._queue.lock:
        found = await crashing._fenced_read()
        crashing._queue.ledger.follow(side)
        await crashing._queue.ledger.extend(found, 2)
        await crashing._queue.acked.write(found, 1, [crashing._queue.ledger[1]], 0)
    manifest = await queue.manifest()
    # Under the very epoch of the one that crashed.
    await queue.store.put(MANIFEST, encode_manifest(manifest.dequeued(1)))
    await adopt_v1_queue(queue.store, PREFIX, QUEUE)
    lsn = 3 + 2 * ROWS_MAX
    assert places(await queue.queue_reader().after(None, 9)) == [
        (0, 1, 2),
        (1, lsn, 0),
        (2, lsn, 1),
    ]


@virtual
async def test_adopting_a_queue_that_headwater_never_saw() -> None:
    queue = memory()
    other = OtherProducer(queue)
    for number in range(3):
        await other.produce(f"o/{number}", b"a", b"b")
    await taken_by_other(queue, 1)
    assert await adopt_v1_queue(queue.store, PREFIX, QUEUE) == Adopted(2, 1, left_out=2)
    assert await adopt_v1_queue(queue.store, PREFIX, QUEUE) == Adopted(2, 1)
    queue_consumer = await queue.opened()
    (batch,) = await queue_consumer.after(1, 9)
    assert (batch.sequence, batch.first_lsn) == (2, 1)


@virtual
async def test_adopting_what_nobody_else_consumed_changes_nothing() -> None:
    queue = await three()
    queue_consumer = await queue.opened()
    await queue_consumer.dequeue(0)
    before = await queue.side()
    assert await adopt_v1_queue(queue.store, PREFIX, QUEUE) == Adopted(1, 3)
    assert await queue.side() == before
    await queue_consumer.check_fence()


@virtual
async def test_a_manifest_that_was_deleted_is_not_an_empty_queue() -> None:
    queue = await three()
    await queue.store.delete(MANIFEST)
    for call in (*doors(queue), queue.made):
        with pytest.raises(RolledBack, match="gone"):
            await call()
    assert MANIFEST not in await queue.keys()


@virtual
async def test_a_manifest_that_another_producer_made_again_is_not_taken_for_the_old_one() -> None:
    queue = await three()
    queue_consumer = await queue.opened()
    await queue_consumer.after(None, 9)
    await queue_consumer.dequeue(1)
    await queue.store.delete(MANIFEST)
    await OtherProducer(queue).produce("o/1", b"x")
    for call in (*doors(queue), queue.made):
        with pytest.raises(RolledBack, match="next sequence is 1, and was 2"):
            await call()
    with pytest.raises(RolledBack):
        await queue_consumer.after(1, 1)


@virtual
async def test_an_older_epoch_tells_of_an_older_manifest() -> None:
    queue = await three()
    older = (await queue.store.get(MANIFEST)).data
    queue_consumer = await queue.opened()
    await queue.store.put(MANIFEST, older)
    for call in doors(queue):
        with pytest.raises(RolledBack, match="epoch is 0, and was 1"):
            await call()
    with pytest.raises(RolledBack, match="epoch went back from 1 to 0"):
        await queue_consumer.check_fence()


@pytest.mark.parametrize(("data", "error"), [(b"x", Corrupt), (bytes(20) + b"\2\0", NotSupported)])
@virtual
async def test_a_manifest_that_does_not_parse_is_named(data: bytes, error: type[Exception]) -> None:
    queue = await three()
    await queue.store.put(MANIFEST, data)
    for call in doors(queue):
        with pytest.raises(error, match=MANIFEST):
            await call()


@virtual
async def test_what_ours_wrote_the_other_ones_read_on() -> None:
    queue = await three()
    queue_consumer = await queue.opened()
    await queue_consumer.after(None, 9)
    await queue_consumer.dequeue(0)
    manifest = await queue.manifest()
    assert (manifest.epoch, manifest.next_sequence) == (1, 3)
    assert [entry.sequence for entry in manifest.entries] == [1, 2]
    expected = encode_manifest(Manifest(tuple(manifest.entries), 3, 1))
    assert (await queue.store.get(MANIFEST)).data == expected
    await taken_by_other(queue, 2)
    assert (await queue.manifest()).entries == ()
    names = [key.rpartition("/")[2] for key in await queue.keys() if "/headwater/" in key]
    assert names
    assert not any(name.endswith(".batch") for name in names)
