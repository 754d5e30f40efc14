"""Spark Connect: the client has no Java and no executors, and micro-batches run on the server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.interop
def test_tables_and_json_over_spark_connect(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.interop.spark_connect_program", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "UserWarning" not in done.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["rescued"] == [[1, '{"id": 1, "x": 2}']]
    assert told["once"] == 10
    assert "checkpoint_location=" in told["refused"]
    assert (told["own"], told["batches"], told["ids"]) == (True, ["0", "1", "2"], [0, 1, 2])
