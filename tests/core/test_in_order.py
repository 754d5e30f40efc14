"""Several things under way at once, handed out in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from headwater.core import runtime
from headwater.core.errors import Unavailable
from headwater.core.in_order import in_order
from tests.store.scripted import virtual


async def numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


@virtual
async def test_they_come_in_order_though_they_end_in_another() -> None:
    async def work(number: int) -> int:
        await runtime.sleep(10 - number)
        return number

    found = [one async for one in in_order(numbers(10), work, parallel=4, name="work")]
    assert found == list(range(10))


@virtual
async def test_no_more_are_under_way_than_were_asked_for() -> None:
    busy = most = 0

    async def work(number: int) -> int:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await runtime.sleep(1)
        busy -= 1
        return number

    assert [one async for one in in_order(numbers(20), work, parallel=3, name="work")]
    assert most == 3


@virtual
async def test_an_error_comes_when_all_before_it_was_handed_out() -> None:
    async def work(number: int) -> int:
        if number == 3:
            raise Unavailable("down")
        await runtime.sleep(5)
        return number

    seen: list[int] = []

    async def read() -> None:
        async for one in in_order(numbers(9), work, parallel=8, name="work"):
            seen.append(one)

    with pytest.raises(Unavailable):
        await read()
    assert seen == [0, 1, 2]


@virtual
async def test_whoever_leaves_ends_what_is_under_way() -> None:
    ended: list[int] = []

    async def work(number: int) -> int:
        await runtime.sleep(number * 100)
        ended.append(number)
        return number

    async with aclosing(in_order(numbers(9), work, parallel=4, name="work")) as found:
        assert await anext(found) == 0
    await runtime.sleep(10_000)
    assert ended == [0]
