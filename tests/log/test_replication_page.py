"""The program of docs/replication.md runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/replication.md"
[PROGRAM] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def run(program: str, capsys: pytest.CaptureFixture[str]) -> str:
    exec(compile(program, str(PAGE), "exec"), {"__name__": "__main__"})
    return capsys.readouterr().out


def test_a_spool_its_leader_and_a_replica(capsys: pytest.CaptureFixture[str]) -> None:
    committed, lengths, status = run(PROGRAM, capsys).splitlines()
    assert committed == "Committed(lsn=2, is_replicated=True, acknowledged_by=['standby'])"
    assert lengths == "[2]"
    assert "applied_lsn=2, durable_lsn=2, lag_lsn=0, problem=None" in status
