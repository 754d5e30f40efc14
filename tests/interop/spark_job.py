"""The job of `spark_program`, run in a process of its own, and what must hold of what it saw."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.interop.cache import REPO
from tests.interop.spark_program import REPEATED_ROWS, ROWS_PER_TRIGGER, TOTAL

TIMEOUT_S = 1500
PROGRAM = REPO / "tests" / "interop" / "spark_program.py"
NOT_INHERITED = (
    "AWS_PROFILE",
    "PYSPARK_DRIVER_PYTHON",
    "PYSPARK_PYTHON",
    "PYTHONPATH",
    "SPARK_REMOTE",
)


def run_job(
    folder: Path,
    session: Mapping[str, Any],
    *parts: str,
    url: str | None = None,
    python: Path | str = sys.executable,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What the job saw, by part; and all that it printed, as `printed`."""
    folder.mkdir(exist_ok=True)
    command = [str(python), str(PROGRAM), str(folder), json.dumps(session)]
    known = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    # Spark sends this variable to executors: only for a Python that has no Headwater.
    sources = {} if python == sys.executable else {"PYTHONPATH": str(REPO / "src")}
    done = subprocess.run(
        [*command, url or f"file://{folder}", *parts],
        cwd=folder,
        env={**known, **sources, **(env or {})},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    told: dict[str, Any] = json.loads((folder / "told.json").read_text())
    return {**told, "printed": printed}


def check_rows(told: Mapping[str, Any], *, unacknowledged: int = 0) -> None:
    """Every row is everywhere once; so many batches are left to acknowledge."""
    ids = list(range(TOTAL))
    assert told["batch"] == {"ids": ids, "offsets": TOTAL}
    assert sum(told["stream"]["rows"]) == TOTAL
    assert told["stream"]["written"] == ids
    assert told["stream"]["unacknowledged"] == unacknowledged
    assert told["table"]["ids"] == ids
    assert told["repeated"] == REPEATED_ROWS
    assert "nothing-of-this-name" in told["refusals"][0]
    assert "damaged" in told["refusals"][1]


def check_limits(told: Mapping[str, Any]) -> None:
    """A query ends with what was there, in micro-batches within the limit."""
    assert told["limits"]
    assert len(told["stream"]["rows"]) > 1
    assert max(told["stream"]["rows"]) <= ROWS_PER_TRIGGER


def event_log(folder: Path) -> dict[str, Any]:
    """Settings that make Spark write its events there, in clear, so that they can be searched."""
    return {
        "spark.eventLog.enabled": True,
        "spark.eventLog.dir": str(folder),
        "spark.eventLog.compress": False,
    }


def check_logged(folder: Path) -> None:
    """Whoever searches these events finds what is there."""
    texts = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert any(b"SparkListenerJobStart" in text and b"headwater" in text for text in texts)


def remove_work(told: Mapping[str, Any]) -> None:
    """A cluster of local processes leaves the folders of its executors within Spark's own."""
    for worker in told["workers"]:
        shutil.rmtree(Path(worker["folder"]).parent, ignore_errors=True)


def check_hidden(secrets: Sequence[str], told: Mapping[str, Any], folder: Path) -> None:
    """No secret is in what was seen and printed, nor in any file below a folder."""
    assert all(secrets)
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert files
    for secret in secrets:
        assert secret not in json.dumps(told)
        found = [path for path in files if secret.encode() in path.read_bytes()]
        assert not found, f"a secret is in {found}"
