"""Errors whose sentence comes first: in Spark's own workers, and nowhere else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import traceback
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from headwater.core.errors import Bug, Refused, Trimmed
from headwater.spark.errors import HIDE, message_first, plain_errors

ROOT = Path(__file__).parents[2]


@plain_errors
def fails(error: Exception) -> None:
    """Raises what it is given."""
    raise error


@plain_errors
def fails_later(error: Exception) -> Iterator[int]:
    yield 1
    raise error


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the process were one of Spark's workers."""
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec("pyspark.daemon", None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setenv(HIDE, "before")
    monkeypatch.delenv(HIDE)


@pytest.mark.usefixtures("worker")
def test_an_error_with_a_cure_is_sent_without_its_traceback() -> None:
    with pytest.raises(Refused):
        fails(Refused("do this"))
    assert os.environ[HIDE]
    assert (fails.__name__, fails.__doc__) == ("fails", "Raises what it is given.")


@pytest.mark.usefixtures("worker")
def test_rows_that_fail_half_way_say_so_first() -> None:
    rows = fails_later(Refused("do this"))
    assert next(rows) == 1
    assert HIDE not in os.environ
    with pytest.raises(Refused):
        next(rows)
    assert os.environ[HIDE]


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("error", [Bug("ours"), ZeroDivisionError("somewhere")])
def test_an_error_that_needs_its_traceback_keeps_it(error: Exception) -> None:
    with pytest.raises(type(error)):
        fails(error)
    assert HIDE not in os.environ


def test_a_process_of_the_users_own_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HIDE, raising=False)
    with pytest.raises(Refused):
        fails(Refused("do this"))
    assert HIDE not in os.environ


@message_first
def called_back(error: Exception) -> None:
    raise error


def test_a_traceback_from_the_drivers_process_begins_with_the_sentence() -> None:
    for error in (Refused("do this"), Trimmed("begin at 5", floor_lsn=5)):
        error.__cause__ = KeyError("somewhere below")
        with pytest.raises(type(error)) as raised:
            called_back(error)
        told = "".join(traceback.format_exception(raised.value))
        assert told.splitlines()[0] == f"headwater.core.errors.{type(error).__name__}: {error}"
        assert "somewhere below" in told
        assert raised.value is error


@pytest.mark.parametrize("error", [Bug("ours"), ZeroDivisionError("somewhere")])
def test_what_is_not_expected_in_the_drivers_process_stays_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        called_back(error)
    assert "".join(traceback.format_exception(raised.value)).startswith("Traceback")


@pytest.mark.parametrize(
    ("absent", "module", "cure"),
    [
        (
            "pyspark",
            "headwater.spark",
            (
                "headwater.spark needs PySpark 4.1 or newer (No module named 'pyspark'): "
                "pip install 'pyspark[pipelines]>=4.1,<5' 'pandas<3'"
            ),
        ),
        (
            "pyiceberg",
            "headwater.table.catalog",
            (
                "Iceberg tables need pyiceberg (No module named 'pyiceberg'): "
                "pip install 'pyiceberg>=0.12,<0.13'"
            ),
        ),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    absent: str, module: str, cure: str
) -> None:
    program = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {absent!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Absent())
try:
    import {module}
except ModuleNotFoundError as error:
    print(error, error.name, sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.stdout.decode().splitlines() == [cure, absent]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    bounds = extras["spark" if absent == "pyspark" else "iceberg"]
    assert set(re.findall("'([^' ]+[<>][^' ]+)'", cure)) == set(bounds)
