"""The torture runner: every round once, resumable, every failure with the command to repeat it."""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.testing.torture import (
    FAILED,
    FAILURES_MAX,
    INTERRUPTED,
    NOTHING_TO_RUN,
    PASSED,
    Scenario,
    ScenarioRun,
    SeedRange,
    run_scenarios,
)
from tests.torture.__main__ import discover, main, parse


def _recorded(seeds: list[int], *, bad: Callable[[int], bool] = lambda seed: False) -> Scenario:
    def run(seed: int) -> None:
        seeds.append(seed)
        assert not bad(seed), f"seed {seed} is bad"

    return Scenario("store", "register", run, rounds=50, sample=5)


def test_every_round_runs_once_with_the_seed_that_follows(tmp_path: Path) -> None:
    seeds: list[int] = []

    assert run_scenarios([_recorded(seeds)], seed=100, state_dir=tmp_path) == PASSED

    assert seeds == list(range(100, 150))


def test_without_a_seed_one_is_drawn_and_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds: list[int] = []

    run_scenarios([_recorded(seeds)], rounds=3, state_dir=tmp_path)

    assert f"store/register: 3 rounds from seed {seeds[0]}" in capsys.readouterr().out


def test_a_failure_prints_its_seed_and_its_command_and_the_others_still_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds: list[int] = []
    scenario = _recorded(seeds, bad=lambda seed: seed in (103, 120))

    assert run_scenarios([scenario], seed=100, state_dir=tmp_path) == FAILED

    assert len(seeds) == 50
    out = capsys.readouterr().out
    assert "seed 103: AssertionError: seed 103 is bad" in out
    assert "make torture PACKAGE=store SCENARIO=register SEED=103 ROUNDS=1" in out
    assert "make torture PACKAGE=store SCENARIO=register SEED=120 ROUNDS=1" in out
    assert "50 rounds, 2 failing" in out
    assert "Traceback" in out


def test_a_hopeless_scenario_is_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seeds: list[int] = []

    assert run_scenarios([_recorded(seeds, bad=bool)], seed=1, state_dir=tmp_path) == FAILED

    assert FAILURES_MAX <= len(seeds) < 2 * FAILURES_MAX
    assert capsys.readouterr().out.count("ROUNDS=1") == FAILURES_MAX


def test_one_round_of_a_seed_repeats_exactly_that_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds: list[int] = []
    scenario = _recorded(seeds, bad=lambda seed: seed == 103)

    assert run_scenarios([scenario], seed=103, rounds=1, state_dir=tmp_path) == FAILED
    assert run_scenarios([scenario], seed=104, rounds=1, state_dir=tmp_path) == PASSED

    assert seeds == [103, 104]
    assert list(tmp_path.iterdir()) == []
    assert "seed 103 is bad" in capsys.readouterr().out


def test_an_interrupted_run_continues_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds: list[int] = []

    def interrupt(seed: int) -> None:
        if len(seeds) == 20:
            raise KeyboardInterrupt
        seeds.append(seed)

    scenario = Scenario("store", "register", interrupt, rounds=50)
    assert run_scenarios([scenario], seed=100, state_dir=tmp_path) == INTERRUPTED
    done = json.loads((tmp_path / "store.register.json").read_text())["done"]
    assert 0 < done <= 20

    later: list[int] = []
    assert run_scenarios([_recorded(later)], state_dir=tmp_path) == PASSED

    assert later == list(range(100 + done, 150))
    assert "the same command continues" in capsys.readouterr().out


def test_only_rounds_with_none_missing_below_count_as_done(tmp_path: Path) -> None:
    ranges = [SeedRange(100, 10), SeedRange(110, 10), SeedRange(120, 10)]
    run = ScenarioRun(_recorded([]), rounds=50, state_dir=tmp_path)
    run.resume(seed=100, fresh=False)

    done = []
    for seeds in (ranges[2], ranges[0], ranges[1]):
        run.take(seeds, [], took_s=1)
        done.append(run.done)

    assert done == [0, 10, 30]


def test_a_finished_run_is_not_repeated_but_still_reports_its_failures(tmp_path: Path) -> None:
    seeds: list[int] = []
    scenario = _recorded(seeds, bad=lambda seed: seed == 103)
    run_scenarios([scenario], seed=100, state_dir=tmp_path)
    seeds.clear()

    assert run_scenarios([scenario], seed=100, state_dir=tmp_path) == FAILED

    assert seeds == []


