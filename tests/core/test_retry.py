"""Back-off: how long the waits are, and when trying ends."""

from __future__ import annotations

import asyncio
import random as _random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from headwater.core import limits, runtime
from headwater.core.retry import Budget, PollBackoff, RetryPolicy
from headwater.core.runtime import Runtime

T = TypeVar("T")


class Virtual(Runtime):
    """Time that passes only while somebody sleeps, or is made to."""

    def __init__(self, seed: int) -> None:
        self.now_s = 1000.0
        self.slept_s: list[float] = []
        self._chance = _random.Random(seed)
        super().__init__()

    def wall_ns(self) -> int:
        return int(self.now_s * 1e9)

    def monotonic_s(self) -> float:
        return self.now_s

    def random(self) -> _random.Random:
        return self._chance

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds

    def spawn(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        raise NotImplementedError

    async def run_blocking(self, function: Callable[..., T], *args: Any) -> T:
        raise NotImplementedError


@pytest.fixture(params=range(20))
def virtual(request: pytest.FixtureRequest) -> Iterator[Virtual]:
    with runtime.installed(Virtual(request.param)) as installed:
        assert isinstance(installed, Virtual)
        yield installed


def pauses(budget: Budget, *, throttled: bool = False) -> int:
    """How often a failing operation is tried before it gives up."""

    async def main() -> int:
        attempts = 1
        while await budget.pause(throttled=throttled):
            attempts += 1
        return attempts

    return asyncio.run(main())


PATIENT = RetryPolicy(attempts=12, deadline_s=1e9, base_s=0.1, throttled_base_s=1.0, cap_s=3.0)


def test_attempts_are_counted_with_the_first(virtual: Virtual) -> None:
    budget = PATIENT.start()

    assert pauses(budget) == 12
    assert budget.used == 12
    assert len(virtual.slept_s) == 11


def test_one_operation_may_have_attempts_of_its_own(virtual: Virtual) -> None:
    assert pauses(PATIENT.start(attempts=3)) == 3
    assert pauses(PATIENT.start(attempts=1)) == 1


def test_waits_lie_below_a_bound_that_doubles_up_to_a_cap(virtual: Virtual) -> None:
    pauses(PATIENT.start())

    bounds = [min(3.0, 0.1 * 2**i) for i in range(11)]
    assert bounds[-1] == 3.0
    assert all(0 <= wait <= bound for wait, bound in zip(virtual.slept_s, bounds, strict=True))


def test_waits_are_spread_over_their_whole_range() -> None:
    first = []
    for seed in range(300):
        with runtime.installed(Virtual(seed)) as virtual:
            assert isinstance(virtual, Virtual)
            pauses(PATIENT.start(attempts=2))
            first += virtual.slept_s

    assert min(first) < 0.01
    assert max(first) > 0.09
    assert 0.04 < sum(first) / len(first) < 0.06


def test_a_throttled_request_never_comes_back_at_once(virtual: Virtual) -> None:
    pauses(PATIENT.start(), throttled=True)

    assert all(0.5 <= wait <= 3.0 for wait in virtual.slept_s)


def test_many_attempts_neither_overflow_nor_pass_the_cap(virtual: Virtual) -> None:
    policy = RetryPolicy(attempts=5000, deadline_s=1e9, cap_s=3.0)

    assert pauses(policy.start()) == 5000
    assert max(virtual.slept_s) <= 3.0


def test_no_wait_goes_beyond_the_deadline(virtual: Virtual) -> None:
    policy = RetryPolicy(attempts=10_000, deadline_s=20.0, base_s=1.0, cap_s=7.0)
    started_s = virtual.now_s

    pauses(policy.start())

    assert virtual.now_s - started_s == pytest.approx(20.0)


def test_after_the_deadline_trying_ends_at_once(virtual: Virtual) -> None:
    budget = RetryPolicy(attempts=10, deadline_s=20.0).start()
    virtual.now_s += 20.0

    assert pauses(budget) == 1
    assert virtual.slept_s == []
    assert budget.remaining_s == 0


def test_what_remains_never_goes_below_zero(virtual: Virtual) -> None:
    budget = RetryPolicy(deadline_s=20.0, attempt_timeout_s=5.0).start()
    assert (budget.remaining_s, budget.attempt_timeout_s) == (20.0, 5.0)

    virtual.now_s += 18.0
    assert (budget.remaining_s, budget.attempt_timeout_s) == (2.0, 2.0)

    virtual.now_s += 18.0
    assert (budget.remaining_s, budget.attempt_timeout_s) == (0.0, 0.0)


def test_the_bounds_default_to_the_named_limits() -> None:
    policy = RetryPolicy()

    assert policy.attempts == limits.ATTEMPTS_MAX
    assert policy.deadline_s == limits.DEADLINE_S
    assert policy.attempt_timeout_s == limits.ATTEMPT_TIMEOUT_S
    assert policy.cap_s == limits.BACKOFF_CAP_S


def test_polls_that_find_nothing_wait_twice_as_long_up_to_the_cap() -> None:
    polls = PollBackoff(0.1, 0.5)

    assert [polls.next_s() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    polls.reset()
    assert [polls.next_s(), polls.next_s()] == [0.1, 0.2]
