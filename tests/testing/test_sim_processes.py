"""Processes of the simulator die and come back, and each leaves what it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headwater.core import runtime
from headwater.testing.guard import Deadlock, ProcessKilled
from headwater.testing.sim import Process, Simulation, current_process, simulate


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

    def test_waiting_for_a_process_returns_whether_it_ended_by_itself(self) -> None:
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

    def test_the_failure_of_a_killed_process_is_ignored(self) -> None:
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

    def test_a_frozen_process_continues_later_and_sees_the_time_gone(self) -> None:
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
