"""A producer id has one life at a time: it resumes exactly, and whoever was before is stopped."""

from __future__ import annotations

import pytest

from headwater.buffer.queue.contract import AppendedBatch, BelowFloor, ProducerState
from headwater.buffer.queue.native.appender import REFRESH_APPENDS, REFRESH_S
from headwater.buffer.queue.native.producers import check_producer_id, shard_name
from headwater.buffer.queue.retention import Retention
from headwater.core import limits, runtime
from headwater.core.errors import Fenced, OutcomeUnknown, Refused, RolledBack, Unavailable
from tests.buffer.native.given import Queue, batch
from tests.buffer.native.watched import WRITES, client, consume_and_collect
from tests.store.scripted import LOST, after, fails, virtual

DOWN = Unavailable("500 InternalError")


@virtual
async def test_a_first_life_begins_at_nothing() -> None:
    queue = await Queue().create()
    assert await queue.appender().open() == ProducerState(0, None, is_known=False)
    assert await queue.appender().open() == ProducerState(0, None)


@pytest.mark.parametrize("collected", [False, True])
@pytest.mark.parametrize("closed", [False, True])
@virtual
async def test_a_successor_resumes_exactly(closed: bool, collected: bool) -> None:
    queue = await Queue().create()
    appender, other = await queue.opened(), await queue.opened("other")
    for sequence in range(1, 6):
        await appender.append([batch(sequence, metadata=b"offset %d" % sequence)])
        await other.append([batch(sequence)])
    if closed:
        await appender.close()
    if collected:
        await consume_and_collect(queue)
    successor = queue.appender()
    assert await successor.open() == ProducerState(5, b"offset 5", 8)
    assert await successor.append([batch(6)]) == [AppendedBatch(10, 11)]


@virtual
async def test_a_producer_learns_what_its_predecessor_had_accepted() -> None:
    queue = await Queue().create()
    first = queue.appender()
    assert await first.open() == ProducerState(0, None, is_known=False)
    await first.append([batch(1, metadata=b"one"), batch(2, metadata=b"two")])
    second = queue.appender()
    assert await second.open() == ProducerState(2, b"two", 1)
    await second.append([batch(3)])
    assert await queue.appender().open() == ProducerState(3, None, 2)
    assert await queue.appender("another").open() == ProducerState(0, None, is_known=False)


@virtual
async def test_a_successor_resumes_from_a_chunk_after_the_mark() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    await appender.append([batch(1, metadata=b"one")])
    await appender.close()
    appender = await queue.opened()
    await appender.append([batch(2, metadata=b"two")])
    await queue.fill(40, "other")
    assert await queue.appender().open() == ProducerState(2, b"two", 1)


@virtual
async def test_the_mark_is_renewed_after_many_appends_or_a_while() -> None:
    queue = await Queue().create()
    backend, store = client(queue)
    appender = await queue.opened(store=store)
    shard = f"producers/{shard_name('p')}.json"
    await appender.append([batch(1)])
    await runtime.sleep(REFRESH_S)
    backend.requests()
    await appender.append([batch(2)])
    await runtime.sleep(1.0)
    assert ("put_if_unchanged", shard) in backend.requests()
    await appender.append([batch(n) for n in range(3, 3 + REFRESH_APPENDS)])
    await runtime.sleep(1.0)
    assert ("put_if_unchanged", shard) in backend.requests()
    await appender.append([batch(3 + REFRESH_APPENDS)])
    await runtime.sleep(1.0)
    assert ("put_if_unchanged", shard) not in backend.requests()


@virtual
async def test_a_mark_that_cannot_be_renewed_fails_nothing() -> None:
    queue = await Queue().create()
    backend, store = client(queue)
    appender = await queue.opened(store=store)
    await runtime.sleep(REFRESH_S)
    for _ in range(2):
        backend.on("get", "producers/", fails(DOWN))
        backend.on("put_if_unchanged", "producers/", fails(DOWN))
    await appender.append([batch(1)])
    await runtime.sleep(1.0)
    assert await appender.append([batch(2)]) == [AppendedBatch(1, 2)]
    await appender.close()
    assert (await queue.appender().open()).producer_sequence == 2


@virtual
async def test_a_predecessor_is_fenced_and_lands_nothing() -> None:
    queue = await Queue().create()
    predecessor = await queue.opened()
    await predecessor.append([batch(1)])
    successor = await queue.opened()
    with pytest.raises(Fenced, match="another producer with the id"):
        await predecessor.append([batch(2)])
    assert await successor.append([batch(2)]) == [AppendedBatch(1, 2)]
    with pytest.raises(Fenced):
        await predecessor.append([batch(2)])
    assert await queue.entries() == [("p", 1), ("p", 2)]


@virtual
async def test_a_predecessor_in_the_middle_of_a_write_is_fenced() -> None:
    queue = await Queue().create()
    backend, store = client(queue)
    predecessor = await queue.opened(store=store)
    await predecessor.append([batch(1)])
    successor = queue.appender()
    backend.on("put_if_unchanged", "chunks/", after(successor.open))
    with pytest.raises(Fenced):
        await predecessor.append([batch(2)])
    assert await queue.entries() == [("p", 1)]


