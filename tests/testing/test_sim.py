"""The simulator: same seed same run, clocks that lie, chance and threads of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from headwater.core import runtime
from headwater.testing.sim import Event, Simulation, simulate

YEAR_2026_NS = 1_767_225_600 * 10**9
DAY_NS = 86_400 * 10**9


async def busy(sim: Simulation) -> None:
    """A bit of everything that could differ between two runs."""

    async def actor(name: str) -> None:
        for _ in range(5):
            await runtime.sleep(runtime.random().random())
            await runtime.run_blocking(len, name)
            sim.record("turn", actor=name, token=runtime.new_token(), ulid=runtime.new_ulid())

    names = {f"actor {number}" for number in range(8)}
    tasks = {sim.spawn(actor(name), name=name) for name in sorted(names)}
    done, _ = await asyncio.wait(tasks)
    for task in done:
        sim.record("ended", task=task.get_name(), names=names, self=sim)


def main() -> None:
    """What the child processes of the test below run."""
    print(simulate(busy, seed=int(sys.argv[1])).fingerprint)


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = simulate(busy, seed=7), simulate(busy, seed=7)

    assert first.fingerprint == second.fingerprint
    assert list(map(str, first.history)) == list(map(str, second.history))
    assert (first.steps, first.virtual_s) == (second.steps, second.virtual_s)


def test_another_seed_gives_another_run() -> None:
    assert len({simulate(busy, seed=seed).fingerprint for seed in range(20)}) == 20


def test_processes_and_hash_seeds_agree_on_the_fingerprint() -> None:
    fingerprints = {_fingerprint_of_a_child(hash_seed) for hash_seed in ("0", "1", "4711")}

    assert fingerprints == {simulate(busy, seed=11).fingerprint}


def _fingerprint_of_a_child(hash_seed: str) -> str:
    root = Path(__file__).parents[2]
    child = subprocess.run(
        [sys.executable, "-m", "tests.testing.test_sim", "11"],
        cwd=root,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    )
    return child.stdout.strip()


def test_the_order_of_steps_alone_changes_the_fingerprint() -> None:
    async def silent(sim: Simulation) -> None:
        await asyncio.gather(*(asyncio.sleep(0) for _ in range(10)))

    assert len({simulate(silent, seed=seed, stall_max_s=0).fingerprint for seed in range(10)}) == 10


def test_a_planted_race_is_found() -> None:
    async def lost_update(sim: Simulation) -> None:
        counter = 0

        async def increment() -> None:
            nonlocal counter
            seen = counter
            await asyncio.sleep(0)
            counter = seen + 1

        # FIFO order would let the second begin only when the first has ended.
        async def later() -> None:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await increment()

        await asyncio.gather(increment(), later())
        assert counter == 2, "lost update"

    asyncio.run(lost_update(None))  # type: ignore[arg-type]
    failing = [seed for seed in range(50) if _fails(seed, lost_update)]
    assert failing
    assert len(failing) < 50


def _fails(seed: int, scenario: object) -> bool:
    try:
        simulate(scenario, seed=seed)  # type: ignore[arg-type]
    except AssertionError:
        return True
    return False


def test_a_failure_says_how_to_repeat_it() -> None:
    async def scenario(sim: Simulation) -> None:
        for number in range(30):
            sim.record("step", number=number)
        raise LookupError("planned")

    with pytest.raises(LookupError) as raised:
        simulate(scenario, seed=42, replay="make torture SEED={seed} ROUNDS=1")

    (note,) = raised.value.__notes__
    assert "seed 42, fingerprint " in note
    assert "step number=29" in note
    assert "number=9\n" not in note
    assert note.endswith("replay: make torture SEED=42 ROUNDS=1")


def test_a_failing_seed_fails_again_in_the_same_way() -> None:
    async def scenario(sim: Simulation) -> None:
        await busy(sim)
        raise LookupError("planned")

    notes = []
    for _ in range(2):
        with pytest.raises(LookupError) as raised:
            simulate(scenario, seed=5)
        notes.append(raised.value.__notes__)
    assert notes[0] == notes[1]


def test_events_print_alike_in_every_process() -> None:
    fields = {"names": {"b", "a"}, "blob": b"x" * 100, "thing": object(), "nested": [{"c": {2, 1}}]}

    text = str(Event(1.5, "node", "wrote", fields))

    blob = f"<100 bytes, crc {zlib.crc32(b'x' * 100):08x}>"
    names, nested = "{'a', 'b'}", "[{'c': {1, 2}}]"
    assert text == f"1.500000000 node wrote {names=!s} {blob=!s} thing=<object> {nested=!s}"


class TestClocks:
    def test_the_wall_clock_starts_in_2026_at_an_instant_of_the_seed(self) -> None:
        async def read(sim: Simulation) -> int:
            return runtime.wall_ns()

        starts = {simulate(read, seed=seed).value for seed in range(10)}

        assert len(starts) == 10
        assert all(0 <= start - YEAR_2026_NS < 366 * DAY_NS for start in starts)

    def test_both_clocks_follow_virtual_time(self) -> None:
        async def scenario(sim: Simulation) -> tuple[float, int]:
            monotonic_s, wall_ns = runtime.monotonic_s(), runtime.wall_ns()
            await runtime.sleep(60)
            return runtime.monotonic_s() - monotonic_s, runtime.wall_ns() - wall_ns

        monotonic_s, wall_ns = simulate(scenario).value
        assert 60 <= monotonic_s < 60.1
        assert abs(wall_ns - monotonic_s * 1e9) < 1_000

    def test_a_skewed_clock_is_off_for_its_actor_and_those_it_spawns_alone(self) -> None:
        async def offset_ms(sim: Simulation) -> int:
            return runtime.wall_ms() - sim.runtime.wall_ms()

        async def scenario(sim: Simulation) -> list[int]:
            with runtime.installed(sim.runtime.skewed(-2_000)):
                inside = sim.spawn(offset_ms(sim), name="inside")
            outside = sim.spawn(offset_ms(sim), name="outside")
            return [await inside, await outside]

        assert simulate(scenario).value == [-2_000, 0]

    def test_a_drifting_clock_gains_on_both_clocks_and_sleeps_by_its_own(self) -> None:
        async def scenario(sim: Simulation) -> None:
            with runtime.installed(sim.runtime.skewed(drift_ppm=100_000)) as fast:
                monotonic_s, wall_ms = runtime.monotonic_s(), runtime.wall_ms()
                await runtime.sleep(110)
                assert runtime.current() is fast
            assert sim.now_s == pytest.approx(100, abs=0.1)
            assert fast.monotonic_s() - monotonic_s == pytest.approx(110, abs=0.1)
            assert fast.wall_ms() - wall_ms == pytest.approx(110_000, abs=100)

        simulate(scenario)

    def test_a_machine_that_sleeps_stops_its_monotonic_clock_alone(self) -> None:
        async def sleeper() -> tuple[float, float, int]:
            clocks = runtime.monotonic_s(), runtime.boottime_s(), runtime.wall_ms()
            await runtime.sleep(10)
            return (
                runtime.monotonic_s() - clocks[0],
                runtime.boottime_s() - clocks[1],
                runtime.wall_ms() - clocks[2],
            )

        async def scenario(sim: Simulation) -> None:
            process = sim.process("laptop")
            asleep = process.spawn(sleeper())
            await runtime.sleep(2)
            process.suspend(3600)
            process.suspend(1800)  # which it sleeps through already
            monotonic_s, boottime_s, wall_ms = await asleep
            assert monotonic_s == pytest.approx(10, abs=0.1)
            assert boottime_s == pytest.approx(3610, abs=0.1)
            assert wall_ms == pytest.approx(3_610_000, abs=100)

        simulate(scenario, stall_max_s=0)

    def test_the_clock_of_one_process_is_set_while_other_clocks_are_not(self) -> None:
        async def read() -> tuple[float, int]:
            return runtime.monotonic_s(), runtime.wall_ms()

        async def scenario(sim: Simulation) -> None:
            one, other = sim.process("one"), sim.process("other")
            before, beside = await one.spawn(read()), await other.spawn(read())
            one.step_clock(-60_000)
            after, unmoved = await one.spawn(read()), await other.spawn(read())
            assert after[0] == pytest.approx(before[0], abs=0.1)
            assert after[1] - before[1] == pytest.approx(-60_000, abs=100)
            assert unmoved[1] - beside[1] == pytest.approx(0, abs=100)

        simulate(scenario, stall_max_s=0)

    def test_a_wall_clock_may_be_set_back_and_ids_still_rise(self) -> None:
        async def scenario(sim: Simulation) -> None:
            before_ms, monotonic_s = runtime.wall_ms(), runtime.monotonic_s()
            first = runtime.new_ulid()
            sim.runtime.jump(-5_000)
            assert runtime.wall_ms() == before_ms - 5_000
            assert runtime.monotonic_s() == monotonic_s
            assert runtime.new_ulid() > first

        simulate(scenario)


class TestChance:
    def test_streams_do_not_disturb_each_other(self) -> None:
        async def draw(sim: Simulation, disturb: bool) -> list[float]:
            if disturb:
                sim.random.random()
                sim.random_source("faults").random()
                await runtime.run_blocking(len, "")
                await asyncio.gather(*(asyncio.sleep(0) for _ in range(5)))
            return [runtime.random().random() for _ in range(3)]

        calm = simulate(lambda sim: draw(sim, False), seed=3)
        disturbed = simulate(lambda sim: draw(sim, True), seed=3)
        assert calm.value == disturbed.value

    def test_no_two_streams_are_alike(self) -> None:
        async def draw(sim: Simulation) -> set[float]:
            streams = [sim.random, sim.random_source("a"), sim.random_source("b"), runtime.random()]
            return {stream.random() for stream in streams}

        assert len(simulate(draw).value) == 4


class TestBlockingWork:
    def test_it_takes_effect_before_it_is_heard_of(self) -> None:
        async def scenario(sim: Simulation) -> None:
            done: list[float] = []
            await runtime.run_blocking(lambda: done.append(sim.now_s))
            assert 0 < done[0] < sim.now_s

        for seed in range(10):
            simulate(scenario, seed=seed)

    def test_it_runs_with_the_clock_of_its_caller(self) -> None:
        async def scenario(sim: Simulation) -> bool:
            with runtime.installed(sim.runtime.skewed(5_000)) as runtime_here:
                return await runtime.run_blocking(runtime.current) is runtime_here

        assert simulate(scenario).value

    def test_its_error_reaches_the_caller(self) -> None:
        async def scenario(sim: Simulation) -> None:
            with pytest.raises(ZeroDivisionError):
                await runtime.run_blocking(divmod, 1, 0)
            with pytest.raises(RuntimeError, match="StopIteration"):
                await runtime.run_blocking(next, iter(()))

        simulate(scenario)

    def test_once_begun_it_is_not_undone_by_cancelling_the_caller(self) -> None:
        async def scenario(sim: Simulation) -> int:
            effects: list[int] = []
            task = sim.spawn(runtime.run_blocking(effects.append, 1), name="writer")
            await asyncio.sleep(0)
            task.cancel()
            await runtime.sleep(1)
            return len(effects)

        assert {simulate(scenario, seed=seed).value for seed in range(50)} == {0, 1}


if __name__ == "__main__":
    main()
