"""Requests and their price on S3, for a steady stream and for a reader to which nothing comes.

And requests per batch once a stream carries what it carries: what is recorded of its columns costs
the first call, and nothing after it.
"""

from __future__ import annotations

import asyncio
import contextlib

import pyarrow as pa

from bench._buffer_distance import in_virtual_time
from bench._report import Goal, Section
from bench._slow_store import SlowBackend
from headwater.buffer.consumer import Consumer, read
from headwater.buffer.producer import Producer
from headwater.buffer.stream import create_stream
from headwater.core import runtime
from headwater.store import Store
from headwater.store.stats import StoreStats

RECORDS = 1_000_000
RECORD_BYTES = 100
CALL_RECORDS = 1000
MONTH_S = 30 * 86_400
PRODUCER_GOAL_USD = 30.0
READER_GOAL_USD = 1.0
IDLE_S = 3600.0
POLL_S = 1.0
DECLARED = {"id": "int64", "text": "string"}


def price(rates: tuple[int, ...]) -> Section:
    """A million records at each rate, with the settings that a cloud store gets by default."""
    section = Section(
        f"S3 requests of {RECORDS:,} records of {RECORD_BYTES} B, default settings (virtual time)",
        ["records/s", "who", "writes and lists", "reads", "$ per million records", "$ per month"],
    )
    for rate in rates:
        took_s, who = in_virtual_time(lambda rate=rate: _stream(rate))  # type: ignore[misc]
        for name, stats in who.items():
            monthly_usd = stats.cost_usd * MONTH_S / took_s
            section.rows.append([f"{rate:,}", name, *_cells(stats), f"{monthly_usd:,.2f}"])
            if name == "producer":
                what = f"a producer of {rate:,} records/s, $ per month"
                section.goals.append(Goal(what, PRODUCER_GOAL_USD, monthly_usd, at_least=False))
    stats = in_virtual_time(_idle)
    monthly_usd = stats.cost_usd * MONTH_S / IDLE_S
    row = ["0", "idle reader, an hour", *_cells(stats), f"{monthly_usd:,.2f}"]
    section.rows.append(row)
    goal = Goal("an idle reader, $ per month", READER_GOAL_USD, monthly_usd, at_least=False)
    section.goals.append(goal)
    section.notes.append("list prices; storage and transfer are not in it")
    return section


def _cells(stats: StoreStats) -> list[str]:
    reads = sum(stats.of(name).requests for name in ("get", "head"))
    writes = stats.requests - reads - stats.of("delete").requests
    return [f"{writes:,}", f"{reads:,}", f"{stats.cost_usd:.4f}"]


async def _stream(rate: int) -> tuple[float, dict[str, StoreStats]]:
    backend = SlowBackend()
    await create_stream(Store(backend), "steady")
    ours, theirs = Store(backend), Store(backend)
    values = [bytes(RECORD_BYTES)] * CALL_RECORDS
    consumer = await Consumer.open(theirs, "steady", group="bench")
    producer = await Producer(ours, "steady").open()
    began_s = runtime.monotonic_s()

    async def produce() -> None:
        for number in range(1, RECORDS // CALL_RECORDS + 1):
            await producer.produce(values)
            due_s = began_s + number * CALL_RECORDS / rate
            await runtime.sleep(max(0.0, due_s - runtime.monotonic_s()))
        await producer.close()

    producing = runtime.spawn(produce(), name="produce")
    seen = 0
    while seen < RECORDS:
        batch = await consumer.next_batch()
        if batch is None:
            await runtime.sleep(POLL_S)
            continue
        seen += len(batch)
        await consumer.ack(batch.sequence)
    await producing
    took_s = runtime.monotonic_s() - began_s
    await consumer.close()
    return took_s, {"producer": ours.stats, "consumer": theirs.stats}


def steady(batches: int) -> Section:
    """Requests of a producer per batch, by what the stream says of its columns."""
    section = Section(
        f"Requests per batch on the steady path, {batches:,} batches (virtual time)",
        ["stream", "batches of", "to open", "first batch", "per batch after it"],
    )
    for what, schema in (("opaque values", None), ("declared", DECLARED), ("undeclared", None)):
        for size, goal in (("4 KiB", 1.0), ("64 KiB", 2.0)):
            records = 32 if size == "4 KiB" else 512
            opening, first, later = in_virtual_time(
                lambda what=what, schema=schema, records=records: _batches(  # type: ignore[misc]
                    what, schema, records, batches
                )
            )
            per_batch = later / batches
            section.rows.append([what, size, f"{opening}", f"{first}", f"{per_batch:.3f}"])
            wanted = f"{what}, batches of {size}: requests per batch"
            section.goals.append(Goal(wanted, goal * 1.1, per_batch, at_least=False))
    section.notes.append("the first batch of an undeclared stream records what it carries")
    return section


async def _batches(
    what: str, schema: dict[str, str] | None, records: int, batches: int
) -> tuple[int, int, int]:
    """Requests to open, of the first batch, and of all others together."""
    backend = SlowBackend()
    await create_stream(Store(backend), "steady", schema=schema)
    store = Store(backend)
    producer = await Producer(store, "steady", linger_ms=0).open()
    values = [bytes(120)] * records
    rows = pa.table({"id": pa.array(range(records)), "text": [bytes(100).hex()[:112]] * records})
    marks = [store.stats.requests]
    for number in range(batches + 1):
        if what == "opaque values":
            handle = await producer.produce(values)
        else:
            handle = await producer.produce_arrow(rows)
        await handle
        if number == 0:
            marks.append(store.stats.requests)
    marks.append(store.stats.requests)
    await producer.close()
    return marks[0], marks[1] - marks[0], marks[2] - marks[1]


async def _idle() -> StoreStats:
    backend = SlowBackend()
    await create_stream(Store(backend), "idle")
    store = Store(backend)
    async with read(store, "idle", follow=True) as reader:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_S):
                await reader.next_batch()
    return store.stats
