"""What becomes of records when the store does not answer, refuses, or answers too late."""

from __future__ import annotations

import asyncio

import pytest

from headwater.buffer.producer import Handle, Producer
from headwater.buffer.queue.contract import BelowFloor, Resumed
from headwater.core import runtime
from headwater.core.errors import (
    Bug,
    Contended,
    Corrupt,
    Denied,
    Fenced,
    HeadwaterError,
    NoSpace,
    OutcomeUnknown,
    Refused,
    Throttled,
    Unavailable,
)
from headwater.core.ids import ULID_MAX
from headwater.core.limits import KIB
from tests.buffer.producer.fakes import (
    Apply,
    FakeStream,
    Step,
    fails,
    fails_after,
    fake_stream,
    hangs,
    lands_partly,
    lands_then,
    takes,
)
from tests.store.scripted import virtual

DOWN = Unavailable("500 InternalError")
LOST = OutcomeUnknown("connection reset")


async def one_by_one(producer: Producer, *values: bytes) -> list[Handle]:
    """Each value in a batch of its own."""
    handles = []
    for value in values:
        handles.append(await producer.produce([value]))
        await runtime.sleep(0.001)
    return handles


async def opened(stream: FakeStream, **settings: object) -> Producer:
    return await Producer.open(stream, **{"linger_ms": 0, **settings})  # type: ignore[arg-type]


async def breaks_off(producer: Producer) -> None:
    async with producer:
        await producer.produce([b"a"])
        _ = 1 / 0


TROUBLES = [
    fails(DOWN),
    fails(LOST),
    fails(Contended("others won")),
    fails(Throttled("slow down")),
    fails(Denied("not today")),
    lands_then(LOST),
    lands_then(DOWN),
    lands_partly(1, DOWN),
]


@pytest.mark.parametrize("trouble", TROUBLES)
@virtual
async def test_an_append_that_fails_is_tried_again_and_lands_once(trouble: Step) -> None:
    stream = fake_stream()
    queue = stream.queues[0]
    queue.next_append(takes(1), trouble, trouble)
    async with await opened(stream) as producer:
        handles = await one_by_one(producer, b"a", b"b", b"c", b"d")
        assert [(await handle).sequence for handle in handles] == [0, 1, 2, 3]
    assert queue.values() == [b"a", b"b", b"c", b"d"]
    assert [entry.producer_sequence for entry in queue.entries] == [1, 2, 3, 4]


@pytest.mark.parametrize("trouble", [fails(DOWN), fails(LOST), lands_then(LOST)])
@virtual
async def test_an_upload_that_fails_is_tried_again_under_its_name(trouble: Step) -> None:
    stream = fake_stream()
    queue = stream.queues[0]
    queue.next_upload(trouble, trouble)
    async with await opened(stream) as producer:
        (handle,) = await one_by_one(producer, b"a")
        await handle
    assert len(queue.uploads) == 3
    assert len(set(queue.uploads)) == 1


@virtual
async def test_what_comes_later_joins_the_group_that_is_tried_again() -> None:
    stream = fake_stream()
    queue = stream.queues[0]
    queue.next_append(fails(DOWN), fails(DOWN))
    async with await opened(stream) as producer:
        await one_by_one(producer, b"a")
        await one_by_one(producer, b"b", b"c")
    assert queue.groups[0] == 1
    assert queue.groups[-1] == 3


@pytest.mark.parametrize("error", [Denied("no"), NoSpace("full"), ValueError("a defect")])
@virtual
async def test_a_refused_upload_fails_its_own_handles_and_no_others(error: Exception) -> None:
    stream = fake_stream()
    queue = stream.queues[0]
    queue.next_upload(takes(0.1), fails(error), takes(0.1))
    producer = await opened(stream)
    first, refused, third = await one_by_one(producer, b"a", b"b", b"c")
    with pytest.raises(type(error), match=str(error)):
        await refused
    assert ((await first).sequence, (await third).sequence) == (0, 1)
    assert [entry.producer_sequence for entry in queue.entries] == [1, 2], "its number is reused"
    assert queue.values() == [b"a", b"c"]
    await producer.close()


@virtual
async def test_a_failure_that_no_handle_told_is_told_by_flush() -> None:
    stream = fake_stream()
    stream.queues[0].next_upload(fails(Denied("no")), fails(Denied("never")))
    producer = await opened(stream)
    await one_by_one(producer, b"a", b"b", b"c")
    await runtime.sleep(1)
    with pytest.raises(Denied) as told:
        await producer.flush()
    assert "2 batches with 2 records failed" in str(told.value.__notes__)
    await producer.flush()  # told once
    await producer.close()


@virtual
async def test_a_failure_that_flush_waited_for_is_raised_and_close_closes_all_the_same() -> None:
    stream = fake_stream()
    queue = stream.queues[0]
    producer = await opened(stream)
    queue.next_upload(fails(Denied("no")))
    await producer.produce([b"a"])
    with pytest.raises(Denied):
        await producer.close()
    assert queue.closed == 1
    await producer.close()


@virtual
async def test_an_error_inside_the_block_is_the_one_that_is_raised() -> None:
    stream = fake_stream()
    stream.queues[0].next_upload(fails(Denied("no")))
    with pytest.raises(ZeroDivisionError) as raised:
        await breaks_off(await opened(stream))
    assert "closing the producer failed as well: no" in raised.value.__notes__[0]


