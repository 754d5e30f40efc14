"""Groups of calls, some at once: what they return, and that none is left running."""

from __future__ import annotations

import pytest

from headwater.core import runtime
from tests.store.scripted import virtual


class Calls:
    """Calls that take as many seconds as their number; 3 fails."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.ended: list[int] = []

    async def __call__(self, number: int) -> int:
        self.running += 1
        self.most = max(self.most, self.running)
        await runtime.sleep(number)
        self.running -= 1
        self.ended.append(number)
        if number == 3:
            raise ValueError("three")
        return 10 * number


@virtual
async def test_results_are_in_the_order_of_the_items() -> None:
    assert await runtime.gather_each(Calls(), [4, 1, 2], at_once=3) == [40, 10, 20]


@virtual
async def test_no_more_run_at_once_than_allowed() -> None:
    calls = Calls()
    await runtime.gather_each(calls, [1, 1, 1, 2, 2], at_once=2)
    assert (calls.most, len(calls.ended)) == (2, 5)


@virtual
async def test_an_error_is_raised_once_all_calls_have_ended() -> None:
    calls = Calls()
    with pytest.raises(ValueError, match="three"):
        await runtime.gather_each(calls, [3, 9, 1], at_once=2)
    assert sorted(calls.ended) == [1, 3, 9]


@virtual
async def test_outcomes_have_results_and_errors_in_order() -> None:
    first, second = await runtime.gather_outcomes(Calls(), [1, 3], at_once=2)
    assert first == 10
    assert isinstance(second, ValueError)


@virtual
async def test_an_error_that_a_call_returns_is_its_result() -> None:
    async def explain(number: int) -> ValueError:
        return ValueError(str(number))

    (result,) = await runtime.gather_each(explain, [1], at_once=1)
    assert str(result) == "1"
