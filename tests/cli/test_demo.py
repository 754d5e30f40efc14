"""The demo counts honestly, and what it counts is right."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

from headwater.cli.demo_count import Count, count_entries, count_updates, read_reports
from headwater.store import Entry
from tests.cli.conftest import Run


def test_the_demo_kills_a_process_and_finds_everything_once(
    headwater_command: Run, tmp_path: Path
) -> None:
    done = headwater_command("demo", "--workers=2", "--entries=30")
    text = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    assert "every accepted entry is there exactly once: yes" in text
    assert re.search(r"worker-2 killed after \d+ entries", text)
    for row in ("entries of the sequence", "updates of the register"):
        [line] = [line for line in text.splitlines() if line.startswith(row)]
        accepted, found, unreported, lost, doubled = map(int, line.split()[-5:])
        assert (lost, doubled) == (0, 0)
        assert found == accepted + unreported
        assert accepted > 40
        assert unreported <= 1
    [root] = tmp_path.glob("headwater-demo-*")
    _, _, after = text.partition("next:\n")
    commands = [line.strip() for line in after.splitlines()]
    assert [command.split()[-2:] for command in commands] == [
        ["ls", f"file://{root}/store"],
        [f"file://{root}/store", "updates"],
        ["check", f"file://{root}/store"],
        ["-r", str(root)],
    ]
    listed = subprocess.run(commands[0], shell=True, check=True, capture_output=True)
    assert b"  updates\n" in listed.stdout


def entries(*names: str) -> list[Entry]:
    return [Entry(number, name.encode()) for number, name in enumerate(names)]


def test_reports_are_put_together_and_a_torn_line_says_nothing() -> None:
    told = read_reports(["entry a.1:0 0\nupdate a.1 1\nentry a.1:1 2\nup", "entry b.1:0 1\n", ""])
    assert told.entries == {"a.1:0": 0, "a.1:1": 2, "b.1:0": 1}
    assert told.updates == Counter({"a.1": 1})


def test_entries_that_are_all_there() -> None:
    count = count_entries({"a.1:0": 0, "b.1:0": 1}, entries("a.1:0", "b.1:0"), set())
    assert count == Count(accepted=2, found=2, unreported=0, lost=0, doubled=0)
    assert count.is_exact


def test_an_entry_that_is_gone_or_elsewhere_is_lost() -> None:
    assert count_entries({"a.1:0": 0, "a.1:1": 1}, entries("a.1:0"), set()).lost == 1
    moved = count_entries({"a.1:0": 0, "a.1:1": 1}, entries("a.1:1", "a.1:0"), set())
    assert moved.lost == 2
    assert not moved.is_exact


def test_an_entry_that_is_there_twice_is_doubled() -> None:
    count = count_entries({"a.1:0": 1}, entries("a.1:0", "a.1:0"), {"a.1"})
    assert (count.doubled, count.lost, count.is_exact) == (1, 0, False)


def test_a_killed_run_may_have_one_entry_that_nobody_was_told_of() -> None:
    found = entries("a.1:0", "a.1:1")
    assert count_entries({"a.1:0": 0}, found, {"a.1"}).unreported == 1
    assert count_entries({"a.1:0": 0}, found, {"a.1"}).is_exact
    # A run that was not killed reported everything it was told: this one came from nowhere.
    assert count_entries({"a.1:0": 0}, found, set()).doubled == 1
    assert count_entries({}, found, {"a.1"}).doubled == 1


def test_updates_are_counted_by_run() -> None:
    exact = count_updates({"a.1": 3, "b.1": 2}, {"a.1": 4, "b.1": 2}, {"a.1"})
    assert exact == Count(accepted=5, found=6, unreported=1, lost=0, doubled=0)
    assert count_updates({"a.1": 3, "b.1": 2}, {"a.1": 4, "b.1": 1}, set()) == Count(5, 5, 0, 1, 1)
    assert count_updates({"a.1": 1}, {}, {"a.1"}).lost == 1
