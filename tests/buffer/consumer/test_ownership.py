"""For whoever plans and lets others fetch: ownership, positions of groups, small descriptors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headwater import blocking
from headwater.buffer.consumer import (
    BlockingConsumer,
    Consumer,
    FetchHandle,
    Follower,
    FollowerRegister,
    Ownership,
    TakenOver,
    UnreadableBatch,
    compact_descriptor,
    list_dead_letters,
    lsn_at_time,
)
from headwater.buffer.consumer.ownership import Frontier
from headwater.buffer.producer import BlockingProducer
from headwater.buffer.queue.contract import Descriptor, QueuePosition, Uncounted
from headwater.buffer.stream import Stream, create_stream
from headwater.core import runtime
from headwater.core.errors import Refused, Unavailable
from headwater.core.limits import ACKS_PER_DEQUEUE
from headwater.store import MemoryBackend, Store, open_store
from tests.buffer.consumer.fakes import FakeQueue
from tests.buffer.consumer.given import produce
from tests.store.scripted import virtual

Test = Callable[[Stream], Awaitable[None]]


@pytest.fixture(params=["native", "v1"])
def on_a_stream(request: pytest.FixtureRequest) -> Callable[[Test], None]:
    """Runs a test on a stream of each format, in virtual time."""

    def run(test: Test) -> None:
        @virtual
        async def inside() -> None:
            store = Store(MemoryBackend())
            await test(await create_stream(store, "orders", format=request.param))

        inside()

    return run


def test_an_owner_acknowledges_by_batch_and_only_forward(
    on_a_stream: Callable[[Test], None],
) -> None:
    async def test(stream: Stream) -> None:
        await produce(stream, [b"a", b"b"], [b"c"], [b"d"])
        owner = await Ownership.open(stream, 0, "billing")
        await owner.acknowledge(1)
        await owner.acknowledge(0)
        state = await stream.queue_reader(0).state()
        assert (state.group, state.acked_sequence, state.acked_lsn) == ("billing", 2, 4)
        again = await Ownership.open(stream, 0, "billing", acked_through=2)
        assert (await stream.queue_reader(0).state()).acked_sequence == 3
        await again.close()
        await owner.close()

    on_a_stream(test)


def test_who_took_over_is_told_with_the_time(on_a_stream: Callable[[Test], None]) -> None:
    async def test(stream: Stream) -> None:
        await produce(stream, [b"a"])
        first = await Ownership.open(stream, 0, "billing")
        with pytest.raises(Refused, match="billing"):
            await Ownership.open(stream, 0, "audit")
        await first.check()
        second = await Ownership.open(stream, 0, "audit", take_over=True)
        opened_ms = (await stream.queue_reader(0).state()).opened_ms
        assert opened_ms == runtime.wall_ms()
        for refused in (first.check, lambda: first.acknowledge(0)):
            with pytest.raises(TakenOver, match=r"group 'audit' opened .* at \d{4}-.*\(epoch 2\)"):
                await refused()
        assert (await stream.queue_reader(0).state()).acked_sequence == 0
        await second.acknowledge(0)

    on_a_stream(test)


def test_who_took_over_is_told_whatever_its_clock_says(
    on_a_stream: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(stream: Stream) -> None:
        first = await Ownership.open(stream, 0, "billing", gc=False)
        with monkeypatch.context() as patched:
            patched.setattr(runtime, "wall_ms", lambda: 10**15)
            await Ownership.open(stream, 0, "billing", gc=False)
        told = r"opened the consumer at 1,000,000,000,000,000 ms since 1970 \(epoch 2\)"
        with pytest.raises(TakenOver, match=told):
            await first.check()

    on_a_stream(test)


def test_who_took_over_cannot_be_told_where_the_store_is_away(
    on_a_stream: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(stream: Stream) -> None:
        first = await Ownership.open(stream, 0, "billing", gc=False)
        await Ownership.open(stream, 0, "billing", gc=False)

        async def away(_: object) -> None:
            raise Unavailable("no answer")

        monkeypatch.setattr(type(stream.queue_reader(0)), "state", away)
        told = r"stream 'orders', partition 0: .* fenced this one of group 'billing' \(epoch 1\)"
        with pytest.raises(TakenOver, match=told) as fenced:
            await first.check()
        assert (fenced.value.group, fenced.value.by) == ("billing", "")

    on_a_stream(test)


@virtual
async def test_a_batch_that_nobody_can_count_is_noted_and_given_up() -> None:
    queue = FakeQueue()
    await queue.add_many(3)
    queue.uncounted = {1}
    stream = queue.stream()
    owner = await Ownership.open(stream, 0, "billing", gc=False)
    with pytest.raises(Uncounted) as uncounted:
        await stream.queue_reader(0).after(0, 10)
    await owner.give_up(uncounted.value)
    assert [d.sequence for d in await stream.queue_reader(0).after(0, 10)] == [1, 2]
    assert [letter.sequence for letter in await list_dead_letters(stream)] == [1]


@virtual
async def test_garbage_is_collected_until_the_owner_is_fenced() -> None:
    queue = FakeQueue()
    stream = queue.stream()
    owner = await Ownership.open(stream, 0, "billing")
    queue.asked.clear()
    await Ownership.open(stream, 0, "billing", gc=False)
    with pytest.raises(TakenOver):
        await owner.check()
    queue.asked.clear()
    await runtime.sleep(1000)
    assert "collect" not in queue.asked


@virtual
async def test_a_group_begins_once_and_moves_forward_only() -> None:
    queue = FakeQueue()
    await queue.add_many(5)
    group = FollowerRegister(queue.stream(), 0, "audit")
    assert await group.read() is None
    begun = await asyncio.gather(group.begin(QueuePosition(1, 4)), group.begin(QueuePosition(3, 9)))
    assert begun[0] == begun[1] == await group.read()
    await group.advance(QueuePosition(4, 13))
    await group.advance(QueuePosition(4, 14))
    await group.advance(QueuePosition(4, 13))
    await group.advance(QueuePosition(2, 7))
    kept = await group.read()
    assert kept is not None
    assert (kept.next_sequence, kept.lsn) == (4, 14)
    # A position within a batch is, to a follower, that of the batch.
    follower = await Follower.open(queue.stream(), group="audit")
    assert follower.committed == 3


@virtual
async def test_a_group_that_takes_over_behind_what_is_acknowledged_is_noted_as_such() -> None:
    stream = FakeQueue().stream()
    group = FollowerRegister(stream, 0, "audit")
    await group.begin(QueuePosition(1, 4))
    await group.owns_from(QueuePosition(3, 9))
    # What the queue has acknowledged is another's work, also when the group loses it again.
    kept = await group.owned_until(QueuePosition(3, 9))
    assert (kept.next_sequence, kept.behind) == (1, True)
    await group.advance(QueuePosition(2, 7), behind=True)
    kept = await group.advance(QueuePosition(3, 9))
    assert (kept.next_sequence, kept.behind) == (3, False)
    kept = await group.owned_until(QueuePosition(5, 20))
    assert (kept.next_sequence, kept.lsn) == (5, 20)
    # Also where it is not behind yet: the owner may acknowledge more before it is fenced.
    await group.owns_from(QueuePosition(5, 20))
    stored = await group.read()
    assert stored is not None
    assert stored.behind


def test_small_descriptors_fetch_the_same_batches(on_a_stream: Callable[[Test], None]) -> None:
    async def test(stream: Stream) -> None:
        rides = stream.config.format == "native"
        await produce(stream, [b"a", b"b"], [b"c"], inline=rides)
        await produce(stream, [b"d"])
        found = await stream.queue_reader(0).after(None, 10)
        handle = FetchHandle(stream.store, stream="orders", partition=0)
        small = [compact_descriptor(descriptor) for descriptor in found]
        assert [one.inline for one in small] == ([b"", b"", None] if rides else [None] * 3)
        assert all(len(msgspec.msgpack.encode(one)) < 400 for one in small)
        await runtime.sleep(5)  # what is kept beside the appends is written by then
        asked = stream.store.stats.operations["get"].requests
        batches = await asyncio.gather(*(handle.fetch(one) for one in small))
        assert [batch.entries for batch in batches] == [[b"a", b"b"], [b"c"], [b"d"]]
        if rides:
            # One request for all that ride in a chunk.
            assert stream.store.stats.operations["get"].requests - asked == 2

    on_a_stream(test)


@virtual
async def test_a_batch_that_came_after_its_chunk_was_read_is_found() -> None:
    stream = await create_stream(Store(MemoryBackend()), "orders")
    handle = FetchHandle(stream.store, stream="orders", partition=0)
    await produce(stream, [b"a"], inline=True)
    (first,) = await stream.queue_reader(0).after(None, 10)
    await handle.fetch(compact_descriptor(first))
    await produce(stream, [b"b"], inline=True)
    second = (await stream.queue_reader(0).after(0, 10))[0]
    assert second.location == first.location
    assert (await handle.fetch(compact_descriptor(second))).entries == [b"b"]
    missing = msgspec.structs.replace(compact_descriptor(second), batch_id="0" * 26)
    with pytest.raises(UnreadableBatch, match="is not in"):
        await handle.fetch(missing)


def test_a_time_is_found_without_reading_records(on_a_stream: Callable[[Test], None]) -> None:
    async def test(stream: Stream) -> None:
        from headwater.buffer.producer import Producer

        async with Producer(stream, linger_ms=60_000) as producer:
            start_ms = runtime.wall_ms()
            await producer.produce([b"a" * 1000] * 100)
            await runtime.sleep(10)
            await producer.produce([b"b"] * 50)
            await producer.flush()
        assert await lsn_at_time(stream, time=start_ms) == 1
        assert await lsn_at_time(stream, time=start_ms + 1) == 101
        assert await lsn_at_time(stream, time=start_ms + 10_000) == 101
        assert await lsn_at_time(stream, time=start_ms + 10_001) is None

    on_a_stream(test)


# The frontier: forward, in order, over what was handed out.


def described(*sequences: int) -> list[Descriptor]:
    return [Descriptor(n, f"batches/{n}", n + 1, 1, 10, 0, 0) for n in sequences]


def test_the_first_acknowledgement_is_of_the_first_batch() -> None:
    frontier = Frontier(None)
    frontier.note_delivered(described(0, 1))
    with pytest.raises(Refused, match="out-of-order ack: expected sequence 0, got 1"):
        frontier.check_next(1)
    frontier.check_next(0)


def test_it_goes_on_after_the_position_it_was_opened_at() -> None:
    frontier = Frontier(6)
    frontier.note_delivered(described(7))
    with pytest.raises(Refused, match="expected sequence 7, got 6"):
        frontier.check_next(6)
    frontier.check_next(7)


def test_the_next_batch_cannot_be_acknowledged_before_it_was_handed_out() -> None:
    frontier = Frontier(None)
    with pytest.raises(Refused, match="beyond what was handed out"):
        frontier.check_next(0)
    with pytest.raises(Refused, match="beyond what was handed out"):
        frontier.check_through(0)
    frontier.note_delivered(described(0, 1))
    with pytest.raises(Refused, match=r"beyond what was handed out \(1 the last\)"):
        frontier.check_through(2)


def test_acknowledging_through_counts_the_batches_that_it_covers() -> None:
    frontier = Frontier(None)
    frontier.note_delivered(described(*range(5)))
    assert frontier.advance(3) == 4
    assert frontier.last_acked == 3
    assert frontier.oldest_unacked is not None
    assert frontier.oldest_unacked.sequence == 4
    with pytest.raises(Refused, match="non-monotonic ack_through: last_acked=3, requested=3"):
        frontier.check_through(3)


def test_a_dequeue_is_due_with_every_hundredth() -> None:
    frontier = Frontier(None)
    frontier.note_delivered(described(*range(ACKS_PER_DEQUEUE + 1)))
    for sequence in range(ACKS_PER_DEQUEUE - 1):
        assert not frontier.is_due
        frontier.advance(sequence)
    assert frontier.is_due
    frontier.settle()
    assert not frontier.is_due


def test_what_waits_for_its_acknowledgement_does_not_hold_the_batch() -> None:
    frontier = Frontier(None)
    frontier.note_delivered([Descriptor(0, "chunk", 1, 1, 9, 0, 0, inline=b"the batch")])
    assert frontier.oldest_unacked is not None
    assert frontier.oldest_unacked.inline is None


# A forked child has a copy of every position, and goes on with none of them.


def in_child(check: Callable[[], None]) -> int:
    """Run a check in a forked child; 0 if it held."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            check()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def opened(kind: Any, url: str, **options: Any) -> Any:
    """A consumer or follower that took the first of three batches."""
    store = open_store(url)
    stream = await create_stream(store, "orders")
    await produce(stream, [b"a"], [b"b"], [b"c"])
    found = await kind.open(stream, group="g", **options)
    assert (await found.next_batch()).entries == [b"a"]
    return found


