"""What becomes of records when the store does not answer, refuses, or answers too late."""

from __future__ import annotations

import asyncio

import pytest

from headwater.buffer.producer import Producer
from headwater.buffer.queue.contract import BelowFloor, ProducerState
from headwater.core import runtime
from headwater.core.errors import (
    Bug,
    Contended,
    Corrupt,
    Denied,
    Fenced,
    HeadwaterError,
    NoSpace,
    Refused,
    Throttled,
    Unavailable,
)
from headwater.core.limits import KIB
from headwater.core.runtime import ULID_MAX
from tests.buffer.producer.fakes import (
    Apply,
    Step,
    fails_after,
    fake_stream,
    hangs,
    lands_partly,
    takes,
)
from tests.buffer.producer.opened import DOWN, LOST, one_by_one, opened
from tests.store.scripted import fails, lands_then, virtual


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
async def test_on_failure_stop_accepts_nothing_past_what_was_dropped() -> None:
    stream = fake_stream(partitions=2)
    stream.queues[0].next_upload(takes(0.1), fails_after(0.05, Denied("no")), takes(0.1))
    producer = await opened(stream, on_failure="stop")
    handles = []
    for value in (b"a", b"b", b"c"):
        handles.append(await producer.produce([value], partition=0))
        await runtime.sleep(0.001)
    first, refused, third = handles
    with pytest.raises(Denied):
        await refused
    with pytest.raises(Unavailable, match="records before these were dropped"):
        await third
    with pytest.raises(Refused, match="open it again and continue after what was accepted"):
        await producer.produce([b"d"], partition=1)
    assert (await first).sequence == 0
    assert stream.queues[0].values() == [b"a"]
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
async def test_an_error_that_nobody_foresaw_leaves_nobody_waiting() -> None:
    stream = fake_stream(partitions=2)
    stream.queues[0].next_append(fails(ZeroDivisionError("a slip")))
    producer = await opened(stream)
    handle = await producer.produce([b"a"], partition=0)
    with pytest.raises(Bug, match=r"appending broke: ZeroDivisionError\('a slip'\)"):
        await handle
    with pytest.raises(Bug):
        await producer.produce([b"b"], partition=1)
    await producer.close()


@virtual
async def test_a_successor_fences_its_predecessor_and_resumes_after_it() -> None:
    stream = fake_stream()
    stream.queues[0].resumed = ProducerState(41, b"offset 17", 9)
    old = await Producer(stream, producer_id="source", linger_ms=0).open()
    assert old.resumed == {0: ProducerState(41, b"offset 17", 9)}
    assert old.producer_id == "source"
    accepted = await (await old.produce([b"a"], b"offset 18"))
    assert accepted.producer_sequence == 42
    new = await Producer(stream, producer_id="source", linger_ms=0).open()
    stream.queues[0].producer = "source, the next life"
    with pytest.raises(Fenced):
        await (await old.produce([b"b"], b"offset 19"))
    await asyncio.gather(old.close(), new.close())


@virtual
async def test_producers_without_a_name_never_meet() -> None:
    stream = fake_stream()
    first, second = [await Producer(stream).open() for _ in range(2)]
    assert first.producer_id != second.producer_id
    await asyncio.gather(first.close(), second.close())
