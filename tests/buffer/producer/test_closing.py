"""Ends: closed, cancelled, dropped."""

from __future__ import annotations

import asyncio
import gc
import itertools
import warnings

import pytest

from headwater.buffer.producer import Producer
from headwater.buffer.producer.open_batches import BURST_CALLS
from headwater.buffer.producer.sender import CLOSE_TIMEOUT_S
from headwater.buffer.queue.contract import ProducerState
from headwater.buffer.stream import create_stream
from headwater.core import runtime
from headwater.core.errors import HeadwaterError, Refused, Unavailable
from headwater.store import MemoryBackend, Store
from tests.buffer.producer.fakes import FakeAppender, FakeQueue, fake_stream, takes
from tests.store.scripted import virtual


@virtual
async def test_closing_sends_everything_and_says_goodbye_once() -> None:
    stream = fake_stream(partitions=2)
    for queue in stream.queues:
        queue.always["append"] = takes(1)
    producer = await Producer(stream, linger_ms=60_000).open()
    handle = await producer.produce([b"a"], partition=1)
    await asyncio.gather(producer.close(), producer.close())
    assert handle.is_done
    await producer.close()
    assert [queue.closed for queue in stream.queues] == [1, 1]
    for call in ([b"b"], [b"b"] * 100, []):
        with pytest.raises(Refused, match="closed"):
            await producer.produce(call)
    await producer.flush()


@virtual
async def test_only_a_producer_without_an_id_of_its_own_says_goodbye_for_good() -> None:
    for producer_id, for_good in ((None, 2), ("binlog-7", 0)):
        stream = fake_stream(partitions=2)
        producer = await Producer(stream, producer_id=producer_id).open()
        await producer.close()
        assert sum(queue.closed_for_good for queue in stream.queues) == for_good


@virtual
async def test_a_goodbye_that_fails_fails_nothing() -> None:
    stream = fake_stream(partitions=2)
    goodbyes: list[FakeQueue] = []

    async def close(self: object, *, for_good: bool = False) -> None:
        goodbyes.append(stream.queues[0])
        raise Unavailable("gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.buffer.producer.fakes.FakeAppender.close", close)
        async with Producer(stream) as producer:
            await producer.produce([b"a"])
    assert len(goodbyes) == 2


@virtual
async def test_cancelling_a_flush_or_an_await_loses_and_doubles_nothing() -> None:
    stream = fake_stream()
    queue = stream.queues[0]
    queue.always["append"] = takes(1)
    async with Producer(stream, linger_ms=0) as producer:
        handle = await producer.produce([b"a"])

        async def waits() -> None:
            await handle

        tasks = [
            runtime.spawn(waits(), name="waits"),
            runtime.spawn(producer.flush(), name="flush"),
        ]
        patient = runtime.spawn(waits(), name="patient")
        await runtime.sleep(0.5)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with pytest.raises(asyncio.CancelledError):
                await task
        await patient
        assert (await handle).sequence == 0
    assert queue.values() == [b"a"]


@virtual
async def test_a_close_that_was_cancelled_can_be_finished() -> None:
    stream = fake_stream()
    stream.queues[0].always["append"] = takes(1)
    producer = await Producer(stream, linger_ms=0).open()
    await producer.produce([b"a"])
    closing = runtime.spawn(producer.close(), name="close")
    await runtime.sleep(0.5)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await producer.close()
    assert stream.queues[0].values() == [b"a"]
    assert stream.queues[0].closed == 1


@virtual
async def test_a_produce_that_was_cancelled_has_kept_nothing() -> None:
    stream = fake_stream()
    async with Producer(stream, linger_ms=10) as producer:
        for size in (1, 10, 100):
            for steps in range(4):
                call = runtime.spawn(producer.produce([b"cancelled"] * size), name="call")
                for _ in range(steps):
                    await runtime.sleep(0)
                if not call.cancel():
                    await call
                    continue
                with pytest.raises(asyncio.CancelledError):
                    await call
                assert producer._batches.pending_rows == 0
            await producer.flush()
            await runtime.sleep(1)


