"""A floor settles by the time that collectors saw pass, and by no clock that somebody sets."""

from __future__ import annotations

import asyncio

import pytest

from headwater.buffer.queue.contract import AppendedBatch, Collected
from headwater.buffer.queue.native.collector import NativeCollector
from headwater.core import limits, runtime
from headwater.store import MemoryBackend, Object, Version
from headwater.store.backend import Condition
from headwater.store.objects import Buffer
from headwater.testing import Simulation, simulate
from headwater.testing.sim import SimRuntime
from tests.buffer.native.collected import a_queue, chunk_numbers
from tests.buffer.native.given import NOTHING_KEPT, Queue, batch
from tests.buffer.native.watched import acknowledge_everything, client, insist
from tests.store.scripted import after, virtual

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


def step_clock(ms: int) -> None:
    """Set the wall clock of everybody in this test, and with it the store's."""
    mine = runtime.current()
    assert isinstance(mine, SimRuntime)
    mine.jump(ms)


class NeverEarlier(MemoryBackend):
    """An object that is replaced never gets an earlier time than it had, as in a directory."""

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        before = self._objects.get(key)
        version = await super().put(key, data, condition)
        written = self._objects[key]
        if before is not None and written.meta.modified_ms < before.meta.modified_ms:
            meta = written.meta._replace(modified_ms=before.meta.modified_ms)
            self._objects[key] = Object(meta, written.data)
        return version


@pytest.mark.parametrize(("ahead_ms", "then_ms"), [(0, 2 * MINUTE_MS), (10 * MINUTE_MS, 0)])
@virtual
async def test_a_step_of_the_stores_clock_loses_nothing_that_was_accepted(
    ahead_ms: int, then_ms: int
) -> None:
    queue = await Queue(NeverEarlier(versions_by_content=True)).create()
    collector = queue.collector()
    step_clock(ahead_ms)
    await collector.collect(NOTHING_KEPT)
    step_clock(-ahead_ms)
    backend, store = client(queue)
    stalled, other = await queue.opened(store=store), await queue.opened("other")
    await other.append([batch(1)])
    await queue.close_last(other)
    await stalled._tail.find()

    async def meanwhile() -> None:
        await other.append([batch(2)])
        await queue.close_last(other)
        await acknowledge_everything(queue)
        await collector.collect(NOTHING_KEPT)
        step_clock(then_ms)
        for _ in range(3):
            await collector.collect(NOTHING_KEPT)
        step_clock(-then_ms)

    # It creates chunk 2 while its lease holds. Were the real one deleted, that would succeed.
    backend.on("put_if_absent", f"chunks/{2:020d}", after(meanwhile))
    assert await insist(stalled.append, [batch(1)]) == [AppendedBatch(2, 3)]
    assert await queue.entries() == [("p", 1)]


@pytest.mark.parametrize("step_ms", [DAY_MS, -DAY_MS])
@virtual
async def test_a_floor_settles_by_the_time_that_passed_whatever_the_wall_clock_does(
    step_ms: int,
) -> None:
    queue, _ = await a_queue(3, acked=3)
    collector = queue.collector()
    assert (await collector.collect(NOTHING_KEPT)).batches_expired == 3
    step_clock(step_ms)
    await runtime.sleep(limits.FLOOR_SETTLE_S - 1)
    assert (await collector.collect(NOTHING_KEPT)).chunks_expired == 0
    await runtime.sleep(1.5)
    assert (await collector.collect(NOTHING_KEPT)).chunks_expired == 4
    assert await chunk_numbers(queue) == [4]


class Slow(MemoryBackend):
    """Every request takes a tenth of a second."""

    async def head(self, key: str) -> object:  # type: ignore[override]
        await runtime.sleep(0.1)
        return await super().head(key)


@virtual
async def test_jobs_too_short_for_a_floor_settle_it_together() -> None:
    queue, _ = await a_queue(3, acked=3, shape=Slow)
    passes, spent_s = 0, 0.0
    while await chunk_numbers(queue) != [4]:
        started_s = runtime.monotonic_s()
        # Each run of the job is another process, which counts only what it sees itself.
        await queue.collector().collect(NOTHING_KEPT)
        spent_s += runtime.monotonic_s() - started_s
        passes += 1
        await runtime.sleep(3600)
    assert passes > 100
    assert spent_s >= limits.FLOOR_SETTLE_S


@virtual
async def test_collectors_at_the_same_time_count_no_time_twice() -> None:
    queue, _ = await a_queue(3, acked=3)
    crowd = [queue.collector() for _ in range(8)]

    async def collect(one: NativeCollector) -> Collected:
        return await one.collect(NOTHING_KEPT)

    await asyncio.gather(*map(collect, crowd))
    passed_s = 0.0
    while passed_s < limits.FLOOR_SETTLE_S - 1:
        assert sum(one.chunks_expired for one in await asyncio.gather(*map(collect, crowd))) == 0
        await runtime.sleep(7.0)
        passed_s += 7.0
    await runtime.sleep(1.0)
    assert sum(one.chunks_expired for one in await asyncio.gather(*map(collect, crowd))) >= 4


@virtual
async def test_a_collector_that_comes_later_begins_where_the_last_one_was() -> None:
    queue, _ = await a_queue(3, acked=3)
    first = queue.collector()
    await first.collect(NOTHING_KEPT)
    await runtime.sleep(limits.FLOOR_SETTLE_S - 10)
    await first.collect(NOTHING_KEPT)
    await runtime.sleep(1000)  # what passed while none was there to see it does not count
    second = queue.collector()
    assert (await second.collect(NOTHING_KEPT)).chunks_expired == 0
    await runtime.sleep(10.1)
    assert (await second.collect(NOTHING_KEPT)).chunks_expired == 4


@pytest.mark.parametrize("back", [False, True])
def test_a_machine_that_slept_relies_on_no_floor_of_before(back: bool) -> None:
    """Neither the monotonic clock, which stood still, nor a wall clock set back tells of it."""

    async def main(simulation: Simulation) -> None:
        queue = await Queue().create()
        backend, store = client(queue)
        writer = simulation.process("writer")
        appender = await writer.spawn(queue.opened(store=store))
        await writer.spawn(appender.append([batch(1)]))
        backend.operations()
        writer.suspend(3600)
        if back:
            writer.step_clock(-3_600_000)
        await writer.spawn(appender.append([batch(2)]))
        assert backend.requests()[-1] == ("get", "q1/queue.json")

    simulate(main, stall_max_s=0)
