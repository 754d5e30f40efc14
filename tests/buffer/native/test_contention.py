"""Many producers on one partition: all of them land, and none starves."""

from __future__ import annotations

import asyncio
import statistics

import pytest

from headwater.core import runtime
from headwater.store import Store
from headwater.testing import Faults, FaultyStore, Simulation, simulate
from tests.buffer.native.given import Cloud, Queue, batch

APPENDS_EACH = 12
REQUEST_S = 0.05


async def _many(simulation: Simulation, producers: int) -> tuple[list[float], Queue]:
    """So many producers, each appending as fast as it is answered; how long each append took."""
    far = FaultyStore(
        Cloud(versions_by_content=True),
        Faults(),
        simulation.stream("faults"),
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
def test_all_of_them_land_and_none_starves(producers: int) -> None:
    async def main(simulation: Simulation) -> None:
        took_s, queue = await _many(simulation, producers)
        entries = await queue.entries()
        assert len(entries) == producers * APPENDS_EACH
        for number in range(producers):
            own = [sequence for name, sequence in entries if name == f"p{number}"]
            assert own == list(range(1, APPENDS_EACH + 1))
        assert max(took_s) < 10 * statistics.median(took_s)

    simulate(main, seed=3)
