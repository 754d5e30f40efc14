"""Who was silent for long is told to stop, and forgotten then; who is there stays known."""

from __future__ import annotations

import pytest

from headwater.buffer.queue.contract import ProducerState
from headwater.buffer.queue.native.appender import NativeAppender
from headwater.buffer.queue.native.producers import SILENT_LOOKS, shard_name
from headwater.buffer.queue.retention import Retention
from headwater.core import limits, runtime
from headwater.core.errors import Fenced
from headwater.testing import Simulation, simulate
from headwater.testing.sim import SimRuntime
from tests.buffer.native.given import NOTHING_KEPT, Queue, batch
from tests.buffer.native.watched import acknowledge_everything
from tests.store.scripted import virtual

EXPIRY_S = limits.PRODUCER_EXPIRY_MS / 1000


async def _pass(queue: Queue) -> None:
    """Somebody is there, all is acknowledged, and the collector comes by."""
    await queue.fill(1, "lively")
    await acknowledge_everything(queue)
    await queue.collector().collect(NOTHING_KEPT, full=True)


def _stands_still(producer: NativeAppender) -> None:
    """Its machine does: it tells nobody any more that it is there."""
    assert producer._keeping is not None
    producer._keeping.cancel()


async def _a_week(queue: Queue) -> None:
    """So much time passes, and collectors come by day after day; the last one is yet to come."""
    for day in range(SILENT_LOOKS):
        if day:
            await queue.collector().collect(NOTHING_KEPT)
        await runtime.sleep(EXPIRY_S / SILENT_LOOKS + 600)


async def _silent(queue: Queue) -> None:
    """Somebody else goes on for longer than a silent producer is remembered."""
    other = await queue.opened("other")
    await other.append([batch(1)])
    await acknowledge_everything(queue)
    await queue.collector().collect(NOTHING_KEPT)
    await _a_week(queue)
    await other.append([batch(2, min_ms=runtime.wall_ms())])
    await acknowledge_everything(queue)
    for sequence in range(3, 6):
        await queue.collector().collect(NOTHING_KEPT)
        await other.append([batch(sequence, min_ms=runtime.wall_ms())])
        await acknowledge_everything(queue)


@virtual
async def test_a_forgotten_producer_is_refused_and_its_id_begins_anew() -> None:
    queue = await Queue().create()
    forgotten = await queue.opened()
    await forgotten.append([batch(1)])
    _stands_still(forgotten)
    await _silent(queue)
    shard = await queue.store.get(f"{queue.chunks.prefix}/producers/{shard_name('p')}.json")
    assert b'"dropped":1' in bytes(shard.data)
    with pytest.raises(Fenced, match="silent for so long"):
        await forgotten.append([batch(2)])
    assert ("p", 2) not in await queue.entries()
    assert await queue.appender().open() == ProducerState(0, None, is_known=False)


@pytest.mark.parametrize("skew_days", [-8, 8])
def test_no_producers_clock_makes_it_silent(skew_days: int) -> None:
    async def main(sim: Simulation) -> None:
        queue = await Queue().create()
        appended: list[int] = []

        async def device() -> None:
            appender = await queue.opened("device")
            for sequence in range(1, 41):
                await appender.append([batch(sequence, min_ms=runtime.wall_ms())])
                appended.append(sequence)
                await runtime.sleep(EXPIRY_S / 20)

        skewed = sim.process("device", skew_ms=skew_days * 24 * 3600 * 1000)
        running = skewed.spawn(device())
        right = await queue.opened("right")
        for sequence in range(1, 41):
            await runtime.sleep(EXPIRY_S / 20)
            await right.append([batch(sequence, min_ms=runtime.wall_ms())])
            await acknowledge_everything(queue)
            await queue.collector().collect(NOTHING_KEPT)
        await running
        assert len(appended) == 40
        assert (await queue.appender("device").open()).producer_sequence == 40

    simulate(main, stall_max_s=0)


@pytest.mark.parametrize("steps_days", [(365,), (-365, 365), (8, -8, 8)])
@virtual
async def test_no_step_of_the_stores_clock_makes_a_producer_silent(
    steps_days: tuple[int, ...],
) -> None:
    queue = await Queue().create()
    idle = await queue.opened("idle")
    await idle.append([batch(1)])
    _stands_still(idle)
    await _pass(queue)
    mine = runtime.current()
    assert isinstance(mine, SimRuntime)
    for days in steps_days:
        mine.jump(days * 24 * 3600 * 1000)
        for _ in range(3):
            await _pass(queue)
    assert (await idle.append([batch(2)]))[0].sequence > 1
    assert (await queue.appender("idle").open()).producer_sequence == 2


