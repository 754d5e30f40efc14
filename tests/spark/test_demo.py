"""The demo proves what it says, from the first order to the last command it advises."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.cli.conftest import Run, clean_environment, headwater_command

__all__ = ["clean_environment", "headwater_command"]


def test_the_demo_kills_a_producer_and_the_job_and_finds_every_order_once(
    headwater_command: Run, tmp_path: Path
) -> None:
    done = headwater_command("demo", "--orders=4000", "--seconds=2")
    text = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    assert "exactly once: yes" in text
    assert re.search(r"south killed with [\d,]+ orders accepted", text)
    assert re.search(r"the PySpark job killed with [\d,]+ orders in the table", text)
    assert re.search(r"Spark runs micro-batch \d+ again, and the table has it already", text)
    rows = re.findall(r"^(accepted|read|stored) .* 4,000 +([0-9a-f]{16})$", text, re.MULTILINE)
    assert [name for name, _ in rows] == ["accepted", "read", "stored"]
    assert len({hashed for _, hashed in rows}) == 1
    assert re.search(r"^08:00 .* 4,000$", text, re.MULTILINE)
    assert re.search(r"^coffee +1,1\d\d ", text, re.MULTILINE)
    [root] = tmp_path.glob("headwater-demo-*")
    commands = [line.strip() for line in text.partition("next:\n")[2].splitlines()]
    assert commands[-1] == f"rm -r {root}"
    shown = [_pasted(command) for command in commands]
    assert shown[0].startswith('{"order":"')
    assert re.search(r"0 +0 +0 +0 B +0.0", shown[1])
    assert shown[3].startswith("✓ queue of stream orders, partition 0: good")
    assert not root.exists()


def _pasted(command: str) -> str:
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout
