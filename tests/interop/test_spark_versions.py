"""Tests of Spark on the versions for which the runtimes of Delta and Iceberg are released."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.interop.cache import REPO, Unavailable
from tests.interop.spark_environment import SPARK_4_1, SPARK_4_2, python_with_spark

ALL_TESTS_TIMEOUT_S = 3000
RUN_BY_ITSELF = ["--ignore", "tests/spark/test_cluster.py"]
WITHOUT_LIMITS = [
    # They play a Spark that tells a source where to begin and how much it may read.
    *("--ignore", "tests/spark/source/test_restarts.py"),
    *("--ignore", "tests/spark/source/test_data_loss.py"),
    *("--ignore", "tests/spark/source/test_groups.py"),
    *("--ignore", "tests/spark/source/test_stream_reader.py"),
    # Nobody is acknowledged within the one micro-batch of an AvailableNow, hence nobody fenced.
    "--deselect",
    "tests/spark/test_reading.py::test_a_stream_read_twice_in_one_query_needs_two_groups",
]


@pytest.mark.interop
@pytest.mark.parametrize(("version", "without"), [(SPARK_4_2, []), (SPARK_4_1, WITHOUT_LIMITS)])
def test_the_tests_of_the_room_pass_on(version: str, without: list[str], tmp_path: Path) -> None:
    try:
        python = python_with_spark(version)
    except Unavailable as reason:
        pytest.skip(f"Spark {version}: {reason}")
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/spark"]
    command += [*RUN_BY_ITSELF, *without]
    command += ["-m", "not interop and not torture", "--basetemp", str(tmp_path / "tests")]
    sources = os.pathsep.join([str(REPO / "src"), str(REPO)])
    done = subprocess.run(
        command,
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": sources},
        capture_output=True,
        text=True,
        timeout=ALL_TESTS_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
