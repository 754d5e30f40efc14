"""Many who append at once all land, and none starves."""

from __future__ import annotations

import asyncio
from statistics import median

import pytest

from headwater.core import runtime
from headwater.store import Store
from headwater.testing import Faults, FaultyStore, Simulation, simulate
from tests.buffer.native.given import Cloud, Queue, batch
from tests.buffer.native.watched import Watched, client
from tests.store.scripted import virtual

APPENDS_EACH = 12
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
    found = await queue.queue_reader().after(None, 1000)
    assert [one.sequence for one in found] == list(range(192))
    assert [one.first_lsn for one in found] == list(range(1, 193))
    for number in range(64):
        mine = [one.producer_sequence for one in found if one.producer == f"p{number}"]
        assert mine == [1, 2, 3]
    assert max(took_s) <= 10 * median(took_s)


async def _many(simulation: Simulation, producers: int) -> tuple[list[float], Queue]:
    """So many producers, each appending as fast as it is answered; how long each append took."""
    far = FaultyStore(
        Cloud(versions_by_content=True),
        Faults(),
        simulation.random_source("faults"),
        latency_s=2 * REQUEST_S,
    )
    queue = await Queue(far).create()
    took_s: list[float] = []

    async def produce(name: str) -> None:
        appender = queue.appender(name, store=Store(far))
        await appender.open()
        for sequence in range(1, APPENDS_EACH + 1):
            started_s = runtime.monotonic_s()
            await appender.append([batch(sequence)])
            took_s.append(runtime.monotonic_s() - started_s)

    await asyncio.gather(*(produce(f"p{number}") for number in range(producers)))
    return took_s, queue


@pytest.mark.parametrize("producers", [1, 4, 16])
def test_of_some_who_never_pause_all_land_and_none_starves(producers: int) -> None:
    async def main(simulation: Simulation) -> None:
        took_s, queue = await _many(simulation, producers)
        entries = await queue.entries()
        assert len(entries) == producers * APPENDS_EACH
        for number in range(producers):
            own = [sequence for name, sequence in entries if name == f"p{number}"]
            assert own == list(range(1, APPENDS_EACH + 1))
        assert max(took_s) < 10 * median(took_s)

    simulate(main, seed=3)


@virtual
async def test_many_who_come_and_go_do_not_starve_one_who_stays() -> None:
    queue = await Queue(Cloud(versions_by_content=True)).create()

    async def come_and_go(number: int) -> None:
        await runtime.sleep(number * 0.5)
        _, store = client(queue, latency_s=REQUEST_S)
        appender = await queue.opened(f"task-{number}", store=store)
        await appender.append([batch(1)])
        await appender.close()

    others = [asyncio.ensure_future(come_and_go(number)) for number in range(200)]
    _, store = client(queue, latency_s=REQUEST_S)
    stays = await queue.opened("stays", store=store)
    took_s = []
    for sequence in range(1, 80):
        started_s = runtime.monotonic_s()
        await stays.append([batch(sequence)])
        took_s.append(runtime.monotonic_s() - started_s)
        await runtime.sleep(1.0)
    await asyncio.gather(*others)
    assert max(took_s) <= 10 * REQUEST_S


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
