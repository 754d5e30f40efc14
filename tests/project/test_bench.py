"""What a benchmark says of its goals, and how two trees' figures are compared."""

from __future__ import annotations

import pytest

from bench import compare
from bench._report import CORES, Goal, Section


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


def _printed(capsys: pytest.CaptureFixture[str], rate: str, time: str) -> list[compare.Printed]:
    section = Section("Codec", ["what", "records", "records/s", "time"])
    section.rows += [["native", "1,000", rate, time], ["v1", "1,000", "7", "1 s"]]
    section.goals.append(Goal("ours ÷ raw", 0.5, 0.4))
    section.notes.append("a note")
    section.show()
    return compare.tables(capsys.readouterr().out)


def test_a_comparison_reads_what_a_bench_prints(capsys: pytest.CaptureFixture[str]) -> None:
    old, new = _printed(capsys, "2,000", "900 µs"), _printed(capsys, "1,000", "1.80 ms")
    assert [printed.title for printed in new] == ["Codec", "Goals", "Goals"]
    assert new[1].rows == [["ours ÷ raw", "0.4"]]
    lines = compare.compared([(old[0], new[0])] * compare.FEWEST_PAIRS)
    assert [line[:2] + line[4:5] + line[6:] for line in lines] == [
        ["native 1,000", "records/s", "0.500", "WORSE"],
        ["native 1,000", "time", "2.000", "WORSE"],
    ]


def test_the_interval_of_a_median_needs_six_pairs_and_leaves_out_the_extremes_of_nine() -> None:
    assert compare.interval([float(n) for n in range(8)]) == (0.0, 7.0)
    assert compare.interval([float(n) for n in range(9)]) == (1.0, 7.0)
    assert compare.interval([float(n) for n in range(15)]) == (3.0, 11.0)


@pytest.mark.parametrize(
    ("ratios", "more_is_better", "worse"),
    [
        ([1.06] * 6, False, "WORSE"),
        ([1.06] * 5, False, "perhaps"),
        ([1.06] * 5 + [1.04], False, "perhaps"),
        ([1.04] * 6, False, "no"),
        ([1.06] * 6, True, "no"),
        ([0.9] * 6, True, "WORSE"),
        ([2.0] * 6, None, ""),
    ],
)
def test_a_figure_is_worse_when_its_whole_interval_is(
    ratios: list[float], more_is_better: bool | None, worse: str
) -> None:
    pairs = [(1.0, ratio) for ratio in ratios]
    assert compare.verdict(pairs, more_is_better).worse == worse
