"""The parts of the demo: what it counts is right, and it says so when something is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from headwater.cli import demo_run as demo_module
from headwater.cli.app import app
from headwater.cli.demo_orders import accepted_numbers, compare, fingerprint, order_of
from headwater.cli.demo_run import DemoProcess, ReportFile
from headwater.core.errors import HeadwaterError


def test_a_demo_that_is_interrupted_says_what_it_leaves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(work: Coroutine[Any, Any, None]) -> None:
        work.close()
        raise KeyboardInterrupt

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(demo_module, "run_loop", interrupted)
    done = CliRunner().invoke(app, ["demo"])
    [root] = tmp_path.glob("headwater-demo-*")
    assert done.exit_code == 130
    assert done.stderr == f"what it wrote stays there until: rm -r {root}\n"


def test_a_demo_without_its_packages_names_them_with_their_versions() -> None:
    absent = ("pyspark", "pandas", "pyiceberg", "duckdb")
    program = f"""
import importlib.util, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Absent())
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name in {absent} else find_spec(name)
sys.argv[1:] = ["demo"]
from headwater.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode() == (
        "error: the demo needs pyspark, pandas, pyiceberg, duckdb: pip install "
        "'pyspark>=4.1,<5' 'pandas>=2,<3' 'pyiceberg>=0.12,<0.13' 'duckdb>=1.4' "
        "(or, in a clone, make demo)\n"
    )


def test_everything_that_was_accepted_is_counted_over_all_lives() -> None:
    report = "resumed 0\naccepted 1 20\naccepted 21 40\nresumed 60\naccepted 61 65\naccep"
    assert accepted_numbers(report) == set(range(1, 66))


ORDERS = [order_of("north", number) for number in range(1, 6)]


def test_a_fingerprint_does_not_depend_on_the_order_and_sees_every_order_twice() -> None:
    assert fingerprint(ORDERS) == fingerprint(reversed(ORDERS))
    assert fingerprint(ORDERS) != fingerprint(ORDERS[1:])
    assert fingerprint([*ORDERS, ORDERS[0]]) != fingerprint(ORDERS)


@pytest.mark.parametrize(
    ("read", "stored", "problems"),
    [
        (ORDERS, ORDERS[::-1], []),
        (ORDERS[1:], ORDERS, ["the stream lacks 1, for one north-000001"]),
        (ORDERS, [*ORDERS, ORDERS[2]], ["the table has 1 too many, for one north-000003"]),
        (
            ORDERS,
            [*ORDERS[:-1], order_of("south", 1)],
            [
                "the table lacks 1, for one north-000005",
                "the table has 1 too many, for one south-000001",
            ],
        ),
    ],
)
def test_what_is_missing_and_what_is_there_twice_is_named(
    read: list[Any], stored: list[Any], problems: list[str]
) -> None:
    verdict = compare(ORDERS, read, stored)
    assert verdict.problems == problems
    assert verdict.is_exact == (not problems)


def test_contents_that_differ_are_noticed() -> None:
    changed = [msgspec.structs.replace(ORDERS[0], cents=1), *ORDERS[1:]]
    assert compare(ORDERS, ORDERS, changed).problems == [
        "counts agree, and the contents of some orders do not"
    ]


def test_a_tail_gives_whole_lines_once(tmp_path: Path) -> None:
    tail = ReportFile(tmp_path / "file")
    assert tail.lines() == []
    (tmp_path / "file").write_bytes(b"a\nb")
    assert tail.lines() == [b"a"]
    (tmp_path / "file").write_bytes(b"a\nbc\n")
    assert tail.lines() == [b"bc"]
    assert tail.lines() == []


def test_a_process_that_fails_is_noticed_with_its_last_words(tmp_path: Path) -> None:
    process = DemoProcess("it", "headwater.cli.no_such_module", [], tmp_path / "log")
    process.start()
    assert process.process is not None
    process.process.wait(60)
    with pytest.raises(HeadwaterError, match=r"it failed: .*no_such_module"):
        assert process.is_done
    assert os.path.basename(sys.executable) in process.log.read_text()


def test_a_job_whose_worker_started_too_slowly_for_spark_is_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "busy_once.py").write_text(
        "import pathlib, sys\n"
        "mark = pathlib.Path(sys.argv[1])\n"
        "if not mark.exists():\n"
        "    mark.touch()\n"
        f"    sys.exit('{demo_module.SLOW_WORKER}')\n"
        "sys.exit(sys.argv[2] or 0)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    for later, said in (("", ""), ("another error", "another error")):
        root = tmp_path / f"root-{later}"
        root.mkdir()
        demo = demo_module.Demo(root, orders=2, seconds=1)
        demo.job = DemoProcess("the job", "busy_once", [str(root / "mark"), later], root / "log")
        demo.job.start()
        assert demo.job.process is not None
        demo.job.process.wait(60)
        assert not demo.look()
        assert demo.job.lives == 2
        assert "too busy" in capsys.readouterr().out
        demo.job.process.wait(60)
        if said:
            with pytest.raises(HeadwaterError, match=said):
                demo.look()
        else:
            assert demo.job.is_done
        assert demo.job.lives == 2