def test_more_rounds_continue_a_finished_run(tmp_path: Path) -> None:
    seeds: list[int] = []
    run_scenarios([_recorded(seeds)], seed=100, state_dir=tmp_path)
    seeds.clear()

    run_scenarios([_recorded(seeds)], rounds=60, state_dir=tmp_path)

    assert seeds == list(range(150, 160))


@pytest.mark.parametrize(("seed", "fresh"), [(100, True), (7, False)])
def test_fresh_or_another_seed_starts_over(tmp_path: Path, seed: int, fresh: bool) -> None:
    seeds: list[int] = []
    run_scenarios([_recorded(seeds)], seed=100, state_dir=tmp_path)
    seeds.clear()

    run_scenarios([_recorded(seeds)], seed=seed, fresh=fresh, state_dir=tmp_path)

    assert seeds == list(range(seed, seed + 50))


def test_a_damaged_state_file_is_reported_and_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "store.register.json").write_text("{")
    seeds: list[int] = []

    assert run_scenarios([_recorded(seeds)], seed=1, state_dir=tmp_path) == PASSED

    assert len(seeds) == 50
    assert "is not understood" in capsys.readouterr().out


def test_a_run_leaves_the_level_of_the_log_as_it_was(tmp_path: Path) -> None:
    logger = logging.getLogger("headwater")
    before = logger.level
    logger.setLevel(logging.INFO)
    try:
        run_scenarios(
            [Scenario("package", "fine", lambda seed: None, rounds=2)], state_dir=tmp_path
        )
        assert logger.level == logging.INFO
    finally:
        logger.setLevel(before)


def test_package_and_name_select(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran: list[str] = []
    scenarios = [
        Scenario(package, name, lambda seed, key=f"{package}/{name}": ran.append(key), rounds=1)  # type: ignore[misc]
        for package in ("store", "buffer")
        for name in ("a", "b")
    ]

    run_scenarios(scenarios, package="store", state_dir=tmp_path)
    run_scenarios(scenarios, package="buffer", name="b", state_dir=tmp_path)
    assert ran == ["store/a", "store/b", "buffer/b"]

    assert run_scenarios(scenarios, package="nowhere", state_dir=tmp_path) == NOTHING_TO_RUN
    assert "there are: store/a, store/b, buffer/a, buffer/b" in capsys.readouterr().out


def test_the_sample_raises_with_the_command() -> None:
    seeds: list[int] = []
    _recorded(seeds).run_sample()
    assert seeds == [0, 1, 2, 3, 4]

    with pytest.raises(AssertionError) as raised:
        _recorded(seeds, bad=lambda seed: seed == 3).run_sample()
    assert raised.value.__notes__ == [
        "replay: make torture PACKAGE=store SCENARIO=register SEED=3 ROUNDS=1"
    ]


def _touch(folder: str, seed: int) -> None:
    with open(f"{folder}/{seed}", "x"):
        pass
    assert seed != 5, "five"


def _die(folder: str, seed: int) -> None:
    if seed == 5:
        os._exit(9)
    Path(folder, str(seed)).touch()


def test_several_processes_share_the_rounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "seen"
    folder.mkdir()
    scenario = Scenario("store", "many", functools.partial(_touch, str(folder)), rounds=40)

    assert run_scenarios([scenario], seed=0, jobs=2, state_dir=tmp_path) == FAILED

    assert {int(path.name) for path in folder.iterdir()} == set(range(40))
    assert "SEED=5 ROUNDS=1" in capsys.readouterr().out


def test_a_seed_that_kills_its_process_is_found_and_loses_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "seen"
    folder.mkdir()
    scenario = Scenario("store", "deadly", functools.partial(_die, str(folder)), rounds=20)

    assert run_scenarios([scenario], seed=0, jobs=2, state_dir=tmp_path) == FAILED

    assert {int(path.name) for path in folder.iterdir()} == set(range(20)) - {5}
    out = capsys.readouterr().out
    assert "20 rounds, 1 failing" in out
    assert "seed 5: the process that ran it died with exit code 9" in out


def test_options_come_from_the_command_line_or_else_from_the_environment() -> None:
    environment = {"PACKAGE": "store", "SCENARIO": "", "ROUNDS": "7", "SEED": "0", "JOBS": "3"}

    options = parse(["--rounds", "9"], environment)

    assert (options.package, options.scenario) == ("store", None)
    assert (options.rounds, options.seed, options.jobs) == (9, 0, 3)


def test_the_list_names_every_scenario_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"], {}) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [str(scenario) for scenario in discover()]