def refused(*calls: Callable[[], Any]) -> None:
    """Each of these is refused because of the fork."""

    async def one(call: Callable[[], Any]) -> None:
        with pytest.raises(Refused, match="was opened before the process forked"):
            await call()

    for call in calls:
        asyncio.run(one(call))


def test_a_consumer_of_the_parent_neither_takes_nor_acknowledges(tmp_path: Path) -> None:
    runner = asyncio.Runner()
    consumer = runner.run(opened(Consumer, f"file://{tmp_path}/store", gc=False))

    def check() -> None:
        refused(
            consumer.next_batch,
            lambda: consumer.next_descriptors(1),
            lambda: consumer.ack(0),
            lambda: consumer.ack_through(0),
            consumer.flush,
            consumer.lag,
        )
        asyncio.run(consumer.close())

    assert in_child(check) == 0

    async def goes_on() -> None:
        assert (await consumer.next_batch()).entries == [b"b"]
        await consumer.ack(0)
        await consumer.close()
        assert (await consumer.stream.queue_reader(0).state()).acked_sequence == 1

    with runner:
        runner.run(goes_on())


def test_a_follower_of_the_parent_neither_takes_nor_commits(tmp_path: Path) -> None:
    runner = asyncio.Runner()
    follower = runner.run(opened(Follower, f"file://{tmp_path}/store"))

    def check() -> None:
        refused(
            follower.next_batch,
            lambda: follower.next_descriptors(1),
            lambda: follower.commit(0),
        )
        asyncio.run(follower.close())

    assert in_child(check) == 0

    async def goes_on() -> None:
        assert (await follower.next_batch()).entries == [b"b"]
        await follower.commit(1)
        await follower.close()

    with runner:
        runner.run(goes_on())


def test_what_the_child_opens_is_its_own(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    asyncio.run(opened(Consumer, url, gc=False))

    async def run() -> None:
        async with await Consumer.open(url, "orders", 0, "g", gc=False) as consumer:
            batch = await consumer.next_batch()
            assert batch is not None

    assert in_child(lambda: asyncio.run(run())) == 0


def test_a_blocking_consumer_of_the_parent_is_refused_and_closed_in_silence(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    blocking.create_stream(url, "orders")
    with BlockingProducer(url, "orders") as producer:
        producer.produce([b"a"])
    with BlockingConsumer.open(url, "orders", gc=False) as consumer:

        def check() -> None:
            with consumer, pytest.raises(Refused, match="was opened before the process forked"):
                consumer.next_batch()

        assert in_child(check) == 0
        batch = consumer.next_batch()
        assert batch is not None
        consumer.ack_through(batch.sequence)
        assert (consumer.epoch, consumer.last_acked_sequence) == (1, 0)
        assert consumer.last_handed_out_sequence == batch.sequence == 0
