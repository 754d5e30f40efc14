"""What commands load: those that need neither Arrow nor Spark do not wait for them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke

HEAVY = {"numpy", "pandas", "pyarrow", "pydantic", "pyiceberg", "pyspark"}
PROGRAM = """
import json, sys
from headwater.cli import main

try:
    main()
finally:
    loaded = sorted({name.partition(".")[0] for name in sys.modules})
    print(json.dumps(loaded), file=sys.stderr)
"""


def loaded_by(*arguments: str) -> set[str]:
    """The packages that a command has loaded when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode in (0, 1), done.stderr  # 1: there are none
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    "command",
    [
        "version",
        "--help",
        "stream --help",
        "store ls URL",
        "stream list URL",
        "stream list URL --json",
        "stream describe URL orders",
        "stream describe URL published",
        "stream create URL fresh",
        "stream create URL fresh --format v1",
        "stream alter URL orders --retention 3d",
        "lag URL orders",
        "lag URL orders --json",
        "group list URL orders",
        "gc URL orders",
    ],
)
def test_a_command_that_needs_no_arrow_loads_none(
    invoke: Invoke, tmp_path: Path, command: str
) -> None:
    url = f"file://{tmp_path}/store"
    (tmp_path / "lines").write_text("a\nb\n")
    for given in ("stream create {} orders", "stream create {} published --format v1"):
        assert invoke(*given.format(url).split()).exit_code == 0
    assert invoke("produce", url, "orders", str(tmp_path / "lines")).exit_code == 0
    assert loaded_by(*command.replace("URL", url).split()) & HEAVY == set()


def test_help_and_plain_output_do_not_load_rich(invoke: Invoke, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    assert invoke("stream", "create", url, "orders").exit_code == 0
    for command in ("--help", "stream create --help", "version", f"store ls {url}"):
        assert "rich" not in loaded_by(*command.split())


def test_a_command_that_reads_records_loads_arrow(invoke: Invoke, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    (tmp_path / "lines").write_text("a\n")
    assert invoke("stream", "create", url, "orders").exit_code == 0
    assert invoke("produce", url, "orders", str(tmp_path / "lines")).exit_code == 0
    assert "pyarrow" in loaded_by("read", url, "orders")
