"""The demo counts honestly, and what it counts is right."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headwater.cli import demo as demo_module
from headwater.cli.app import app
from headwater.cli.demo_consumer import last_line
from headwater.cli.demo_count import Count, accepted_numbers, count, delivered_numbers
from headwater.cli.demo_process import DemoProcess, Tail
from headwater.core.errors import HeadwaterError
from tests.cli.conftest import Run


def test_the_demo_kills_a_producer_and_the_consumer_and_finds_everything_once(
    headwater_command: Run, tmp_path: Path
) -> None:
    done = headwater_command("demo", "--producers=2", "--records=600", "--seconds=1")
    text = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    assert "every accepted record delivered once, in order: yes" in text
    assert re.search(r"producer-2 killed with \d+ records accepted", text)
    assert re.search(r"the consumer killed with \d+ records written down", text)
    for row in ("producer-1 ", "producer-2*"):
        [line] = [line for line in text.splitlines() if line.startswith(row)]
        assert line.split()[1:] == ["600", "600", "0", "0", "0"]
    assert re.search(r"total +1,200 +1,200 +0 +0 +0", text)
    [root] = tmp_path.glob("headwater-demo-*")
    commands = [line.strip() for line in text.partition("next:\n")[2].splitlines()]
    assert commands[-1] == f"rm -r {root}"
    shown = [_pasted(command) for command in commands]
    assert shown[0].splitlines()[0].startswith("producer-")
    assert shown[0].count("\n") == 5
    assert re.search(r"0 +0 +0 +0 B +0.0", shown[1])
    assert "events" in shown[2] or "partitions" in shown[2]
    assert shown[3].startswith("✓ queue of stream events, partition 0: good")
    assert re.search(r"pending batches +0", shown[3])
    assert not root.exists()


def test_a_demo_that_is_interrupted_says_what_it_leaves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(work: Coroutine[Any, Any, None]) -> None:
        work.close()
        raise KeyboardInterrupt

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(demo_module, "run_loop", interrupted)
    done = CliRunner().invoke(app, ["demo"])
    [root] = tmp_path.glob("headwater-demo-*")
    assert done.exit_code == 130
    assert done.stderr == f"what it wrote stays there until: rm -r {root}\n"


def _pasted(command: str) -> str:
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def test_everything_that_was_accepted_is_counted_over_all_lives() -> None:
    report = "resumed 0\naccepted 1 20\naccepted 21 40\nresumed 60\naccepted 61 65\naccep"
    assert accepted_numbers(report) == set(range(1, 66))


def test_what_was_delivered_is_told_apart_by_producer() -> None:
    assert delivered_numbers(["a:1", "b:1", "a:2"]) == {"a": [1, 2], "b": [1]}


@pytest.mark.parametrize(
    ("delivered", "expected"),
    [
        ([1, 2, 3], Count(3, 3, 0, 0, 0)),
        ([1, 3], Count(3, 2, 1, 0, 0)),
        ([1, 2, 2, 3], Count(3, 4, 0, 1, 0)),
        ([1, 3, 2], Count(3, 3, 0, 0, 1)),
        ([1, 2, 3, 2, 3], Count(3, 5, 0, 2, 1)),
        # Accepted just before a kill, and nobody was told: not lost, and not doubled either.
        ([1, 2, 3, 4], Count(3, 4, 0, 0, 0)),
    ],
)
def test_lost_doubled_and_disordered_records_are_counted(
    delivered: list[int], expected: Count
) -> None:
    found = count({1, 2, 3}, delivered)
    assert found == expected
    assert found.is_exact == (expected[2:] == (0, 0, 0))


def test_a_tail_gives_whole_lines_once(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "file")
    assert tail.lines() == []
    (tmp_path / "file").write_bytes(b"a\nb")
    assert tail.lines() == [b"a"]
    (tmp_path / "file").write_bytes(b"a\nbc\n")
    assert tail.lines() == [b"bc"]
    assert tail.lines() == []


def test_a_torn_line_of_the_ledger_is_cut_off(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    assert last_line(ledger) is None
    whole = b'{"sequence":4,"through":9,"values":["a:1"]}\n'
    ledger.write_bytes(whole + b'{"sequence":5,"thr')
    last = last_line(ledger)
    assert last is not None
    assert (last.sequence, last.through) == (4, 9)
    assert ledger.read_bytes() == whole


def test_a_process_that_fails_is_noticed_with_its_last_words(tmp_path: Path) -> None:
    process = DemoProcess("it", "headwater.cli.no_such_module", [], tmp_path / "log")
    process.start()
    assert process.process is not None
    process.process.wait(60)
    with pytest.raises(HeadwaterError, match=r"it failed: .*no_such_module"):
        assert process.is_done
    assert os.path.basename(sys.executable) in process.log.read_text()
