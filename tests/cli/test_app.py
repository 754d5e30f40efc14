"""The command as a whole: help, version, and what starting it costs."""

from __future__ import annotations

import ast
import contextvars
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import headwater
from headwater.cli import advice
from headwater.cli.advice import ADVICE, advice_for, command
from headwater.cli.app import app
from headwater.core import errors
from headwater.store.backend import Unreachable
from tests.cli.conftest import Invoke


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


def test_version_as_json(invoke: Invoke) -> None:
    found = json.loads(invoke("version", "--json").stdout)
    assert list(found) == ["headwater", "obstore", "pyarrow", "pyspark", "python", "platform"]
    assert found["headwater"] == metadata.version("headwater")


def test_the_usual_options_ask_for_version_and_help(invoke: Invoke) -> None:
    assert invoke("--version").stdout == f"headwater {metadata.version('headwater')}\n"
    assert invoke("-h").stdout == invoke("--help").stdout
    assert invoke("stream", "create", "-h").stdout == invoke("stream", "create", "--help").stdout


def test_help_shows_words_in_brackets() -> None:
    sample = typer.Typer(rich_markup_mode=app.rich_markup_mode)

    @sample.command()
    def only(servers: str = typer.Option("", help="Needs headwater[kafka].")) -> None:
        """Reads [kafka] topics."""

    shown = CliRunner().invoke(sample, ["--help"]).stdout
    assert "headwater[kafka]" in shown
    assert "Reads [kafka] topics." in shown
    for group in app.registered_groups:
        assert group.typer_instance is not None
        assert group.typer_instance.rich_markup_mode == app.rich_markup_mode


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ("produce", "URL STREAM [FILE]..."),
        ("store ls", "URL [PREFIX]"),
        ("store cat", "URL KEY"),
        ("stream copy", "URL STREAM NEW_URL NEW_STREAM"),
        ("inspect batch", "[FILE|URL|-]"),
        ("doctor", "[URL]"),
    ],
)
def test_usage_names_arguments_as_manual_pages_do(invoke: Invoke, words: str, usage: str) -> None:
    shown = invoke(*words.split(), "--help").stdout
    assert shown.splitlines()[0].endswith(f" {words} [OPTIONS] {usage}")


@pytest.mark.parametrize(
    ("arguments", "environment", "shown"),
    [
        (["--show-completion", "bash"], {}, "_HEADWATER_COMPLETE=complete_bash"),
        ([], {"_HEADWATER_COMPLETE": "complete_bash", "COMP_WORDS": "headwater str"}, "stream"),
    ],
)
def test_shells_complete_commands(
    arguments: list[str], environment: dict[str, str], shown: str
) -> None:
    code = "import sys; from headwater.cli import main; sys.argv[0] = 'headwater'; main()"
    typer_reads = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **typer_reads, **environment},
        capture_output=True,
        check=True,
    )
    assert shown in done.stdout.decode()


def test_the_address_may_come_from_the_environment(invoke: Invoke, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    invoke("stream", "create", url, "orders")
    given = {"HEADWATER_URL": url}
    assert "orders" in invoke("stream", "list", **given).stdout
    assert "orders" in invoke("stream", "describe", "orders", **given).stdout
    described = invoke("stream", "describe", "--json", "orders", **given).stdout
    assert json.loads(described)["name"] == "orders"
    assert "Usage" in invoke("stream", "describe", "--help", **given).stdout
    inspected = invoke("inspect", "queue", "--stream", "orders", **given)
    assert (inspected.exit_code, inspected.stderr) == (0, "")
    inspected = invoke("inspect", "event", "--metadata-partition", "0", **given)
    assert "is not an address" not in inspected.stderr


def test_an_address_that_is_given_wins_over_the_environment(invoke: Invoke, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    invoke("stream", "create", url, "orders")
    other = {"HEADWATER_URL": f"file://{tmp_path}/other"}
    assert "orders" in invoke("stream", "list", url, **other).stdout
    assert invoke("stream", "list", **other).exit_code == 1


def test_without_the_environment_the_address_is_asked_for(invoke: Invoke) -> None:
    done = invoke("stream", "describe", "orders", HEADWATER_URL="")
    assert done.exit_code == 2
    assert "Missing argument" in done.output
    for words in ("queue --stream orders", "event --metadata-partition 0"):
        done = invoke("inspect", *words.split(), HEADWATER_URL="")
        assert done.exit_code == 2
        assert "give URL, or set HEADWATER_URL" in done.stderr


@pytest.mark.parametrize("words", ["read events", "stream describe events", "gc events"])
def test_a_name_without_an_address_lacks_the_address(invoke: Invoke, words: str) -> None:
    found = invoke(*words.split(), HEADWATER_URL="")
    assert found.exit_code == 2
    assert "Missing argument 'URL': 'events' is no address of a store. Give that" in found.stderr
    assert "HEADWATER_URL" in found.stderr
    assert "STREAM'" not in found.stderr


def test_an_address_without_a_name_lacks_the_name(invoke: Invoke, tmp_path: Path) -> None:
    found = invoke("read", f"file://{tmp_path}")
    assert (found.exit_code, "Missing argument 'STREAM'" in found.stderr) == (2, True)


def test_no_command_shows_the_help(invoke: Invoke) -> None:
    assert "Usage" in invoke().output


def test_starting_imports_nothing_heavy() -> None:
    heavy = (
        "{'headwater.store', 'numpy', 'obstore', 'pandas', 'pyarrow', 'pyspark'} & set(sys.modules)"
    )
    code = f"import sys, headwater.cli.app; sys.exit(str({heavy}) if {heavy} else 0)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_next_to_nothing_is_loaded_before_an_interrupt_is_listened_for() -> None:
    code = "import sys; from headwater.cli import main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    loaded = set(done.stdout.decode().split())
    packages = {"headwater", "headwater.lazy_exports", "headwater.cli", "headwater.cli.__main__"}
    assert {name for name in loaded if name.startswith("headwater")} == packages
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
    assert "List " not in missing.stderr
    elsewhere = invoke("inspect", "batch", "memory://some/key")
    assert "store ls memory://some\n" in elsewhere.stderr


def test_advice_does_not_repeat_options_of_a_store() -> None:
    def run() -> str:
        advice.forget_addresses()
        advice.remember_address("s3://bucket", ["secret=hush"])
        return str(advice_for(errors.NotFound("x")))

    assert contextvars.copy_context().run(run).endswith(" store ls s3://bucket --option …")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (Unreachable("x"), "Check the network"),
        (errors.Throttled("x"), "request less"),
        (errors.RolledBack("x"), "keep a copy"),
        (errors.Corrupt("x"), "backup"),
        (errors.OutcomeUnknown("x"), "check before you repeat"),
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


def test_the_advice_that_is_replaced_is_still_given_somewhere() -> None:
    package = Path(headwater.__file__).parent
    texts = {
        node.value
        for path in package.rglob("*.py")
        if package / "cli" not in path.parents
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    for program, _ in advice.IN_COMMANDS:
        assert any(program in text for text in texts), program


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


def test_an_address_with_options_is_advised_as_a_shell_takes_it(invoke: Invoke) -> None:
    done = invoke("stream", "list", "http://127.0.0.1:9000/bucket")
    assert "'s3://BUCKET/PREFIX?endpoint=http://127.0.0.1:9000'" in done.stderr
