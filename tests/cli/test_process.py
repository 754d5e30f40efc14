"""The command as a process: closed pipes, full disks, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke

COMMAND = [sys.executable, "-m", "headwater.cli"]


def test_an_empty_store_is_said_to_be_empty(invoke: Invoke, tmp_path: Path) -> None:
    done = invoke("store", "ls", f"file://{tmp_path}/nowhere")
    assert done.exit_code == 1
    assert "no objects" in done.output


def test_a_check_whose_reader_is_gone_gives_no_verdict(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    url = f"file://{tmp_path}/store"
    check = ["store", "check", url, "--listed", "0", "--large-mib", "0"]
    done = subprocess.run([*COMMAND, *check], stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert done.returncode == 141
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_below_the_output_is_said_to_be_full() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "version"], stdout=full, stderr=subprocess.PIPE, timeout=60
        )
    assert done.returncode == 2
    assert b"cannot be written" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_check_that_is_told_to_end_removes_what_it_wrote(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    check = subprocess.Popen([*COMMAND, "store", "check", url], stdout=subprocess.PIPE)
    assert check.stdout is not None
    while b"read-your-write" not in (line := check.stdout.readline()):
        assert line, "the check ended by itself"
    check.send_signal(signal.SIGTERM)
    check.communicate(timeout=60)
    assert check.returncode == 128 + signal.SIGTERM
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in left if ".headwater" not in path.parts] == []
