"""Consumers, followers and readers on the queues that there are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.buffer.consumer import (
    BlockingConsumer,
    ConsumedBatch,
    Consumer,
    Follower,
    Lag,
    Reader,
    lag,
    list_dead_letters,
    lsn_at_time,
    read,
)
from headwater.buffer.queue.retention import Retention
from headwater.buffer.stream import Stream, alter_stream, create_stream
from headwater.core import runtime
from headwater.core.errors import Damaged, Fenced, Refused, Trimmed
from headwater.store import MemoryBackend, Store, open_store
from tests.buffer.consumer.given import produce
from tests.buffer.native.given import Cloud
from tests.buffer.native.watched import Watched
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


async def next_of(consumer: Consumer | Follower) -> ConsumedBatch:
    batch = await consumer.next_batch()
    assert batch is not None
    return batch


async def rest_of(reader: Reader) -> list[pa.RecordBatch]:
    return [rows async for rows in reader]


def test_batches_and_numbers_survive_a_change_of_consumer(
    on_a_stream: Callable[[Test], None],
) -> None:
    async def test(stream: Stream) -> None:
        await produce(stream, [b"a", b"b"], [b"c"], [b"d"])
        first = await Consumer.open(stream.store, "orders")
        batch = await next_of(first)
        assert (batch.entries, batch.lsns.to_pylist()) == ([b"a", b"b"], [1, 2])
        await first.ack(0)
        await first.close()
        second = await Consumer.open(stream)
        batches = [await next_of(second) for _ in range(2)]
        assert [b.entries for b in batches] == [[b"c"], [b"d"]]
        assert [b.first_lsn for b in batches] == [3, 4]
        await second.ack_through(2)
        await runtime.sleep(50)
        assert await second.lag() == Lag(0, 0, 0, 0.0)

    on_a_stream(test)


def test_lag_is_what_waits(on_a_stream: Callable[[Test], None]) -> None:
    async def test(stream: Stream) -> None:
        await produce(stream, [b"a", b"b"], [b"c"])
        consumer = await Consumer.open(stream, gc=False)
        await runtime.sleep(30)
        await consumer.ack((await next_of(consumer)).sequence)
        waits = await consumer.lag()
        assert (waits.batches, waits.records) == (1, 1)
        assert waits.size_bytes
        assert waits.seconds == pytest.approx(30, abs=1)
        assert (await lag(stream)).batches == 2
        await consumer.flush()
        assert (await lag(stream)).records == 1

    on_a_stream(test)


def test_a_lost_batch_is_an_error_or_a_dead_letter(on_a_stream: Callable[[Test], None]) -> None:
    async def test(stream: Stream) -> None:
        await produce(stream, [b"a", b"b"], [b"c", b"d"], [b"e"])
        lost = (await stream.queue_reader(0).after(0, 1))[0]
        await stream.store.delete(lost.location)
        strict = await Consumer.open(stream)
        await next_of(strict)
        with pytest.raises(Damaged, match="estore"):
            await strict.next_batch()
        assert await list_dead_letters(stream) == []

        consumer = await Consumer.open(stream, on_bad_batch="dead_letter")
        found = [await next_of(consumer) for _ in range(3)]
        assert [batch.sequence for batch in found] == [0, 1, 2]
        assert [batch.lost is not None for batch in found] == [False, True, False]
        assert found[2].entries == [b"e"]
        (letter,) = await list_dead_letters(stream)
        assert (letter.sequence, letter.location) == (1, lost.location)
        await consumer.ack_through(2)
        assert (await stream.queue_reader(0).state()).acked_sequence == 3

    on_a_stream(test)


def test_a_reader_overtaken_by_the_retention_is_told_the_lsn_to_go_on_with(
    on_a_stream: Callable[[Test], None],
) -> None:
    async def test(stream: Stream) -> None:
        await produce(stream, *[[b"x"] * 100] * 300)
        reader = await read(stream, read_ahead_bytes=0).open()
        await anext(reader)
        consumer = await Consumer.open(stream)
        await consumer.next_descriptors(300)
        await consumer.ack_through(299)
        await consumer.close()
        await runtime.sleep(10)
        await stream.collector(0).collect(Retention(retention_ms=0, grace_ms=0))
        with pytest.raises(Trimmed) as told:
            await rest_of(reader)
        with pytest.raises(Trimmed) as at_open:
            await read(stream, None, 1).open()
        assert told.value.floor_lsn == at_open.value.floor_lsn == 30_001

    on_a_stream(test)


def test_records_stay_until_the_retention_takes_them(
    on_a_stream: Callable[[Test], None],
) -> None:
    async def test(stream: Stream) -> None:
        await produce(stream, *[[b"x"]] * 300)
        consumer = await Consumer.open(stream, gc_interval_s=300)
        await consumer.next_descriptors(300)
        await consumer.ack_through(299)
        await runtime.sleep(3600)
        assert consumer.metrics.gc_duration_seconds.count > 10
        assert (await stream.queue_reader(0).state()).floor_sequence == 0
        follower = await Follower.open(stream, group="audit")
        assert (await next_of(follower)).sequence == 0

        # Each pass asks the stream: a shorter retention holds without a restart.
        await alter_stream(stream.store, "orders", retention="2h", gc_grace_ms=0)
        await runtime.sleep(3600)
        await produce(stream, [b"pending"])
        await runtime.sleep(3600)
        assert consumer.metrics.gc_passes_failed == 0, consumer.metrics.gc_last_error
        assert consumer.metrics.gc_files_deleted > 100
        assert (await stream.queue_reader(0).state()).floor_sequence > 0
        late = await Follower.open(stream, group="audit")
        with pytest.raises(Trimmed):
            await late.next_batch()
        with pytest.raises(Trimmed):
            await read(stream, None, 1).open()
        with pytest.raises(Trimmed):
            await Consumer.open(stream, last_acked_sequence=0)
        assert (await next_of(consumer)).entries == [b"pending"]
        await consumer.close()

    on_a_stream(test)


def test_reading_looks_and_changes_nothing(on_a_stream: Callable[[Test], None]) -> None:
    async def test(stream: Stream) -> None:
        await produce(stream, [b"a", b"b"])
        await runtime.sleep(10)
        between_ms = runtime.wall_ms()
        await runtime.sleep(10)
        await produce(stream, [b"c"])
        consumer = await Consumer.open(stream, gc=False)
        reader = await read(stream, columns=["_value", "_lsn"]).open()
        rows = [row async for batch in reader for row in batch.to_pylist()]
        assert rows == [
            {"_value": b"a", "_lsn": 1},
            {"_value": b"b", "_lsn": 2},
            {"_value": b"c", "_lsn": 3},
        ]
        moment = datetime.fromtimestamp(between_ms / 1000, UTC)
        for between in (between_ms, moment, moment.isoformat(), moment.replace(tzinfo=None)):
            assert await lsn_at_time(stream, time=between) == 3
        assert await lsn_at_time(stream, time=date(1970, 1, 1)) == 1
        for wrong in (1.5, True, "soon", None):
            with pytest.raises(Refused):
                await lsn_at_time(stream, time=wrong)  # type: ignore[arg-type]
        assert await lsn_at_time(stream, time=runtime.wall_ms() + 1) is None
        await consumer.flush()

    on_a_stream(test)


def test_batches_that_ride_in_their_entries_are_delivered_too() -> None:
    @virtual
    async def run() -> None:
        stream = await create_stream(Store(MemoryBackend()), "orders")
        await produce(stream, [b"a"], [b"b"], inline=True)
        consumer = await Consumer.open(stream)
        assert [(await next_of(consumer)).entries for _ in range(2)] == [[b"a"], [b"b"]]
        await consumer.ack_through(1)
        assert await consumer.lag() == Lag(0, 0, 0, 0.0)

    run()


def test_ownership_moves_only_when_it_is_told_to(on_a_stream: Callable[[Test], None]) -> None:
    async def test(stream: Stream) -> None:
        await produce(stream, [b"a"])
        owner = await Consumer.open(stream, group="billing")
        with pytest.raises(Refused, match="billing"):
            await Consumer.open(stream, group="audit")
        await owner.flush()
        await Consumer.open(stream, group="audit", take_over=True)
        with pytest.raises(Fenced):
            await owner.flush()

    on_a_stream(test)


def test_a_stream_that_nodes_consume_is_refused(on_a_stream: Callable[[Test], None]) -> None:
    async def test(stream: Stream) -> None:
        await alter_stream(stream.store, "orders", consumer="nodes")
        with pytest.raises(Refused, match="consumed by nodes"):
            await Consumer.open(stream.store, "orders")

    on_a_stream(test)


@virtual
async def test_only_a_search_for_the_end_lists() -> None:
    backend = Watched(Cloud(versions_by_content=True))
    stream = await create_stream(Store(backend), "orders")
    consumer = await Consumer.open(stream, gc=False)
    follower = await Follower.open(stream, group="audit")
    for one in (consumer, follower):
        assert await one.next_batch() is None
    for number in range(3):
        await produce(stream, [b"a"], [b"b"])
        backend.requests()
        for one in (consumer, follower):
            await next_of(one)
            await next_of(one)
            assert await one.next_batch() is None
        await consumer.ack_through(2 * number)
        assert "list" not in backend.operations()
        assert (await consumer.lag()).batches == 1
        assert backend.operations().count("list") == 1


@pytest.mark.parametrize("format_", ["native", "v1"])
def test_a_script_consumes_without_a_loop(tmp_path: Path, format_: Any) -> None:
    url = f"file://{tmp_path}/store"

    async def prepare() -> None:
        async with open_store(url) as store:
            await produce(await create_stream(store, "orders", format=format_), [b"a"], [b"b"])

    asyncio.run(prepare())
    with BlockingConsumer.open(url, "orders", gc=False) as consumer:
        batch = consumer.next_batch()
        assert batch is not None
        assert batch.entries == [b"a"]
        consumer.ack(batch.sequence)
        consumer.flush()
        assert len(consumer) == 1
        assert consumer.lag().batches == 1
        (descriptor,) = consumer.next_descriptors(5)
        assert consumer.fetch_descriptor(descriptor).entries == [b"b"]
        assert consumer.fetch_handle().fetch_blocking(descriptor).entries == [b"b"]
        consumer.ack_through(descriptor.sequence)
        assert consumer.next_batch() is None
        assert consumer.metrics.acks == 2
        assert consumer.conflict_rate == 0.0
    with pytest.raises(Refused, match="closed"):
        consumer.next_batch()
    with pytest.raises(Refused):
        BlockingConsumer.open(url, "orders", group="not a name")
