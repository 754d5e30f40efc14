"""A server to talk to, and the command as a user runs it: a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headwater
from tests.interop.servers import GOOD, Server

Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    recipe = next(recipe for recipe in GOOD if recipe.name == "ministack")
    with recipe.start(tmp_path_factory.mktemp("ministack")) as server:
        yield server


@pytest.fixture
def headwater_command(tmp_path: Path) -> Run:
    """Runs `headwater …` in an environment without anybody's credentials."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "AZURE_", "GOOGLE_", "HEADWATER_"))
    }
    source = str(Path(headwater.__path__[0]).parent)
    # Where no credentials are set, obstore asks the machine's own service: here nobody answers.
    closed = {"PYTHONPATH": source, "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    closed["AWS_METADATA_ENDPOINT"] = "http://127.0.0.1:1"

    def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "headwater.cli", *arguments],
            capture_output=True,
            env={**clean, **closed, **env},
            stdin=subprocess.DEVNULL,
            timeout=120,
        )

    return run
