"""The delivery timeout: what is dropped, what stays in doubt, and what may be resumed."""

from __future__ import annotations

import pytest

from headwater.buffer.producer import Producer
from headwater.core import runtime
from headwater.core.errors import Denied, Fenced, OutcomeUnknown, Refused, Unavailable
from tests.buffer.producer.fakes import Step, fails_after, fake_stream, hangs, takes
from tests.buffer.producer.opened import DOWN, LOST, one_by_one, opened
from tests.store.scripted import fails, lands_then, virtual

# The delivery timeout


@virtual
async def test_what_was_never_tried_is_dropped_at_the_timeout_and_leaves_no_gap() -> None:
    stream = fake_stream()
    queue = stream.queues[0]
    queue.next_upload(hangs(), takes(0.1))
    async with await opened(stream, delivery_timeout_ms=5_000, max_in_flight=2) as producer:
        stuck, fine = await one_by_one(producer, b"a", b"b")
        with pytest.raises(Unavailable, match=r"1 records were not accepted within 5,000 ms"):
            await stuck
        assert (await fine).sequence == 0
        assert producer._accumulator.held_bytes == 0
    assert queue.values() == [b"b"]


@virtual
async def test_the_timeout_counts_from_the_first_record() -> None:
    stream = fake_stream()
    stream.queues[0].next_upload(hangs())
    started_s = runtime.monotonic_s()
    producer = await Producer(stream, linger_ms=3_000, delivery_timeout_ms=5_000).open()
    handle = await producer.produce([b"a"])
    with pytest.raises(Unavailable):
        await handle
    assert runtime.monotonic_s() - started_s == pytest.approx(5, abs=0.1)
    await producer.close()


@pytest.mark.parametrize("trouble", [fails(DOWN), fails(LOST), lands_then(LOST)])
@virtual
async def test_an_unknown_outcome_is_said_to_be_unknown_and_settled_before_anything_else(
    trouble: Step,
) -> None:
    stream = fake_stream()
    queue = stream.queues[0]
    queue.always["append"] = trouble
    producer = await opened(stream, delivery_timeout_ms=5_000)
    (tried,) = await one_by_one(producer, b"a")
    await runtime.sleep(4)
    with pytest.raises(OutcomeUnknown, match="still being tried"):
        await tried
    queue.next_upload(hangs())
    (waiting,) = await one_by_one(producer, b"b")
    with pytest.raises(Unavailable, match="dropped"):
        await waiting
    assert producer._accumulator.held_calls == 1, "what may still be tried is still held"
    queue.always["append"] = None
    (later,) = await one_by_one(producer, b"c")
    assert (await later).sequence == 1
    assert queue.values() == [b"a", b"c"]
    assert [part.sequence for part in tried.accepted()] == [0], "it landed after all"
    with pytest.raises(OutcomeUnknown):
        await tried  # and what was said once is said again
    await producer.close()


@virtual
async def test_closing_ends_although_an_outcome_stays_unknown() -> None:
    stream = fake_stream()
    queue = stream.queues[0]
    queue.always["append"] = hangs()
    producer = await opened(stream, delivery_timeout_ms=5_000)
    await producer.produce([b"a"])
    with pytest.raises(OutcomeUnknown):
        await producer.close()
    assert queue.closed == 1


@virtual
async def test_nothing_in_doubt_is_said_to_be_sent_until_it_has_landed() -> None:
    stream = fake_stream()
    queue = stream.queues[0]
    queue.always["append"] = fails(LOST)
    producer = await opened(stream, delivery_timeout_ms=5_000)
    await producer.produce([b"a"])
    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match="still being tried"):
            await producer.flush()
    queue.always["append"] = None
    await runtime.sleep(60)
    await producer.flush()
    assert queue.values() == [b"a"]
    await producer.close()


@virtual
async def test_what_was_in_doubt_and_landed_while_a_flush_waited_is_no_error_of_the_flush() -> None:
    stream = fake_stream()
    queue = stream.queues[0]
    queue.always["append"] = fails(LOST)
    producer = await opened(stream, delivery_timeout_ms=60_000)
    doubted = await producer.produce([b"a"])
    await runtime.sleep(50)
    await producer.produce([b"b"])
    flushing = runtime.spawn(producer.flush(), name="flush")
    await runtime.sleep(11)
    assert doubted.is_done
    assert not doubted.accepted()
    queue.always["append"] = None
    await flushing
    assert queue.values() == [b"a", b"b"]
    await producer.close()


