"""The programs of docs/replication.md run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/replication.md"
[FOLLOWING, PROMOTING] = re.findall(
    r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
)


def run(program: str, capsys: pytest.CaptureFixture[str]) -> str:
    exec(compile(program, str(PAGE), "exec"), {"__name__": "__main__"})
    return capsys.readouterr().out


def test_a_spool_its_leader_and_a_replica(capsys: pytest.CaptureFixture[str]) -> None:
    committed, lengths, status = run(FOLLOWING, capsys).splitlines()
    assert committed == "Committed(lsn=2, is_replicated=True, acknowledged_by=['standby'])"
    assert lengths == "[2]"
    assert "applied_lsn=2, durable_lsn=2, lag_lsn=0, problem=None" in status


def test_a_copy_that_leads_and_a_leader_that_follows(capsys: pytest.CaptureFixture[str]) -> None:
    committed, keys = run(PROMOTING, capsys).splitlines()
    assert committed == "Committed(lsn=3, is_replicated=True, acknowledged_by=['former'])"
    assert keys == "[b'a', b'b', b'd']"
