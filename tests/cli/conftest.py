"""The command: as a user runs it, or within this process, which is faster and as good where the
process itself is not the point."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import headwater
from headwater.cli.app import app

Invoke = Callable[..., Result]
Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials, and without the width of a terminal (pytest's workers set one)."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "HEADWATER_")):
            monkeypatch.delenv(name)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    # Where no credentials are set, obstore asks the machine's own service: here nobody answers.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")


@pytest.fixture
def invoke(clean_environment: None) -> Invoke:
    """Runs `headwater …` in this process."""

    def run(*arguments: str, **env: str) -> Result:
        return CliRunner().invoke(app, list(arguments), env=env)

    return run


@pytest.fixture
def headwater_command(clean_environment: None, tmp_path: Path) -> Run:
    """Runs `headwater …` as a process."""
    source = str(Path(headwater.__path__[0]).parent)
    closed = {"PYTHONPATH": source, "TMPDIR": str(tmp_path)}

    def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "headwater.cli", *arguments],
            capture_output=True,
            env={**os.environ, **closed, **env},
            stdin=subprocess.DEVNULL,
            timeout=300,
        )

    return run
