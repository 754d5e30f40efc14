"""The programs of docs/replication.md run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/replication.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def run(program: str, capsys: pytest.CaptureFixture[str]) -> str:
    exec(compile(program, str(PAGE), "exec"), {"__name__": "__main__"})
    return capsys.readouterr().out


def test_a_leader_over_a_log_in_memory(capsys: pytest.CaptureFixture[str]) -> None:
    told = run(PROGRAMS[0], capsys)
    assert told == ("Committed(lsn=5, is_replicated=True, acknowledged_by=['standby'])\n5\n")


def test_a_spool_its_leader_and_a_replica(capsys: pytest.CaptureFixture[str]) -> None:
    committed, lengths, status = run(PROGRAMS[1], capsys).splitlines()
    assert committed == "Committed(lsn=2, is_replicated=True, acknowledged_by=['standby'])"
    assert lengths == "[2]"
    assert "applied_lsn=2, durable_lsn=2, lag_lsn=0, problem=None" in status
