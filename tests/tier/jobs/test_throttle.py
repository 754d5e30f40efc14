"""Segments that are being copied take no more memory than all partitions together may have."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from headwater.tier.jobs.config import ByteBudget
from tests.tier.jobs.given import Place, in_time


class Holder:
    """Somebody who holds bytes until told otherwise."""

    def __init__(self, budget: ByteBudget, size_bytes: int) -> None:
        self.holds = False
        self.done = asyncio.Event()
        self.task = asyncio.ensure_future(self._hold(budget, size_bytes))

    async def _hold(self, budget: ByteBudget, size_bytes: int) -> None:
        async with budget.hold(size_bytes):
            self.holds = True
            await self.done.wait()
        self.holds = False


async def line(budget: ByteBudget, *sizes: int) -> list[Holder]:
    """They come one after the other."""
    holders = []
    for size_bytes in sizes:
        holders.append(Holder(budget, size_bytes))
        await asyncio.sleep(1.0)
    return holders


async def holding(*holders: Holder) -> list[bool]:
    await asyncio.sleep(1.0)
    return [one.holds for one in holders]


def test_who_finds_no_room_waits_in_line() -> None:
    async def main() -> None:
        budget = ByteBudget(10)
        first, large, small = await line(budget, 6, 6, 1)
        assert await holding(first, large, small) == [True, False, False]

        first.done.set()
        assert await holding(first, large, small) == [False, True, True]

    in_time(main)


def test_more_than_there_is_is_held_alone() -> None:
    async def main() -> None:
        budget = ByteBudget(10)
        small, huge, after = await line(budget, 1, 100, 1)
        assert await holding(small, huge, after) == [True, False, False]

        small.done.set()
        assert await holding(small, huge, after) == [False, True, False]

    in_time(main)


def test_who_is_cancelled_holds_nothing_and_holds_up_nobody() -> None:
    async def main() -> None:
        budget = ByteBudget(10)
        first, waiting, last = await line(budget, 10, 10, 5)
        waiting.task.cancel()
        first.done.set()
        assert await holding(first, waiting, last) == [False, False, True]

        last.task.cancel()
        assert await holding(Holder(budget, 10)) == [True]

    in_time(main)


def test_partitions_share_the_memory_for_their_copies() -> None:
    async def main() -> None:
        budget, most, under_way = ByteBudget(1), 0, 0

        def watched(prepare: Any, copy: Any) -> tuple[Any, Any]:
            async def prepared(*how: Any, **more: Any) -> Any:
                nonlocal most, under_way
                under_way += 1
                most = max(most, under_way)
                await asyncio.sleep(1.0)
                return await prepare(*how, **more)

            async def copied(segment: Any) -> None:
                nonlocal under_way
                await copy(segment)
                under_way -= 1

            return prepared, copied

        leds = [Place().lead(memory=budget).write(3, 3) for _ in range(3)]
        for led in leds:
            storage = led.storage
            storage.prepare, storage.copy = watched(storage.prepare, storage.copy)
        await asyncio.gather(*(led.round() for led in leds))

        assert [led.led.tiered_lsn() for led in leds] == [6, 6, 6]
        assert most == 1

    in_time(main)


def test_event_loops_of_other_threads_share_it_too() -> None:
    budget, held = ByteBudget(1), threading.Event()
    order: list[str] = []

    async def first() -> None:
        async with budget.hold(1):
            held.set()
            while not budget._waiting:  # noqa: ASYNC110 until the other thread is in line
                await asyncio.sleep(0)
            order.append("first")

    async def second() -> None:
        async with asyncio.timeout(60.0), budget.hold(1):
            order.append("second")

    other = threading.Thread(target=lambda: held.wait(60.0) and asyncio.run(second()))
    other.start()
    asyncio.run(first())
    other.join(20.0)  # a loop that nobody woke would go on at its own timeout only
    assert order == ["first", "second"]


def test_who_waits_on_a_loop_that_is_closed_holds_up_nobody() -> None:
    budget, loop = ByteBudget(1), asyncio.new_event_loop()
    first = budget.hold(1)
    loop.run_until_complete(first.__aenter__())
    abandoned = asyncio.new_event_loop()
    waiting = abandoned.create_task(budget.hold(1).__aenter__())
    abandoned.run_until_complete(asyncio.sleep(0))
    abandoned.close()
    loop.run_until_complete(first.__aexit__(None, None, None))
    loop.run_until_complete(asyncio.wait_for(budget.hold(1).__aenter__(), 60.0))
    loop.close()
    assert not waiting.done()
