"""Many who append at once all land, none starves, and a slow object is written slowly."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import pairwise
from statistics import median

from headwater.core import runtime
from headwater.store import Store
from tests.buffer.native.given import Cloud, Queue, batch
from tests.buffer.native.watched import Watched, client
from tests.store.scripted import virtual

REQUEST_S = 0.05


@virtual
async def test_of_sixty_four_appenders_all_land_and_none_starves() -> None:
    queue = await Queue(Cloud(versions_by_content=True)).create()
    took_s: list[float] = []

    async def produce(number: int) -> None:
        _, store = client(queue, latency_s=REQUEST_S)
        appender = await queue.opened(f"p{number}", store=store)
        for sequence in range(1, 4):
            await runtime.sleep(runtime.random().uniform(0, 1.0))
            started_s = runtime.monotonic_s()
            await appender.append([batch(sequence)])
            took_s.append(runtime.monotonic_s() - started_s)

    await asyncio.gather(*(produce(number) for number in range(64)))
    found = await queue.looker().after(None, 1000)
    assert [one.sequence for one in found] == list(range(192))
    assert [one.first_lsn for one in found] == list(range(1, 193))
    for number in range(64):
        mine = [one.producer_sequence for one in found if one.producer == f"p{number}"]
        assert mine == [1, 2, 3]
    assert max(took_s) <= 10 * median(took_s)


def _closest_writes_s(backend: Watched) -> float:
    """The least time between two writes of one object."""
    at_s: defaultdict[str, list[float]] = defaultdict(list)
    for (operation, key), when_s in zip(backend.calls, backend.at_s, strict=True):
        if operation.startswith("put"):
            at_s[key].append(when_s)
    return min(later - earlier for times in at_s.values() for earlier, later in pairwise(times))


@virtual
async def test_a_hundred_appends_a_second_write_no_object_twice_in_one() -> None:
    queue = await Queue(Cloud(versions_by_content=True)).create()
    backend, store = client(queue)
    appender = queue.appender(store=store, pace_s=1.0)
    await appender.open()
    await runtime.sleep(1.0)
    started_s = runtime.monotonic_s()
    for sequence in range(1, 1001):
        await appender.append([batch(sequence)])
        await runtime.sleep(0.01)
    # One second is for the chunk that was open at the beginning.
    assert runtime.monotonic_s() - started_s < 10 + 1.1
    assert _closest_writes_s(backend) >= 1.0
    assert await queue.entries() == [("p", n) for n in range(1, 1001)]


@virtual
async def test_whoever_appends_seldom_adds_to_one_chunk_at_any_pace() -> None:
    queue = await Queue(Cloud(versions_by_content=True)).create()
    backend, store = client(queue)
    appender = queue.appender(store=store, pace_s=1.0)
    await appender.open()
    for sequence in range(1, 21):
        await appender.append([batch(sequence)])
        await runtime.sleep(2.0)
    assert len((await queue.chunk(1)).entries) == 20
    assert _closest_writes_s(backend) >= 1.0


@virtual
async def test_without_a_pace_a_lone_appender_never_waits() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    started_s = runtime.monotonic_s()
    for sequence in range(1, 51):
        await appender.append([batch(sequence)])
    assert runtime.monotonic_s() == started_s
    assert len((await queue.chunk(1)).entries) == 50


@virtual
async def test_one_in_company_looks_before_it_writes() -> None:
    queue = await Queue().create()
    one, other = await queue.opened("one"), await queue.opened("other")
    backend = Watched(queue.backend)
    third = await queue.opened("third", store=Store(backend))
    for sequence in range(1, 6):
        await one.append([batch(sequence)])
        await other.append([batch(sequence)])
        await third.append([batch(sequence)])
    # The first race is lost; from then on the end is looked for first, and none is.
    assert third.counters.conflicts <= 1
    assert third.counters.conflict_rate <= 100 / third.counters.writes