@virtual
async def test_leaving_the_block_by_an_error_still_sends_what_was_produced() -> None:
    stream = fake_stream()
    with pytest.raises(ZeroDivisionError):
        await breaks_off(await opened(stream, linger_ms=60_000))
    assert stream.queues[0].values() == [b"a"]


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
    producer = await Producer.open(stream, linger_ms=3_000, delivery_timeout_ms=5_000)
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
async def test_what_was_in_doubt_and_landed_before_anybody_asked_is_no_error() -> None:
    stream = fake_stream()
    queue = stream.queues[0]
    queue.always["append"] = fails(LOST)
    producer = await opened(stream, delivery_timeout_ms=5_000)
    handle = await producer.produce([b"a"])
    await runtime.sleep(6)
    assert handle.is_done
    assert not handle.accepted()
    queue.always["append"] = None
    await runtime.sleep(60)
    assert handle.accepted()
    await producer.flush()
    await producer.close()
    assert queue.values() == [b"a"]


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
    with pytest.raises(Unavailable, match="a successor would resume past them"):
        await behind
    with pytest.raises(Refused, match="'source' stopped where records were dropped"):
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
    with pytest.raises(Unavailable, match="a successor would resume past them"):
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


# The collector's floor


@pytest.mark.parametrize("inline_max_bytes", [0, 4 * KIB])
@virtual
async def test_a_batch_below_the_floor_is_sent_again_under_an_id_above_it(
    inline_max_bytes: int,
) -> None:
    stream = fake_stream(inline_max_bytes=inline_max_bytes)
    queue = stream.queues[0]
    # The collector's clock is years ahead.
    queue.floor = "7" + "Y" * 25
    assert queue.floor < ULID_MAX
    async with await opened(stream) as producer:
        handles = await one_by_one(producer, b"a", b"b")
        assert [(await handle).producer_sequence for handle in handles] == [1, 2]
        (third,) = await one_by_one(producer, b"c")
        await third
    assert queue.values() == [b"a", b"b", b"c"], "each batch knows its own id: it was encoded again"
    assert all(entry.batch_id > queue.floor for entry in queue.entries)
    assert queue.groups == [1, 1, 1, 1], "one refusal: later ids are above the floor at once"


@virtual
async def test_what_stands_above_the_floor_is_not_sent_again() -> None:
    stream = fake_stream()
    queue = stream.queues[0]
    queue.next_append(takes(1))
    async with await opened(stream) as producer:
        await one_by_one(producer, b"a", b"b", b"c")
        await runtime.sleep(0.5)
        first, second, third = queue.uploads
        queue.floor = second
    again = queue.uploads[3:]
    # The first is being appended while the floor rises, and is refused like the second.
    assert len(again) == 2
    assert [entry.batch_id for entry in queue.entries] == [*again, third]
    assert first not in queue.uploads[3:]


@virtual
async def test_a_refused_upload_of_what_was_already_tried_is_tried_on() -> None:
    stream = fake_stream()
    queue = stream.queues[0]
    queue.next_append(lands_then(LOST), fails(BelowFloor("passed", floor="7" + "Y" * 25)))
    queue.next_upload(takes(0), fails(Denied("no")))
    async with await opened(stream) as producer:
        (handle,) = await one_by_one(producer, b"a")
        assert (await handle).sequence == 0
    assert queue.values() == [b"a"], "its sequence may have landed: it cannot be left out"


# Ends


@pytest.mark.parametrize("error", [Fenced("a successor"), Corrupt("bits"), Bug("odd")])
@virtual
async def test_a_producer_that_was_fenced_fails_everything_pending_and_every_later_call(
    error: HeadwaterError,
) -> None:
    async def later(_: Apply) -> None:
        await runtime.sleep(1)
        raise error

    stream = fake_stream(partitions=2)
    stream.queues[0].next_append(takes(0), later)
    stream.queues[1].always["upload"] = hangs()
    producer = await opened(stream, partitioner="round_robin", linger_ms=60_000)
    first = await producer.produce([b"a"], partition=0)
    await producer.flush()
    assert (await first).sequence == 0
    tried = await producer.produce([b"b"], partition=0)
    other = await producer.produce([b"c"], partition=1)
    flushing = runtime.spawn(producer.flush(), name="flush")
    await runtime.sleep(0.1)
    gathered = await producer.produce([b"d"], partition=1)
    started_s = runtime.monotonic_s()
    for handle in (tried, other, gathered):
        with pytest.raises(type(error)):
            await handle
    with pytest.raises(type(error)):
        await flushing
    assert runtime.monotonic_s() - started_s < 2, "also what was gathered and not due"
    for call in ([b"e"], [b"e"] * 100):
        with pytest.raises(type(error)):
            await producer.produce(call)
    assert producer._accumulator.held_bytes == 0
    await producer.close()


@virtual
async def test_a_successor_fences_its_predecessor_and_resumes_after_it() -> None:
    stream = fake_stream()
    stream.queues[0].resumed = Resumed(41, b"offset 17", 9)
    old = await Producer.open(stream, producer_id="source", linger_ms=0)
    assert old.resumed == {0: Resumed(41, b"offset 17", 9)}
    assert old.producer_id == "source"
    accepted = await (await old.produce([b"a"], b"offset 18"))
    assert accepted.producer_sequence == 42
    new = await Producer.open(stream, producer_id="source", linger_ms=0)
    stream.queues[0].producer = "source, the next life"
    with pytest.raises(Fenced):
        await (await old.produce([b"b"], b"offset 19"))
    await asyncio.gather(old.close(), new.close())


@virtual
async def test_producers_without_a_name_never_meet() -> None:
    stream = fake_stream()
    first, second = [await Producer.open(stream) for _ in range(2)]
    assert first.producer_id != second.producer_id
    await asyncio.gather(first.close(), second.close())