@virtual
async def test_who_is_closed_is_refused_before_its_mark_is_dropped() -> None:
    queue = await Queue().create()
    sleeper = await queue.opened("sleeper")
    await sleeper.append([batch(1)])
    _stands_still(sleeper)
    await _pass(queue)
    await _a_week(queue)
    await _pass(queue)
    with pytest.raises(Fenced, match="silent for so long"):
        await sleeper.append([batch(2)])
    assert await queue.appender("sleeper").open() == ProducerState(1, None, 0)


@virtual
async def test_who_comes_back_between_closing_and_forgetting_goes_on() -> None:
    queue = await Queue().create()
    await queue.fill(2, "sleeper")
    await _pass(queue)
    await _a_week(queue)
    await _pass(queue)
    again = queue.appender("sleeper")
    assert (await again.open()).producer_sequence == 2
    await again.append([batch(3)])
    for _ in range(3):
        await _pass(queue)
    assert (await queue.appender("sleeper").open()).producer_sequence == 3


@virtual
async def test_an_open_producer_without_anything_to_append_stays_known() -> None:
    queue = await Queue().create()
    idle = await queue.opened()
    await idle.append([batch(1)])
    await _silent(queue)
    assert (await idle.append([batch(2)]))[0].sequence == 6
    assert (await queue.appender().open()).producer_sequence == 2


@virtual
async def test_an_open_producer_that_never_appended_stays_known() -> None:
    queue = await Queue().create()
    idle = await queue.opened()
    await _silent(queue)
    assert (await idle.append([batch(1)]))[0].sequence == 5


@virtual
async def test_a_silent_producer_of_which_something_is_kept_is_not_forgotten() -> None:
    queue = await Queue().create()
    silent, other = await queue.opened(), await queue.opened("other")
    await silent.append([batch(1, metadata=b"mine")])
    await silent.renew_record()
    _stands_still(silent)
    await runtime.sleep(EXPIRY_S + 1000)
    for sequence in range(1, 5):
        await other.append([batch(sequence, min_ms=runtime.wall_ms())])
        await acknowledge_everything(queue)
        report = await queue.collector().collect(Retention(None))
        assert report.producers_forgotten == 0
    await silent.append([batch(2, metadata=b"mine too")])  # nor was it told to stop
    assert await queue.appender().open() == ProducerState(2, b"mine too", 5)


@virtual
async def test_what_is_forgotten_is_reported_once() -> None:
    queue = await Queue().create()
    silent = await queue.opened()
    await silent.append([batch(1)])
    _stands_still(silent)
    await acknowledge_everything(queue)
    await queue.collector().collect(NOTHING_KEPT)
    await _a_week(queue)
    other, forgotten = await queue.opened("other"), []
    for sequence in range(1, 6):
        await other.append([batch(sequence, min_ms=runtime.wall_ms())])
        await acknowledge_everything(queue)
        forgotten.append((await queue.collector().collect(NOTHING_KEPT)).producers_forgotten)
    assert sum(forgotten) == 1
    assert forgotten[0] == 0  # it is told to stop first, and forgotten once that has been passed


@virtual
async def test_who_said_goodbye_for_good_is_forgotten_without_a_wait_for_its_silence() -> None:
    queue = await Queue().create()
    for number in range(3):
        passing = await queue.opened(f"passing-{number}")
        await passing.append([batch(1)])
        await passing.close(for_good=True)
    staying = await queue.opened("staying")
    await staying.append([batch(1)])
    await staying.close()
    await _pass(queue)
    assert (await queue.collector().collect(NOTHING_KEPT)).producers_forgotten == 0
    assert (await queue.appender("staying").open()).producer_sequence == 1
    for number in range(3):
        again = await queue.appender(f"passing-{number}").open()
        assert again == ProducerState(0, None, is_known=False)


@virtual
async def test_who_said_goodbye_for_good_stays_known_while_something_of_it_is_kept() -> None:
    queue = await Queue().create()
    passing = await queue.opened("passing")
    await passing.append([batch(1, metadata=b"m")])
    await passing.close(for_good=True)
    await queue.fill(2, "other")
    await queue.collector().collect(NOTHING_KEPT, full=True)
    assert await queue.appender("passing").open() == ProducerState(1, b"m", 0)


@virtual
async def test_a_goodbye_for_good_leaves_a_successor_alone() -> None:
    queue = await Queue().create()
    before = await queue.opened("p")
    await before.append([batch(1)])
    after = await queue.opened("p")
    await before.close(for_good=True)
    await after.append([batch(2)])
    await _pass(queue)
    assert (await queue.appender("p").open()).producer_sequence == 2
