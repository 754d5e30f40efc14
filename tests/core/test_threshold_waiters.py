"""Waiting until a number is reached."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headwater.core.errors import Unavailable
from headwater.core.runtime import ThresholdWaiters


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        asyncio.run(test())

    del run.__wrapped__  # pytest would take the coroutine function for the test
    return run


def waiting(waiters: ThresholdWaiters, *numbers: int) -> list[asyncio.Task[None]]:
    return [asyncio.ensure_future(waiters.wait(number)) for number in numbers]


@in_loop
async def test_those_that_wait_for_no_more_than_what_is_reached_are_woken() -> None:
    waiters = ThresholdWaiters()
    high, low, other = waiting(waiters, 3, 1, 2)
    await asyncio.sleep(0)
    assert len(waiters) == 3
    waiters.reach(2)
    await asyncio.wait((low, other))
    assert not high.done()
    assert len(waiters) == 1
    waiters.reach(3)
    await high
    assert not waiters


@in_loop
async def test_those_that_are_cancelled_together_are_not_kept_and_not_counted() -> None:
    waiters = ThresholdWaiters()
    *early, late = waiting(waiters, *range(1, 101))
    await asyncio.sleep(0)
    for task in early:
        task.cancel()
    await asyncio.wait(early)
    assert len(waiters) == 1
    assert len(waiters._heap) <= 2
    waiters.reach(100)
    await late


@in_loop
async def test_a_failure_reaches_all_that_wait_and_all_that_come_later() -> None:
    waiters = ThresholdWaiters()
    low, high = waiting(waiters, 1, 2)
    await asyncio.sleep(0)
    waiters.fail(lambda: Unavailable("no more than 1"), above=1)
    with pytest.raises(Unavailable, match="no more than 1"):
        await high
    assert not low.done()
    ending = threading.Thread(target=waiters.fail, args=(lambda: Unavailable("over"),))
    ending.start()
    with pytest.raises(Unavailable, match="over"):
        await low
    ending.join()
    with pytest.raises(Unavailable, match="over") as first:
        await waiters.wait(3)
    with pytest.raises(Unavailable, match="over") as second:
        await waiters.wait(3)
    assert first.value is not second.value, "a shared error would collect every raiser's frames"
    assert not waiters
