"""A lag in records, told in seconds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.log.primary.slot import LAG_SAMPLES_MAX, LagClock


def test_who_has_everything_is_not_behind() -> None:
    clock = LagClock()
    clock.note(0.0, 10)
    assert clock.behind_s(100.0, 10) == 0.0
    assert clock.behind_s(100.0, 11) == 0.0
    assert LagClock().behind_s(100.0, 0) == 0.0


def test_how_long_ago_the_log_went_past_a_position() -> None:
    clock = LagClock()
    for second in range(10):
        clock.note(float(second), 10 * second)
    assert clock.behind_s(20.0, 35) == 16.0, "at 4 s it was at 40"
    assert clock.behind_s(20.0, 40) == 15.0, "40 itself is there: 41 came after"


@given(
    st.lists(st.tuples(st.floats(0.01, 50), st.integers(0, 5)), min_size=1, max_size=2000),
    st.integers(0, 5000),
)
def test_it_is_never_more_than_the_truth_and_never_grows(
    steps: list[tuple[float, int]], lsn: int
) -> None:
    clock, now_s, current = LagClock(), 0.0, 0
    passed_s: float | None = None
    for wait_s, records in steps:
        now_s, current = now_s + wait_s, current + records
        if passed_s is None and current > lsn:
            passed_s = now_s
        clock.note(now_s, current)
        assert len(clock._lsns) <= LAG_SAMPLES_MAX
    told_s = clock.behind_s(now_s, lsn)
    assert 0 <= told_s <= (0.0 if passed_s is None else now_s - passed_s)
