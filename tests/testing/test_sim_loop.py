"""The simulator's loop: asyncio's own primitives, virtual time, any order, no way to hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import pytest

from headwater.core import runtime
from headwater.testing.guard import (
    Deadlock,
    LimitReached,
    SimulationError,
    SimulationEscape,
    UnhandledFailure,
)
from headwater.testing.sim import Simulation, simulate

SEEDS = range(25)
YEAR_S = 365 * 86_400.0


async def lock_lets_one_in(sim: Simulation) -> None:
    lock = asyncio.Lock()
    inside: list[int] = []

    async def enter(who: int) -> None:
        async with lock:
            assert not inside
            inside.append(who)
            await asyncio.sleep(0)
            inside.remove(who)

    await asyncio.gather(*map(enter, range(5)))


async def semaphore_lets_two_in(sim: Simulation) -> None:
    gate = asyncio.Semaphore(2)
    inside: list[int] = []

    async def enter(who: int) -> None:
        async with gate:
            inside.append(who)
            assert len(inside) <= 2
            await runtime.sleep(1)
            inside.remove(who)

    await asyncio.gather(*map(enter, range(6)))


async def event_wakes_all(sim: Simulation) -> None:
    event = asyncio.Event()
    waiters = [sim.spawn(event.wait(), name=f"waiter {n}") for n in range(3)]
    await runtime.sleep(1)
    assert not any(waiter.done() for waiter in waiters)
    event.set()
    assert await asyncio.gather(*waiters) == [True] * 3


async def queue_keeps_order_and_bound(sim: Simulation) -> None:
    queue: asyncio.Queue[int] = asyncio.Queue(2)

    async def produce() -> None:
        for number in range(20):
            await queue.put(number)
            assert queue.qsize() <= 2

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        taken = group.create_task(_take(queue, 20))
    assert taken.result() == list(range(20))


async def _take(queue: asyncio.Queue[int], count: int) -> list[int]:
    return [await queue.get() for _ in range(count)]


async def condition_is_heard(sim: Simulation) -> None:
    condition, value = asyncio.Condition(), 0

    async def until(least: int) -> int:
        async with condition:
            await condition.wait_for(lambda: value >= least)
            return value

    waiter = sim.spawn(until(3), name="waiter")
    for _ in range(3):
        async with condition:
            value += 1
            condition.notify_all()
    assert await waiter == 3


async def task_group_cancels_the_others(sim: Simulation) -> None:
    async def fail() -> NoReturn:
        await runtime.sleep(1)
        raise LookupError("planned")

    others: list[asyncio.Task[None]] = []

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            others.append(group.create_task(runtime.sleep(YEAR_S)))
            group.create_task(fail())

    with pytest.raises(ExceptionGroup):
        await work()
    assert others[0].cancelled()
    assert sim.now_s < 2


async def timeout_ends_a_wait(sim: Simulation) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await asyncio.Event().wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(runtime.sleep(YEAR_S), 5)
    assert 10 <= sim.now_s < 11


async def wait_returns_the_first(sim: Simulation) -> None:
    slow = sim.spawn(runtime.sleep(10), name="slow")
    fast = sim.spawn(runtime.sleep(1), name="fast")
    done, pending = await asyncio.wait({slow, fast}, return_when=asyncio.FIRST_COMPLETED)
    assert (done, pending) == ({fast}, {slow})
    await slow


async def shield_outlives_its_caller(sim: Simulation) -> None:
    inner = sim.spawn(runtime.sleep(10), name="inner")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(inner), 1)
    await inner
    assert sim.now_s >= 10


async def generator_is_closed_when_left(sim: Simulation) -> None:
    closed: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            for number in range(10):
                await asyncio.sleep(0)
                yield number
        finally:
            await runtime.sleep(1)
            closed.append("numbers")

    async for number in numbers():
        if number == 3:
            break
    await runtime.sleep(2)
    assert closed == ["numbers"]


async def cancellation_cleans_up(sim: Simulation) -> None:
    cleaned: list[str] = []

    async def work() -> None:
        try:
            await runtime.sleep(YEAR_S)
        finally:
            await runtime.sleep(1)
            cleaned.append("work")

    task = sim.spawn(work(), name="work")
    await runtime.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == ["work"]


async def results_come_as_completed(sim: Simulation) -> None:
    async def after(seconds: int) -> int:
        await runtime.sleep(seconds)
        return seconds

    results = [await next_one for next_one in asyncio.as_completed(map(after, (3, 1, 2)))]
    assert results == [1, 2, 3]


@pytest.mark.parametrize(
    "scenario",
    [
        cancellation_cleans_up,
        condition_is_heard,
        event_wakes_all,
        generator_is_closed_when_left,
        lock_lets_one_in,
        queue_keeps_order_and_bound,
        results_come_as_completed,
        semaphore_lets_two_in,
        shield_outlives_its_caller,
        task_group_cancels_the_others,
        timeout_ends_a_wait,
        wait_returns_the_first,
    ],
)
def test_asyncio_works_in_any_order(scenario: Callable[[Simulation], Awaitable[None]]) -> None:
    for seed in SEEDS:
        simulate(scenario, seed=seed)


def test_plain_callbacks_keep_their_order() -> None:
    async def main(sim: Simulation) -> list[int]:
        called: list[int] = []
        for number in range(10):
            asyncio.get_running_loop().call_soon(called.append, number)
            sim.spawn(asyncio.sleep(0), name=f"between {number}")
        await runtime.sleep(1)
        return called

    for seed in SEEDS:
        assert simulate(main, seed=seed).value == list(range(10))


def test_task_steps_run_in_many_orders() -> None:
    async def main(sim: Simulation) -> tuple[int, ...]:
        ran: list[int] = []

        async def step(number: int) -> None:
            ran.append(number)

        await asyncio.gather(*map(step, range(3)))
        return tuple(ran)

    assert len({simulate(main, seed=seed).value for seed in range(100)}) == 6


def test_a_timer_may_fire_while_others_have_work() -> None:
    async def main(sim: Simulation) -> bool:
        busy = sim.spawn(_spin(2_000), name="busy")
        await runtime.sleep(0.001)
        return not busy.done()

    assert simulate(main, seed=1).value
    assert not simulate(main, seed=1, stall_max_s=0).value


async def _spin(rounds: int) -> None:
    for _ in range(rounds):
        await asyncio.sleep(0)


def test_a_year_of_virtual_time_takes_a_handful_of_steps() -> None:
    async def main(sim: Simulation) -> None:
        await runtime.sleep(YEAR_S)

    outcome = simulate(main)

    assert outcome.virtual_s >= YEAR_S
    assert outcome.steps < 10


def test_cancelled_timers_are_forgotten() -> None:
    async def main(sim: Simulation) -> int:
        loop = asyncio.get_running_loop()
        for _ in range(10_000):
            loop.call_later(YEAR_S, print).cancel()
        return len(loop._timers)  # type: ignore[attr-defined]

    assert simulate(main).value < 1_000


def test_a_deadlock_names_the_waiting_tasks_and_lines() -> None:
    async def never(lock: asyncio.Lock) -> None:
        async with lock:
            await lock.acquire()

    async def main(sim: Simulation) -> None:
        await sim.spawn(never(asyncio.Lock()), name="stuck")

    with pytest.raises(Deadlock) as raised:
        simulate(main)

    text = str(raised.value)
    assert "'main' at " in text
    assert "'stuck' at " in text
    assert "test_sim_loop.py" in text
    assert "in Lock.acquire" in text


def test_steps_are_bounded() -> None:
    async def main(sim: Simulation) -> None:
        await _spin(10_000)

    with pytest.raises(LimitReached, match="max_steps"):
        simulate(main, max_steps=100)


def test_virtual_time_is_bounded() -> None:
    async def main(sim: Simulation) -> None:
        await runtime.sleep(YEAR_S)

    with pytest.raises(LimitReached, match="max_virtual_s"):
        simulate(main, max_virtual_s=60)


def test_an_unawaited_failure_fails_the_run() -> None:
    async def fail() -> None:
        raise LookupError("unseen")

    async def main(sim: Simulation) -> None:
        sim.spawn(fail(), name="background")
        await runtime.sleep(1)

    with pytest.raises(UnhandledFailure, match="'background'") as raised:
        simulate(main)
    assert isinstance(raised.value.__cause__, LookupError)


def test_an_unawaited_failure_is_named_with_the_deadlock_it_caused() -> None:
    async def main(sim: Simulation) -> None:
        event = asyncio.Event()

        async def fail() -> None:
            raise LookupError("instead of setting the event")

        sim.spawn(fail(), name="setter")
        await event.wait()

    with pytest.raises(Deadlock) as raised:
        simulate(main)
    assert any("'setter': LookupError" in note for note in raised.value.__notes__)


def test_a_failure_in_the_clean_up_after_main_fails_the_run() -> None:
    async def work() -> None:
        try:
            await runtime.sleep(YEAR_S)
        finally:
            raise LookupError("cannot clean up")

    async def main(sim: Simulation) -> None:
        sim.spawn(work(), name="background")
        await runtime.sleep(1)

    with pytest.raises(UnhandledFailure, match="'background'"):
        simulate(main)


def test_a_failing_callback_fails_the_run() -> None:
    async def main(sim: Simulation) -> None:
        asyncio.get_running_loop().call_soon(int, "not a number")
        await runtime.sleep(1)

    with pytest.raises(ValueError, match="not a number"):
        simulate(main)


def test_what_main_leaves_behind_is_cancelled_and_cleans_up() -> None:
    cleaned: list[str] = []

    async def work() -> None:
        try:
            await runtime.sleep(YEAR_S)
        finally:
            await runtime.sleep(1)
            cleaned.append("work")

    async def main(sim: Simulation) -> None:
        sim.spawn(work(), name="background")
        await runtime.sleep(1)

    assert simulate(main).virtual_s < 3
    assert cleaned == ["work"]


def test_sets_of_tasks_iterate_in_the_same_order_every_time() -> None:
    async def main(sim: Simulation) -> list[str]:
        tasks = {sim.spawn(runtime.sleep(1), name=f"task {n}") for n in range(50)}
        done, _ = await asyncio.wait(tasks)
        return [task.get_name() for task in done]

    assert simulate(main, seed=3).value == simulate(main, seed=3).value


def _outside(loop: Any) -> list[tuple[str, Callable[[], Any]]]:
    return [
        ("run_in_executor", lambda: loop.run_in_executor(None, print)),
        ("call_soon_threadsafe", lambda: loop.call_soon_threadsafe(print)),
        ("create_connection", lambda: loop.create_connection(asyncio.Protocol, "localhost", 1)),
        ("subprocess_exec", lambda: loop.subprocess_exec(asyncio.SubprocessProtocol, "true")),
        ("add_signal_handler", lambda: loop.add_signal_handler(2, print)),
        ("sock_recv", lambda: loop.sock_recv(None, 1)),
        ("add_reader", lambda: loop.add_reader(0, print)),
    ]


@pytest.mark.parametrize("number", range(7))
def test_the_loops_doors_to_the_outside_are_shut(number: int) -> None:
    async def main(sim: Simulation) -> None:
        name, call = _outside(asyncio.get_running_loop())[number]
        with pytest.raises(SimulationEscape, match=f"loop.{name} reached outside"):
            call()

    # The code swallowed the error; the simulation fails all the same.
    with pytest.raises(SimulationEscape):
        simulate(main)


def test_to_thread_is_an_escape() -> None:
    async def main(sim: Simulation) -> None:
        await asyncio.to_thread(print)

    with pytest.raises(SimulationEscape, match="run_in_executor"):
        simulate(main)


def test_a_simulation_cannot_run_inside_another() -> None:
    async def inner(sim: Simulation) -> None:
        pass

    async def main(sim: Simulation) -> None:
        simulate(inner)

    with pytest.raises(SimulationError, match="one at a time"):
        simulate(main)
    simulate(inner)
