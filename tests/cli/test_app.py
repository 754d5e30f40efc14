"""The command as a whole: help, version, and what starting it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from headwater.cli import app
from headwater.cli.advice import ADVICE, advice_for
from headwater.core import errors
from headwater.store.backend import Unreachable
from tests.cli.conftest import Run


def test_help_names_every_command(headwater_command: Run) -> None:
    done = headwater_command("--help")
    assert done.returncode == 0
    for name in ("demo", "store", "version"):
        assert name in done.stdout.decode()


def test_version_names_what_is_installed(headwater_command: Run) -> None:
    done = headwater_command("version")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.decode().splitlines()] == [
        "headwater",
        "obstore",
        "pyarrow",
        "pyspark",
        "python",
    ]


def test_no_command_shows_the_help() -> None:
    result = CliRunner().invoke(app, [])
    assert "Usage" in result.output


def test_starting_imports_nothing_heavy() -> None:
    heavy = "{'pyarrow', 'pyspark', 'pandas', 'numpy'} & set(sys.modules)"
    code = f"import sys, headwater.cli; sys.exit(str({heavy}) if {heavy} else 0)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (Unreachable("x"), "Check the network"),
        (errors.Throttled("x"), "ask for less"),
        (errors.RolledBack("x"), "keep a copy"),
        (errors.Corrupt("x"), "backup"),
        (errors.OutcomeUnknown("x"), "look before you repeat"),
        (errors.Denied("x"), None),
    ],
)
def test_advice_is_of_the_nearest_kind(error: errors.HeadwaterError, says: str | None) -> None:
    advice = advice_for(error)
    assert (advice is None) if says is None else (advice is not None and says in advice)


def test_no_advice_treats_an_unknown_outcome_as_a_failure() -> None:
    assert "Nothing" not in ADVICE[errors.OutcomeUnknown]
