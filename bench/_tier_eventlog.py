"""The log of events in object storage, at 50 ms a request in virtual time, and in processor time.

Virtual time says what the requests cost: it is exact, and the same on every machine. Processor time
says what the code adds to each of them, on a store in memory that answers at once.
"""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import TypeVar

from bench._report import Goal, Section
from bench._slow_store import REQUEST_S, SlowBackend
from headwater.core import runtime
from headwater.core.limits import EVENT_READS_AT_ONCE
from headwater.store import Backend, MemoryBackend, Store
from headwater.testing import simulate
from headwater.tier import (
    SegmentId,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TopicIdPartition,
    encode_event,
)
from headwater.tier.eventlog import Compactor, EventDelivered, SnapshotDelivered, StoredEventLog

T = TypeVar("T")

EVENTS = 10_000
PUBLISHED = 2_000
PUBLISHERS = (2, 4, 16)
PLACE = TopicIdPartition(uuid.UUID(int=0xCA), "orders", 7)
RARE_S = 120.0
LATENCY_GOAL = 1.05
REQUESTS_GOAL = 1.05
RARE_REQUESTS_GOAL = 2.05
CATCH_UP_GOAL = 0.8


def sections(quick: bool) -> list[Section]:
    """What publishing, following and high-water marks cost."""
    divisor = 10 if quick else 1
    events = EVENTS // divisor
    return [
        publishing(PUBLISHED // divisor),
        catching_up(events),
        looking(events),
        processor_time(events),
    ]


def payload(number: int) -> bytes:
    """An event of a segment: copies that begin, and finish."""
    segment = SegmentId(PLACE, uuid.UUID(int=number // 2 + 1))
    start = 1000 * (number // 2)
    if number % 2:
        return encode_event(SegmentUpdate(segment, 1, 1, SegmentState.COPY_FINISHED))
    began = SegmentMetadata(segment, start, start + 999, 1, 1, 1, ((1, start),), 1 << 26)
    return encode_event(began)


def in_virtual_time(scenario: Callable[[], Awaitable[T]]) -> T:
    """Run it in the simulator, without the stalls that it looks for bugs with."""
    found: list[T] = []

    async def run(_: object) -> None:
        found.append(await scenario())

    simulate(run, seed=1, stall_max_s=0, max_steps=100_000_000)
    return found[0]


async def opened(backend: Backend) -> tuple[StoredEventLog, Store]:
    """A handle of its own, and the store whose requests it counts."""
    store = Store(backend)
    return await StoredEventLog.open(store, partition_count=1), store


def publishing(count: int) -> Section:
    """An event, against creating an object of its size and nothing else."""
    section = Section(
        f"Publishing at {REQUEST_S * 1e3:.0f} ms a request (virtual time), {count:,} events to one "
        "partition",
        ["publishers", "p50 ms", "p99 ms", "÷ put-if-absent", "requests an event", "events/s"],
    )
    spent = in_virtual_time(lambda: _publish(count, 1, 0.0))
    section.rows.append(_row("one, without pause", spent))
    _goals(section, "event without pause", spent, REQUESTS_GOAL)
    spent = in_virtual_time(lambda: _publish(count // 10, 1, RARE_S))
    section.rows.append(_row(f"one, every {RARE_S:.0f} s", spent))
    _goals(section, f"event every {RARE_S:.0f} s", spent, RARE_REQUESTS_GOAL)
    for publishers in PUBLISHERS:
        spent = in_virtual_time(lambda n=publishers: _publish(count, n, 1.0))  # type: ignore[misc]
        section.rows.append(_row(f"{publishers}, each once a second", spent))
    return section


def _row(name: str, spent: tuple[list[float], int, float]) -> list[str]:
    took_s, requests, all_s = spent
    p50_s = statistics.median(took_s)
    p99_s = sorted(took_s)[len(took_s) * 99 // 100]
    return [
        name,
        f"{p50_s * 1e3:.0f}",
        f"{p99_s * 1e3:.0f}",
        f"{p50_s / REQUEST_S:.2f}",
        f"{requests / len(took_s):.2f}",
        f"{len(took_s) / all_s:.1f}",
    ]


def _goals(
    section: Section, what: str, spent: tuple[list[float], int, float], requests_goal: float
) -> None:
    took_s, requests, _ = spent
    ratio = statistics.median(took_s) / REQUEST_S
    section.goals += [
        Goal(f"{what}, p50 ÷ put-if-absent", LATENCY_GOAL, ratio, at_least=False),
        Goal(f"{what}, requests", requests_goal, requests / len(took_s), at_least=False),
    ]


async def _publish(count: int, publishers: int, pause_s: float) -> tuple[list[float], int, float]:
    """How long each event took, how many requests all of them took, and how long all did."""
    backend = SlowBackend()
    handles = [await opened(backend) for _ in range(publishers)]
    await handles[0][0].publish(0, payload(0))
    before = sum(store.stats.requests for _, store in handles)
    took_s: list[float] = []

    async def publish_some(log: StoredEventLog) -> None:
        for number in range(count // publishers):
            if pause_s:
                await runtime.sleep(pause_s)
            began_s = runtime.monotonic_s()
            await log.publish(0, payload(number))
            took_s.append(runtime.monotonic_s() - began_s)

    began_s = runtime.monotonic_s()
    await asyncio.gather(*(publish_some(log) for log, _ in handles))
    all_s = runtime.monotonic_s() - began_s
    return took_s, sum(store.stats.requests for _, store in handles) - before, all_s


def catching_up(count: int) -> Section:
    """Everything from the beginning, against asking for the same objects and doing nothing."""
    section = Section(
        f"Catching up with {count:,} events at {REQUEST_S * 1e3:.0f} ms a request (virtual time)",
        ["way", "seconds", "requests", "÷ raw gets"],
    )
    raw_s = in_virtual_time(lambda: _raw_gets(count))
    section.rows.append(
        [f"raw gets, {EVENT_READS_AT_ONCE} at once", f"{raw_s:.2f}", f"{count}", ""]
    )
    for name, compacted in (("events one by one", False), ("a snapshot of them", True)):
        took_s, requests = in_virtual_time(
            lambda compacted=compacted: _catch_up(count, compacted=compacted)  # type: ignore[misc]
        )
        section.rows.append([name, f"{took_s:.2f}", f"{requests}", f"{took_s / raw_s:.3f}"])
        if not compacted:
            what = "speed of catching up ÷ raw gets"
            section.goals.append(Goal(what, CATCH_UP_GOAL, raw_s / took_s))
    return section


async def _filled(count: int) -> MemoryBackend:
    backend = MemoryBackend()
    log, _ = await opened(backend)
    for number in range(count):
        await log.publish(0, payload(number))
    return backend


async def _raw_gets(count: int) -> float:
    store = Store(SlowBackend(await _filled(count)))
    offsets = iter(range(count))

    async def ask() -> None:
        for offset in offsets:
            await store.get(f"metadata/0/{offset:020d}")

    began_s = runtime.monotonic_s()
    await asyncio.gather(*(ask() for _ in range(EVENT_READS_AT_ONCE)))
    return runtime.monotonic_s() - began_s


async def _catch_up(count: int, *, compacted: bool) -> tuple[float, int]:
    backend = await _filled(count)
    if compacted:
        log, _ = await opened(backend)
        await Compactor(log).compact(0, every_events=1)
    log, store = await opened(SlowBackend(backend))
    before, began_s = store.stats.requests, runtime.monotonic_s()
    await _follow_to(log, count)
    spent = runtime.monotonic_s() - began_s, store.stats.requests - before
    await log.close()
    return spent


async def _follow_to(log: StoredEventLog, end: int) -> None:
    subscription = await log.subscribe({0: 0})
    position = 0
    while position < end:
        item = await anext(subscription)
        if isinstance(item, SnapshotDelivered):
            position = item.through_offset + 1
        elif isinstance(item, EventDelivered):
            position += 1
        else:
            raise AssertionError(f"nothing is wrong, and yet {item}")
    await subscription.close()


def looking(count: int) -> Section:
    """What a look for the high-water mark of one partition costs, by what is new since the last."""
    section = Section(
        "A high-water mark, requests for one partition", ["events since the last look", "requests"]
    )

    async def look(new: int) -> int:
        backend = MemoryBackend()
        log, store = await opened(SlowBackend(backend))
        publisher, _ = await opened(backend)
        await log.high_water_marks()
        for number in range(new):
            await publisher.publish(0, payload(number))
        before = store.stats.requests
        await log.high_water_marks()
        return store.stats.requests - before

    for new in sorted({0, 1, 10, 100, 1000, count}):
        requests = in_virtual_time(lambda new=new: look(new))  # type: ignore[misc]
        section.rows.append([f"{new:,}", f"{requests}"])
    return section


def processor_time(count: int) -> Section:
    """What the code costs on a store that answers at once."""
    section = Section(
        f"Processor time on a store in memory, {count:,} events, medians of 3",
        ["", "µs an event", "µs of the bare request"],
    )

    async def spent() -> tuple[float, float, float, float]:
        raw, backend = Store(MemoryBackend()), MemoryBackend()
        log, _ = await opened(backend)
        events = [payload(number) for number in range(count)]
        creating = await _timed(_create_all(raw, events))
        publishing = await _timed(_publish_all(log, events))
        getting = await _timed(_get_all(raw, count))
        reader, _ = await opened(backend)
        following = await _timed(_follow_to(reader, count))
        return publishing, creating, following, getting

    rounds = [asyncio.run(spent()) for _ in range(3)]
    medians = [1e6 * statistics.median(column) / count for column in zip(*rounds, strict=True)]
    section.rows += [
        ["published", f"{medians[0]:.0f}", f"{medians[1]:.0f} (put-if-absent)"],
        ["followed", f"{medians[2]:.0f}", f"{medians[3]:.0f} (get)"],
    ]
    return section


async def _timed(work: Awaitable[object]) -> float:
    began_s = time.process_time()
    await work
    return time.process_time() - began_s


async def _create_all(store: Store, events: list[bytes]) -> None:
    for number, event in enumerate(events):
        token = runtime.new_token()
        await store.put_if_absent(f"raw/{number:020d}", token + event, token=token)


async def _publish_all(log: StoredEventLog, events: list[bytes]) -> None:
    for event in events:
        await log.publish(0, event)


async def _get_all(store: Store, count: int) -> None:
    for number in range(count):
        await store.get(f"raw/{number:020d}")
