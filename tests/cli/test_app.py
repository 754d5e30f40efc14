"""The command as a whole: help, version, and what starting it costs."""

from __future__ import annotations

import contextvars
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from headwater.cli import advice
from headwater.cli.advice import ADVICE, advice_for, command
from headwater.cli.app import app
from headwater.core import errors
from headwater.store.backend import Unreachable
from tests.cli.conftest import Invoke, Run


def test_help_names_every_command(invoke: Invoke) -> None:
    done = invoke("--help")
    assert done.exit_code == 0
    for name in ("demo", "store", "version"):
        assert name in done.stdout


def test_version_names_what_is_installed(invoke: Invoke) -> None:
    done = invoke("version")
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "headwater",
        "obstore",
        "pyarrow",
        "pyspark",
        "python",
    ]


def test_no_command_shows_the_help(invoke: Invoke) -> None:
    assert "Usage" in invoke().output


def test_starting_imports_nothing_heavy() -> None:
    heavy = (
        "{'headwater.store', 'numpy', 'obstore', 'pandas', 'pyarrow', 'pyspark'} & set(sys.modules)"
    )
    code = f"import sys, headwater.cli.app; sys.exit(str({heavy}) if {heavy} else 0)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_next_to_nothing_is_loaded_before_an_interrupt_is_listened_for() -> None:
    code = "import sys, headwater.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    loaded = set(done.stdout.decode().split())
    rooms = {"headwater", "headwater.front", "headwater.cli", "headwater.cli.entry"}
    assert {name for name in loaded if name.startswith("headwater")} == rooms
    assert not loaded & {"asyncio", "logging", "msgspec", "obstore", "pyarrow", "typer"}


def test_advice_names_the_store(invoke: Invoke, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/my store"
    invoke("stream", "create", url, "events")
    cat = invoke("store", "cat", url, "key")
    assert f"store ls 'file://{tmp_path}/my store'\n" in cat.stderr
    for arguments in (("stream", "describe"), ("read",), ("lag",), ("gc",)):
        absent = invoke(*arguments, url, "nothing")
        assert f"stream list 'file://{tmp_path}/my store'\n" in absent.stderr
        assert absent.stderr.count("stream list") == absent.stderr.count("stream create") == 1
        assert "store ls" not in absent.stderr
    missing = invoke("inspect", "batch", str(tmp_path / "nothing"))
    assert "See " not in missing.stderr
    elsewhere = invoke("inspect", "batch", "memory://some/key")
    assert "store ls memory://some\n" in elsewhere.stderr


def test_advice_does_not_repeat_options_of_a_store() -> None:
    def run() -> str:
        advice._ADDRESSES.set([])
        advice.remember_address("s3://bucket", ["secret=hush"])
        return str(advice_for(errors.NotFound("x")))

    assert contextvars.copy_context().run(run).endswith(" store ls s3://bucket --option …")


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
    told = advice_for(error)
    assert (told is None) if says is None else (told is not None and says in told)


def test_a_command_is_shown_as_it_can_be_run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "some bin" / "headwater"
    script.parent.mkdir()
    monkeypatch.setattr(sys, "executable", str(script.parent / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert command() == f"'{script.parent}/python' -m headwater.cli"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert command() == f"'{script}'"
    monkeypatch.chdir(tmp_path)
    assert command() == "'some bin/headwater'"
    monkeypatch.setenv("PATH", str(script.parent))
    assert command() == "headwater"
    for kind in (errors.NotFound, errors.Bug):
        told = advice_for(kind("x"))
        assert told is not None
        assert "headwater " in told
        assert "{" not in told


def test_no_advice_treats_an_unknown_outcome_as_a_failure() -> None:
    assert "Nothing" not in ADVICE[errors.OutcomeUnknown]


def test_a_short_option_means_the_same_everywhere() -> None:
    """Or whoever is used to one command is surprised by the next."""
    meant: dict[str, set[str]] = {}

    def look(command: Any) -> None:
        for parameter in command.params:
            for short in parameter.opts:
                if short.startswith("-") and not short.startswith("--"):
                    meant.setdefault(short, set()).add(parameter.opts[0])
        for below in getattr(command, "commands", {}).values():
            look(below)

    look(typer.main.get_command(app))
    assert meant["-o"] == {"--output"}
    assert all(len(names) == 1 for names in meant.values()), meant


def test_help_shows_brackets(invoke: Invoke) -> None:
    for words in (("tier", "list"), ("stream", "delete"), ("inspect", "event")):
        shown = "".join(invoke(*words, "--help", COLUMNS="200").stdout.split())
        assert "headwater[kafka]" in shown, words


def test_the_version_and_the_help_have_the_usual_options(invoke: Invoke) -> None:
    assert re.fullmatch(r"headwater [0-9.a-z]+\n", invoke("--version").stdout)
    for words in ((), ("read",), ("store", "ls")):
        assert invoke(*words, "-h").stdout == invoke(*words, "--help").stdout
    found = json.loads(invoke("version", "--json").stdout)
    assert list(found) == ["headwater", "obstore", "pyarrow", "pyspark", "python", "platform"]
    assert f"headwater {found['headwater']}\n" == invoke("--version").stdout


def test_shells_can_complete_commands(headwater_command: Run) -> None:
    asked = {"_HEADWATER_COMPLETE": "complete_bash", "COMP_WORDS": "headwater st"}
    done = headwater_command(**asked, COMP_CWORD="1")
    assert done.stdout.split() == [b"store", b"stream"]


def test_the_address_may_come_from_the_environment(invoke: Invoke, tmp_path: Path) -> None:
    here, there = f"file://{tmp_path}/here", f"file://{tmp_path}/there"

    def ran(*arguments: str) -> str:
        done = invoke(*arguments, HEADWATER_URL=here)
        assert done.exit_code == 0, done.output
        return str(done.stdout)

    (tmp_path / "lines").write_text("one\n")
    ran("stream", "create", "events", "--partitions=2")
    ran("produce", "--partition", "1", "events", str(tmp_path / "lines"))
    assert ran("read", "--format", "lines", "events") == "one\n"
    assert ran("store", "ls", "streams") == ran("store", "ls", here, "streams")
    assert json.loads(ran("lag", "events", "--json"))["total"]["records"] == 1
    assert "events" in ran("stream", "list")
    # One that is given is the one that is meant.
    other = invoke("read", there, "events", HEADWATER_URL=here)
    assert (other.exit_code, "there is no stream 'events'" in other.stderr) == (2, True)
    for wrong in (("read",), ("read", "a", "b", "c"), ("read", "--no-such", "events")):
        assert invoke(*wrong, HEADWATER_URL=here).exit_code == 2
    assert "Missing argument" in invoke("read", "events", HEADWATER_URL="").stderr