@virtual
async def test_a_write_before_the_opening_counts_and_the_successor_knows_it() -> None:
    queue = await Queue().create()
    backend, store = client(queue)
    predecessor = await queue.opened()
    await predecessor.append([batch(1)])
    successor = queue.appender(store=store)
    # The record names the successor already; its opening is not yet in the queue.
    late = batch(2, metadata=b"late")
    backend.on("put_if_unchanged", "chunks/", after(lambda: predecessor.append([late])))
    assert await successor.open() == ProducerState(2, b"late", 1)


@virtual
async def test_a_predecessor_is_fenced_though_the_chunks_have_forgotten_the_opening() -> None:
    queue = await Queue().create()
    predecessor, bystander = await queue.opened(), await queue.opened("bystander")
    await predecessor.append([batch(1)])
    await bystander.append([batch(1)])
    await queue.opened()
    for _ in range(limits.CHUNK_OPENINGS + 2):
        await queue.opened("other")
    last = (await queue.chunks.last()).chunk
    assert all(one.producer == "other" for one in last.recent_openings)
    with pytest.raises(Fenced):
        await predecessor.append([batch(2)])
    # Others opened as often, and only the one whose id it was is stopped.
    assert await bystander.append([batch(2)]) == [AppendedBatch(2, 3)]


@virtual
async def test_a_fenced_producer_that_is_in_doubt_is_told_so() -> None:
    queue = await Queue().create()
    backend, store = client(queue)
    first = await queue.opened(store=store)
    await first.append([batch(1)])
    backend.on("put_if_unchanged", "chunks/", fails(LOST))
    with pytest.raises(OutcomeUnknown):
        await first.append([batch(2)])
    second = queue.appender()
    assert (await second.open()).producer_sequence == 1
    with pytest.raises(Fenced):
        await first.append([batch(2)])
    await second.append([batch(2)])
    assert await queue.entries() == [("p", 1), ("p", 2)]


@pytest.mark.parametrize("operation", WRITES)
@virtual
async def test_of_two_that_open_at_once_the_one_that_the_record_names_goes_on(
    operation: str,
) -> None:
    queue = await Queue().create()
    first, landed = await queue.opened(), 0
    if operation == "put_if_unchanged":
        await first.append([batch(1)])
        landed = 1
    backend, store = client(queue)
    slow, quick = queue.appender(store=store), queue.appender()
    # Its record is written; before its opening stands in the queue, somebody else opens.
    backend.on(operation, "chunks/", after(quick.open))
    with pytest.raises(Fenced):
        await slow.open()
    assert await quick.append([batch(landed + 1)]) == [AppendedBatch(landed, landed + 1)]


@virtual
async def test_an_upload_that_the_floor_has_passed_is_refused_until_it_has_another_id() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    await appender.append([batch(1)])
    old, kept = await queue.upload(appender, 2), batch(3)
    await runtime.sleep(1.0)
    await queue.collector().collect(Retention(None, grace_ms=0), full=True)
    with pytest.raises(BelowFloor) as refused:
        await appender.append([old, kept])
    assert refused.value.floor >= old.batch_id
    assert await queue.entries() == [("p", 1)]
    again = await queue.upload(appender, 2, batch_id=runtime.new_ulid(above=refused.value.floor))
    assert await appender.append([again, kept]) == [AppendedBatch(1, 2), AppendedBatch(2, 3)]
    found = (await queue.queue_reader().after(0, 1))[0]
    assert found.batch_id == again.batch_id
    assert (await queue.store.get(found.location)).data == again.batch_id.encode()


@virtual
async def test_what_rides_in_its_entry_is_never_below_the_floor() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    inline = batch(1)
    await queue.upload(appender, 1)
    await runtime.sleep(1.0)
    await queue.collector().collect(Retention(None, grace_ms=0), full=True)
    assert inline.batch_id <= (await queue.chunks.floors()).batch_floor
    assert await appender.append([inline]) == [AppendedBatch(0, 1)]


@virtual
async def test_a_queue_that_went_back_behind_a_producer_is_refused() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    await appender.append([batch(1)])
    before = await queue.chunk(1)
    await appender.append([batch(2)])
    await appender.close()
    await queue.put_chunks([before])
    with pytest.raises(RolledBack, match="went back"):
        await queue.appender().open()


@virtual
async def test_a_running_producer_notices_that_its_queue_went_back() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    await appender.append([batch(1)])
    before = await queue.chunk(1)
    await appender.append([batch(2)])
    await queue.put_chunks([before])
    with pytest.raises(RolledBack, match="went back"):
        await appender.append([batch(3)])


@pytest.mark.parametrize("wrong", ["", "x" * (limits.PRODUCER_ID_MAX_BYTES + 1)])
def test_an_id_that_cannot_be_is_refused(wrong: str) -> None:
    with pytest.raises(Refused, match="producer id"):
        check_producer_id(wrong)
