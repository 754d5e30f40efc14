"""The simulator: same seed same run, clocks that lie, processes that die."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headwater.core import runtime
from headwater.testing.sim import Event, Process, Simulation, current_process, simulate
from headwater.testing.sim_errors import Deadlock, ProcessKilled

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
            with sim.skewed(-2_000):
                inside = sim.spawn(offset_ms(sim), name="inside")
            outside = sim.spawn(offset_ms(sim), name="outside")
            return [await inside, await outside]

        assert simulate(scenario).value == [-2_000, 0]

    def test_a_drifting_clock_gains_on_both_clocks_and_sleeps_by_its_own(self) -> None:
        async def scenario(sim: Simulation) -> None:
            with sim.skewed(drift_ppm=100_000) as fast:
                monotonic_s, wall_ms = runtime.monotonic_s(), runtime.wall_ms()
                await runtime.sleep(110)
                assert runtime.current() is fast
            assert sim.now_s == pytest.approx(100, abs=0.1)
            assert fast.monotonic_s() - monotonic_s == pytest.approx(110, abs=0.1)
            assert fast.wall_ms() - wall_ms == pytest.approx(110_000, abs=100)

        simulate(scenario)

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
                sim.stream("faults").random()
                await runtime.run_blocking(len, "")
                await asyncio.gather(*(asyncio.sleep(0) for _ in range(5)))
            return [runtime.random().random() for _ in range(3)]

        calm = simulate(lambda sim: draw(sim, False), seed=3)
        disturbed = simulate(lambda sim: draw(sim, True), seed=3)
        assert calm.value == disturbed.value

    def test_no_two_streams_are_alike(self) -> None:
        async def draw(sim: Simulation) -> set[float]:
            streams = [sim.random, sim.stream("a"), sim.stream("b"), runtime.random()]
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
            with sim.skewed(5_000) as runtime_here:
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


class TestProcesses:
    def test_a_killed_process_runs_nothing_more(self) -> None:
        ran: list[str] = []

        async def child() -> None:
            await runtime.sleep(10)
            ran.append("child")

        async def work(sim: Simulation) -> None:
            asyncio.get_running_loop().call_later(10, ran.append, "timer")
            sim.spawn(child(), name="child")
            sim.spawn(runtime.run_blocking(ran.append, "thread"), name="thread")
            try:
                await runtime.sleep(10)
                ran.append("work")
            finally:
                await runtime.sleep(0)
                ran.append("finally")

        async def scenario(sim: Simulation) -> None:
            process = sim.process("node")
            process.spawn(work(sim))
            while "thread" not in ran and sim.now_s < 1 and not sim.random.random() < 0.5:
                await runtime.sleep(0.01)
            before = list(ran)
            process.kill()
            assert not process.alive
            await runtime.sleep(100)
            assert ran == before

        for seed in range(20):
            ran.clear()
            simulate(scenario, seed=seed)
            assert "finally" not in ran

    def test_a_process_that_kills_itself_stops_at_its_next_await(self) -> None:
        async def work(sim: Simulation) -> None:
            process = current_process()
            assert process is not None
            process.kill()
            sim.record("same step")
            await asyncio.sleep(0)
            sim.record("never")

        async def scenario(sim: Simulation) -> None:
            process = sim.process("node")
            process.spawn(work(sim))
            assert not await process.wait()
            await runtime.sleep(1)

        for seed in range(10):
            history = simulate(scenario, seed=seed).history
            assert [event.name for event in history] == ["same step"]

    def test_a_crash_in_a_blocking_call_is_not_heard_of(self) -> None:
        def write() -> None:
            process = current_process()
            assert process is not None
            process.crash()

        async def work(sim: Simulation) -> None:
            try:
                await runtime.run_blocking(write)
            except BaseException:
                sim.record("heard")
                raise

        async def scenario(sim: Simulation) -> None:
            process = sim.process("node")
            process.spawn(work(sim))
            assert not await process.wait()

        assert simulate(scenario).history == ()

    def test_a_generator_of_a_killed_process_is_not_closed_properly(self) -> None:
        async def numbers(sim: Simulation) -> AsyncIterator[int]:
            try:
                while True:
                    await runtime.sleep(1)
                    yield 1
            finally:
                await asyncio.sleep(0)
                sim.record("closed")

        async def work(sim: Simulation) -> None:
            async for _ in numbers(sim):
                sim.record("number")

        async def scenario(sim: Simulation) -> None:
            process = sim.process("node")
            process.spawn(work(sim))
            await runtime.sleep(3.5)
            process.kill()
            await runtime.sleep(10)

        assert [event.name for event in simulate(scenario).history] == ["number"] * 3

    def test_waiting_for_a_process_tells_whether_it_ended_by_itself(self) -> None:
        async def scenario(sim: Simulation) -> list[bool]:
            ends, dies = sim.process("ends"), sim.process("dies")
            ends.spawn(runtime.sleep(1))
            ends.spawn(runtime.sleep(2), name="second")
            dies.spawn(runtime.sleep(10))
            waiting = asyncio.gather(ends.wait(), dies.wait())
            await runtime.sleep(5)
            dies.kill()
            return list(await waiting)

        assert simulate(scenario).value == [True, False]

    def test_awaiting_a_task_of_a_killed_process_is_a_deadlock_that_says_so(self) -> None:
        async def scenario(sim: Simulation) -> None:
            process = sim.process("node")
            task = process.spawn(runtime.sleep(1))
            process.kill()
            await task

        with pytest.raises(Deadlock, match=r"'node/main' \(killed\)"):
            simulate(scenario)

    def test_a_dead_process_takes_no_work(self) -> None:
        async def scenario(sim: Simulation) -> None:
            process = sim.process("node")
            process.kill()
            with pytest.raises(ProcessKilled):
                process.spawn(runtime.sleep(1))

        simulate(scenario)

    def test_the_failure_of_a_killed_process_is_nobodys_concern(self) -> None:
        async def work(process: Process) -> None:
            process.kill()
            raise LookupError("after death")

        async def scenario(sim: Simulation) -> None:
            process = sim.process("node")
            process.spawn(work(process))
            await process.wait()

        simulate(scenario)

    def test_the_next_incarnation_has_a_name_of_its_own(self) -> None:
        async def scenario(sim: Simulation) -> list[str]:
            return [sim.process("node").name, sim.process("node").name]

        assert simulate(scenario).value == ["node", "node#2"]

    def test_each_process_has_its_own_clock(self) -> None:
        async def scenario(sim: Simulation) -> None:
            async def now_ms() -> int:
                return runtime.wall_ms()

            ahead = sim.process("ahead", skew_ms=3_000).spawn(now_ms())
            behind = sim.process("behind", skew_ms=-3_000).spawn(now_ms())
            assert await ahead - await behind == pytest.approx(6_000, abs=10)

        simulate(scenario)

    def test_a_frozen_process_goes_on_later_and_sees_the_time_gone(self) -> None:
        async def work(sim: Simulation) -> None:
            for _ in range(3):
                await runtime.sleep(1)
                sim.record("turn", at_s=round(runtime.monotonic_s()))

        async def scenario(sim: Simulation) -> None:
            process = sim.process("node")
            process.spawn(work(sim))
            await runtime.sleep(1.2)
            process.freeze(60)
            assert await process.wait()

        turns = [event.fields["at_s"] for event in simulate(scenario).history]
        assert turns == [1, 61, 62]

    def test_events_name_the_process_that_recorded_them(self) -> None:
        async def work(sim: Simulation) -> None:
            sim.record("inside")

        async def scenario(sim: Simulation) -> None:
            await sim.process("node").spawn(work(sim))
            sim.record("outside")

        history = simulate(scenario).history
        assert [(event.process, event.name) for event in history] == [
            ("node", "inside"),
            ("-", "outside"),
        ]


if __name__ == "__main__":
    main()