@virtual
async def test_a_caller_that_never_waits_lets_the_others_run() -> None:
    stream = fake_stream()
    async with Producer(stream, linger_ms=10) as producer:
        ran: list[int] = []

        async def other() -> None:
            ran.append(1)

        await producer.produce([b"a"])
        # The clock of a real caller moves while it computes; a virtual one has to be pushed.
        times_ms = itertools.count(runtime.wall_ms() + 1)
        producer._clock._wall_ms = lambda: next(times_ms)
        task = runtime.spawn(other(), name="other")
        for _ in range(2 * BURST_CALLS):
            await producer.produce([b"a"])
        assert ran == [1]
        await task


@virtual
async def test_a_producer_that_is_dropped_says_how_many_records_are_not_accepted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = fake_stream(partitions=2)
    producer: Producer | None = await Producer(stream, linger_ms=60_000).open()
    assert producer is not None
    await producer.produce([b"a"], keys=b"k")
    await producer.produce([b"b"] * 100, partition=1)
    await producer.flush()
    await producer.produce([b"a"], keys=b"k")
    await producer.produce([b"b"] * 100, partition=1)
    await producer.produce([b"c"], keys=b"k")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        producer = None
        gc.collect()
    assert "'orders' was dropped without close(): 102 records" in str(told[0].message)
    assert told[0].category is ResourceWarning
    # Python shows no ResourceWarning by default; a log record of this level it does.
    (logged,) = caplog.records
    assert (logged.name, logged.levelname) == ("headwater", "WARNING")
    assert "102 records are not accepted" in logged.getMessage()


@virtual
async def test_a_producer_that_was_closed_is_dropped_in_silence() -> None:
    producer: Producer | None = await Producer(fake_stream()).open()
    assert producer is not None
    await producer.produce([b"a"])
    await producer.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        producer = None
        gc.collect()


@virtual
async def test_what_a_dropped_producer_held_is_still_sent_while_its_loop_runs() -> None:
    stream = fake_stream()
    producer: Producer | None = await Producer(stream, linger_ms=100).open()
    assert producer is not None
    handle = await producer.produce([b"a"])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        producer = None
        gc.collect()
    assert "1 records" in str(told[0].message)
    assert (await handle).sequence == 0
    assert stream.queues[0].values() == [b"a"]


@virtual
async def test_opening_fails_if_one_partition_cannot_be_opened() -> None:
    stream = fake_stream(partitions=3)

    async def opening(self: FakeAppender) -> ProducerState:
        await runtime.sleep(1)
        if self._queue is not stream.queues[0]:
            raise Unavailable("not this one")
        return ProducerState(0, None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeAppender, "open", opening)
        with pytest.raises(Unavailable, match="not this one"):
            await Producer(stream).open()


@virtual
async def test_which_stream_is_meant_must_be_said_in_one_way() -> None:
    stream = fake_stream()
    with pytest.raises(Refused, match="the stream is 'orders', not 'others'"):
        await Producer(stream, "others").open()
    with pytest.raises(Refused, match="name of the stream"):
        await Producer(stream.store).open()


@virtual
async def test_goodbyes_of_many_partitions_take_no_longer_than_that_of_one() -> None:
    stream = fake_stream(partitions=100)
    begun: list[object] = []

    async def close(self: object, *, for_good: bool = False) -> None:
        begun.append(self)
        await runtime.sleep(60)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.buffer.producer.fakes.FakeAppender.close", close)
        producer = await Producer(stream).open()
        started_s = runtime.monotonic_s()
        await producer.close()
    assert runtime.monotonic_s() - started_s == pytest.approx(CLOSE_TIMEOUT_S)
    assert len(begun) == 100


@virtual
async def test_an_opening_that_fails_closes_what_it_opened() -> None:
    store = Store(MemoryBackend())
    stream = await create_stream(store, "orders", partitions=4)
    await store.delete(f"streams/orders/3/ingest/{stream.id}/queue.json")
    with pytest.raises(HeadwaterError):
        await Producer(stream).open()
    await runtime.sleep(0)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "headwater-known"]
