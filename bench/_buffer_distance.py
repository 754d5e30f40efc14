"""A store at 50 ms a request, in the simulator's virtual time: exact, and over in no time."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from typing import TypeVar

from bench._report import Goal, Section
from bench._slow_store import REQUEST_S, SlowBackend
from headwater.buffer.producer import Producer
from headwater.buffer.stream import create_stream
from headwater.core import runtime
from headwater.core.limits import KIB
from headwater.store import Store
from headwater.testing import simulate

T = TypeVar("T")

FLUSH_S = 1.0
PIPELINE_BATCH_BYTES = 256 * KIB
PIPELINE_GOAL = 5.0
UPLOADED_BYTES = 64 * KIB
RIDING_BYTES = 4 * KIB
LINGER_NEVER_MS = 3_600_000
PRODUCERS = (1, 4, 16, 64)
LONE_TIMES = 10  # a lone producer shows how it goes on only after some chunks
REQUESTS_GOAL = {("uploaded", 1): 2.0, ("riding", 1): 1.0, ("uploaded", 16): 4.0}
STARVATION_GOAL = 10.0
STAY_GOAL_S = 1.0
COME_AND_GO_S = 0.5


def in_virtual_time(scenario: Callable[[], Awaitable[T]]) -> T:
    """Run it in the simulator, without the stalls that it looks for bugs with."""
    found: list[T] = []

    async def run(_: object) -> None:
        found.append(await scenario())

    simulate(run, seed=1, stall_max_s=0)
    return found[0]


def pipelining(batches: int) -> Section:
    """Uploads in flight and grouped appends, against one flush after the other."""
    both_s = {
        "one flush at a time": in_virtual_time(lambda: _produce(batches // 10, waits=True)),
        "pipelined": in_virtual_time(lambda: _produce(batches, waits=False)),
    }
    section = Section(
        f"Throughput at {REQUEST_S * 1e3:.0f} ms a request (virtual time), batches of "
        f"{PIPELINE_BATCH_BYTES // KIB} KiB",
        ["way", "batches", "batches/s", "MB/s"],
    )
    for (name, took_s), count in zip(both_s.items(), (batches // 10, batches), strict=True):
        rate = count / took_s
        megabytes = f"{rate * PIPELINE_BATCH_BYTES / 1e6:,.1f}"
        section.rows.append([name, f"{count:,}", f"{rate:,.1f}", megabytes])
    slow, fast = (float(row[2].replace(",", "")) for row in section.rows)
    section.goals.append(Goal("pipelined ÷ one at a time", PIPELINE_GOAL, fast / slow))
    return section


async def _produce(batches: int, *, waits: bool) -> float:
    store = Store(SlowBackend())
    await create_stream(store, "far")
    payload = bytes(PIPELINE_BATCH_BYTES)
    began_s = runtime.monotonic_s()
    async with Producer(store, "far", batch_bytes=PIPELINE_BATCH_BYTES) as producer:
        began_s = runtime.monotonic_s()
        for _ in range(batches):
            await producer.produce([payload])
            if waits:
                await producer.flush()
        await producer.flush()
        return runtime.monotonic_s() - began_s


def contention(flushes: int) -> Section:
    """Producers on one partition, each with a batch a second whatever became of the last."""
    section = Section(
        f"Producers on one partition at {REQUEST_S * 1e3:.0f} ms a request, each flushing once a "
        f"second, {flushes} flushes each, a lone one {LONE_TIMES * flushes} (virtual time)",
        ["batches", "producers", "requests/batch", "p50", "p99", "p99 ÷ p50", "longest"],
    )
    for kind, size_bytes in (("uploaded", UPLOADED_BYTES), ("riding", RIDING_BYTES)):
        for count in PRODUCERS:
            times = flushes * (LONE_TIMES if count == 1 else 1)
            requests, waits_s = in_virtual_time(
                lambda count=count, times=times, size=size_bytes: _contend(count, times, size)  # type: ignore[misc]
            )
            cuts = statistics.quantiles(waits_s, n=100, method="inclusive")
            p50_s, p99_s = cuts[49], cuts[98]
            row = [kind, str(count), f"{requests:.3f}", f"{p50_s * 1e3:,.0f} ms"]
            row += [f"{p99_s * 1e3:,.0f} ms", f"{p99_s / p50_s:.1f}", f"{max(waits_s):.2f} s"]
            section.rows.append(row)
            who = f"{count} producers, {kind}"
            if (kind, count) in REQUESTS_GOAL:
                goal = REQUESTS_GOAL[kind, count]
                section.goals.append(Goal(f"requests a batch, {who}", goal, requests, False))
            section.goals.append(Goal(f"p99 ÷ p50, {who}", STARVATION_GOAL, p99_s / p50_s, False))
    waits_s = in_virtual_time(lambda: _stay(flushes))
    longest_s = max(waits_s)
    p50 = f"{statistics.median(waits_s) * 1e3:,.0f} ms"
    section.rows.append(["riding", "1 + 2/s", "", p50, "", "", f"{longest_s:.2f} s"])
    section.goals.append(
        Goal("longest wait (s) beside two a second that come and go", STAY_GOAL_S, longest_s, False)
    )
    section.notes.append(
        "1 + 2/s: one that stays, beside two a second that open, append once and close"
    )
    section.notes.append(
        f"uploaded: batches of {UPLOADED_BYTES // KIB} KiB; riding: of {RIDING_BYTES // KIB} KiB, "
        "which stand in their queue entries; times are from produce() to acceptance. Beside its "
        "batches a producer looks at the floor once a chunk (256 batches, or 128 KiB), and renews "
        "its mark every ten minutes"
    )
    return section


async def _contend(count: int, flushes: int, size_bytes: int) -> tuple[float, list[float]]:
    backend = SlowBackend()
    await create_stream(Store(backend), "busy")
    payload = bytes(size_bytes - KIB)
    all_open = asyncio.Barrier(count)

    async def one_flush(producer: Producer) -> float:
        began_s = runtime.monotonic_s()
        handle = await producer.produce([payload])
        await producer.flush()
        await handle
        return runtime.monotonic_s() - began_s

    async def run(number: int) -> tuple[int, list[float]]:
        store = Store(backend)
        async with Producer(store, "busy", linger_ms=LINGER_NEVER_MS) as producer:
            # The first batch of a producer may have to begin a chunk; the rest is how it goes on.
            await one_flush(producer)
            await all_open.wait()
            await runtime.sleep(runtime.random().uniform(0, FLUSH_S))
            before = store.stats.requests
            under_way = []
            for _ in range(flushes):
                under_way.append(runtime.spawn(one_flush(producer), name=f"flush of {number}"))
                await runtime.sleep(FLUSH_S)
            waits_s = await asyncio.gather(*under_way)
            return store.stats.requests - before, waits_s

    found = await asyncio.gather(*(run(number) for number in range(count)))
    waits_s = [wait_s for _, waits_s in found for wait_s in waits_s]
    return sum(requests for requests, _ in found) / len(waits_s), waits_s


async def _stay(flushes: int) -> list[float]:
    """How long one that stays waits, beside others that come, append once and go."""
    backend = SlowBackend()
    await create_stream(Store(backend), "busy")

    async def come_and_go() -> None:
        async with Producer(Store(backend), "busy", linger_ms=0) as producer:
            await producer.produce([b"one"])

    async def others() -> None:
        for number in range(round(flushes * FLUSH_S / COME_AND_GO_S)):
            under_way.append(runtime.spawn(come_and_go(), name=f"other {number}"))
            await runtime.sleep(COME_AND_GO_S)

    under_way = [runtime.spawn(others(), name="others")]
    waits_s = []
    async with Producer(Store(backend), "busy", linger_ms=0) as producer:
        for _ in range(flushes):
            began_s = runtime.monotonic_s()
            await (await producer.produce([b"one of many"]))
            waits_s.append(runtime.monotonic_s() - began_s)
            await runtime.sleep(FLUSH_S)
    for task in under_way:
        await task
    return waits_s
