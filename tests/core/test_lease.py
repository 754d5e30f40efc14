"""Time that passed: never too little for a lease, never too much for what waits for a floor."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core import runtime
from headwater.core.lease import Lease, SettlingClock, SettlingFloor
from headwater.testing import Simulation, simulate
from headwater.testing.sim import SimRuntime
from tests.store.scripted import virtual


def step_clock(ms: float) -> None:
    """Set the wall clock."""
    mine = runtime.current()
    assert isinstance(mine, SimRuntime)
    mine.jump(ms)


@virtual
async def test_a_moment_is_recent_for_as_long_as_is_asked() -> None:
    moment = Lease()
    assert moment.is_within(30)
    await runtime.sleep(29.9)
    assert moment.is_within(30)
    await runtime.sleep(0.2)
    assert not moment.is_within(30)


@pytest.mark.parametrize("step_ms", [31_000, -1])
@virtual
async def test_a_wall_clock_that_is_set_ends_it_early(step_ms: int) -> None:
    moment = Lease()
    step_clock(step_ms)
    assert not moment.is_within(30)


@virtual
async def test_a_wall_clock_that_is_set_back_does_not_make_it_last() -> None:
    moment = Lease()
    await runtime.sleep(60)
    step_clock(-59_000)
    assert not moment.is_within(30)


def test_the_real_clock_advances() -> None:
    before_s = runtime.boottime_s()
    assert runtime.boottime_s() >= before_s
    assert Lease().is_within(30)


@virtual
async def test_only_time_that_was_seen_to_pass_counts() -> None:
    clock = SettlingClock()
    await runtime.sleep(100)  # before anything was read
    assert clock.count(SettlingFloor(7)) == SettlingFloor(7)
    clock.see(SettlingFloor(7))
    await runtime.sleep(10)
    assert clock.count(SettlingFloor(7)).settling_ms == pytest.approx(10_000, abs=1)
    assert clock.count(SettlingFloor(8)) == SettlingFloor(8)  # another floor
    assert clock.count(SettlingFloor(7, 60_000)) == SettlingFloor(7, 60_000)  # somebody saw more


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_history_of_processes_counts_more_than_passed(data: st.DataObject) -> None:
    """Any number of processes that read, wait, write and come again, whatever their clocks say."""
    moves = data.draw(
        st.lists(
            st.tuples(
                st.integers(0, 3),
                st.sampled_from(("see", "write", "new")),
                st.floats(0, 100),
                st.integers(-(10**6), 10**6),
            ),
            max_size=30,
        )
    )

    async def main(_: Simulation) -> None:
        began_s, stored = runtime.monotonic_s(), SettlingFloor(5)
        clocks = [SettlingClock() for _ in range(4)]
        for who, move, wait_s, step_ms in moves:
            await runtime.sleep(wait_s)
            step_clock(step_ms)
            if move == "new":
                clocks[who] = SettlingClock()
            elif move == "see":
                clocks[who].see(stored)
            else:
                before, stored = stored, clocks[who].count(stored)
                clocks[who].see(stored)
                assert stored.settling_ms >= before.settling_ms
            passed_ms = (runtime.monotonic_s() - began_s) * 1000
            assert stored.settling_ms <= passed_ms + 1e-6

    simulate(main, stall_max_s=0)
