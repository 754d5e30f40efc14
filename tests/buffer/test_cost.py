"""What requests cost: the defaults keep their promise, and the counts are those that are made."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from headwater.buffer.batch import Batch, Call, Calls
from headwater.buffer.compression import Compression
from headwater.buffer.cost import MONTH_S, READS_PER_POLL, estimate_cost
from headwater.buffer.queue.contract import NewBatch, QueueConsumer, QueueReader
from headwater.buffer.stream import Stream, create_stream
from headwater.buffer.stream.config import Format
from headwater.core import runtime
from headwater.store import Store, open_store
from headwater.store.stats import PRICED_AS_READS, PRICED_AS_WRITES

FLUSHES = 20
POLLS = 32


@pytest.mark.parametrize("format", ["native", "v1"])
def test_the_defaults_stay_below_what_is_promised(format: Format) -> None:
    cost = estimate_cost(format=format)
    assert 10 < cost.small_producer_usd <= cost.producer_usd < 30
    assert 0 < cost.idle_reader_usd < 1


def test_a_flush_is_two_writes_at_the_list_price() -> None:
    writes_usd = 2 * MONTH_S / 1000 * 0.005
    assert estimate_cost().producer_usd == pytest.approx(writes_usd, rel=0.02)
    assert estimate_cost().small_producer_usd == pytest.approx(writes_usd / 2, rel=0.04)


def test_a_longer_wait_costs_less() -> None:
    assert estimate_cost(linger_ms=10_000).producer_usd < 3
    assert estimate_cost(linger_ms=100).producer_usd > 250
    assert estimate_cost(linger_ms=0).producer_usd == estimate_cost(linger_ms=1).producer_usd


def test_prices_are_those_of_the_store() -> None:
    assert estimate_cost(scheme="az").producer_usd > estimate_cost().producer_usd
    free = estimate_cost(scheme="file")
    assert (free.producer_usd, free.idle_reader_usd) == (0, 0)


async def flushed(store: Store, stream: Stream, *, inline: bool) -> tuple[int, int]:
    """The writes and reads of some flushes, without those of opening."""
    appender = stream.appender(0, "producer")
    await appender.open()
    before = _requests(store)
    for number in range(1, FLUSHES + 1):
        batch_id = runtime.new_ulid()
        records = pa.record_batch({"_value": pa.array([b"x" * 100])})
        data = appender.encode(
            Batch(batch_id, records, Calls.of([Call(0, 1, None)])), Compression.NONE
        )
        if not inline:
            await appender.upload(batch_id, data)
        new = NewBatch(batch_id, number, 1, len(data), 1, 1, inline=bytes(data) if inline else None)
        await appender.append([new])
    after = _requests(store)
    return after[0] - before[0], after[1] - before[1]


def _requests(store: Store) -> tuple[int, int]:
    writes = sum(store.stats.of(operation).requests for operation in PRICED_AS_WRITES)
    return writes, sum(store.stats.of(operation).requests for operation in PRICED_AS_READS)


@pytest.mark.parametrize(("format", "inline"), [("native", False), ("native", True), ("v1", False)])
def test_a_lone_producer_makes_the_requests_that_are_estimated(format: str, inline: bool) -> None:
    async def run() -> tuple[int, int]:
        store = open_store("memory://")
        stream = await create_stream(store, "orders", format=format)
        return await flushed(store, stream, inline=inline)

    writes, reads = asyncio.run(run())
    assert writes <= FLUSHES * (1 if inline else 2) + 1
    assert reads <= 2


@pytest.mark.parametrize("format", ["native", "v1"])
@pytest.mark.parametrize("door", ["queue_reader", "queue_consumer"])
def test_an_idle_poll_makes_the_reads_that_are_estimated(door: str, format: str) -> None:
    async def run() -> float:
        store = open_store("memory://")
        stream = await create_stream(store, "orders", format=format)
        await flushed(store, stream, inline=format == "native")
        reader: QueueReader | QueueConsumer = stream.queue_reader(0)
        if door == "queue_consumer":
            reader = queue_consumer = stream.queue_consumer(0)
            await queue_consumer.open("group")
        last = (await reader.after(None, FLUSHES))[-1].sequence
        before = _requests(store)
        for _ in range(POLLS):
            assert await reader.after(last, 10) == []
        after = _requests(store)
        assert after[0] == before[0]
        return (after[1] - before[1]) / POLLS

    assert asyncio.run(run()) <= READS_PER_POLL
