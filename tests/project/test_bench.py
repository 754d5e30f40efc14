"""What a benchmark says of its goals."""

from __future__ import annotations

import pytest

from bench._findings import CORES, Goal, Section


@pytest.mark.parametrize(
    ("timed", "load", "doubtful"),
    [(True, CORES + 0.5, True), (True, CORES, False), (False, CORES + 0.5, False)],
)
def test_a_verdict_by_the_clock_is_doubtful_on_a_machine_with_more_work_than_cores(
    timed: bool, load: float, doubtful: bool
) -> None:
    goal = Goal("ours ÷ raw", 0.5, 0.4, timed=timed, load=load)
    assert "MISSED" in str(goal)
    assert ("doubtful" in str(goal)) == doubtful
    section = Section("", [], goals=[goal])
    assert section.as_json()["goals"][0]["doubtful"] == doubtful