@virtual
async def test_closing_tells_of_what_it_leaves_in_doubt_though_it_was_told_before() -> None:
    stream = fake_stream()
    stream.queues[0].always["append"] = fails(LOST)
    producer = await opened(stream, delivery_timeout_ms=5_000)
    handle = await producer.produce([b"a", b"b"])
    for waits in (producer.flush(), handle.wait()):
        with pytest.raises(OutcomeUnknown):
            await waits
    with pytest.raises(OutcomeUnknown) as told:
        await producer.close()
    assert told.value.__notes__ == ["2 records in doubt are not tried any more: it is closed"]


@virtual
async def test_what_was_in_doubt_when_a_successor_came_is_told_of_again() -> None:
    stream = fake_stream()
    queue = stream.queues[0]
    queue.always["append"] = fails(LOST)
    producer = await opened(stream, delivery_timeout_ms=5_000)
    await producer.produce([b"a"])
    with pytest.raises(OutcomeUnknown):
        await producer.flush()
    queue.always["append"] = fails(Fenced("a successor took over"))
    await runtime.sleep(60)
    with pytest.raises(OutcomeUnknown):
        await producer.close()


# What may be resumed


@pytest.mark.parametrize("trouble", [hangs(), fails_after(1, Denied("no"))])
@virtual
async def test_of_a_producer_with_an_id_nothing_is_accepted_past_what_was_dropped(
    trouble: Step,
) -> None:
    stream = fake_stream()
    queue = stream.queues[0]
    producer = await opened(stream, producer_id="source", delivery_timeout_ms=5_000)
    (before,) = await one_by_one(producer, b"a")
    await before
    queue.next_upload(takes(4), trouble, takes(0.1))
    ahead, dropped, behind = await one_by_one(producer, b"b", b"c", b"d")
    with pytest.raises((Unavailable, Denied)):
        await dropped
    with pytest.raises(Unavailable, match="records before these were dropped"):
        await behind
    with pytest.raises(Refused, match="records were dropped: open it again under its id, 'source'"):
        await producer.produce([b"e"])
    assert (await ahead).sequence == 1, "what came before it is seen through"
    await producer.close()
    assert queue.values() == [b"a", b"b"]


@virtual
async def test_what_was_being_gathered_when_records_were_dropped_is_not_accepted_either() -> None:
    stream = fake_stream()
    queue = stream.queues[0]
    queue.next_upload(fails_after(5, Denied("no")))
    producer = await opened(stream, producer_id="source", linger_ms=1_000)
    dropped = await producer.produce([b"a"])
    await runtime.sleep(5.5)
    behind = await producer.produce([b"b"])
    with pytest.raises(Denied):
        await dropped
    with pytest.raises(Unavailable, match="records before these were dropped"):
        await behind
    await producer.close()
    assert queue.values() == []


@virtual
async def test_other_partitions_see_through_what_they_have_when_records_are_dropped() -> None:
    stream = fake_stream(partitions=2)
    stream.queues[0].next_upload(fails_after(1, Denied("no")))
    stream.queues[1].next_upload(takes(2))
    producer = await opened(stream, producer_id="source", linger_ms=60_000)
    dropped = await producer.produce([b"a"], partition=0)
    elsewhere = await producer.produce([b"b"], partition=1)
    with pytest.raises(Denied):
        await producer.flush()
    with pytest.raises(Refused, match="dropped"):
        await producer.produce([b"c"], partition=1)
    assert not dropped.accepted()
    assert (await elsewhere).sequence == 0
    await producer.close()
    assert [queue.values() for queue in stream.queues] == [[], [b"b"]]


@virtual
async def test_what_was_attempted_when_others_were_dropped_is_still_being_tried() -> None:
    stream = fake_stream()
    queue = stream.queues[0]
    queue.always["append"] = fails(LOST)
    producer = await opened(stream, producer_id="source", delivery_timeout_ms=5_000)
    (tried,) = await one_by_one(producer, b"a")
    queue.next_upload(fails_after(1, Denied("no")))
    dropped, behind = await one_by_one(producer, b"b", b"c")
    for handle, error in ((dropped, Denied), (behind, Unavailable), (tried, OutcomeUnknown)):
        with pytest.raises(error):
            await handle
    queue.always["append"] = None
    await runtime.sleep(10)
    assert [part.sequence for part in tried.accepted()] == [0]
    await producer.close()
    assert queue.values() == [b"a"]


@virtual
async def test_who_waits_for_room_learns_that_records_were_dropped() -> None:
    stream = fake_stream()
    stream.queues[0].next_upload(takes(1), fails_after(0.5, Denied("no")))
    producer = await opened(stream, producer_id="source", buffer_calls=2)
    await one_by_one(producer, b"a", b"b")
    with pytest.raises(Refused, match="open it again under its id"):
        await producer.produce([b"c"])
    with pytest.raises(Denied):
        await producer.close()
    assert stream.queues[0].values() == [b"a"]
