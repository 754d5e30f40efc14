"""`headwater store check`, `ls` and `cat`, and what they say when they cannot."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import Result

from headwater.core.errors import Unavailable
from headwater.store import Store, conformance, open_store
from tests.cli.conftest import Invoke, Run
from tests.interop.servers import Server
from tests.store import wrong

CHECKS = len(conformance.CHECKS)
SMALL = "--writers=3 --increments=5 --racers=4 --keys=2 --listed=20 --large-mib=1".split()


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A directory store with two objects."""
    url = f"file://{tmp_path}/store"

    async def fill() -> None:
        async with open_store(url) as store:
            await store.put("logs/a", b"first\n")
            await store.put("logs/b", bytes(range(256)) * 100_000)
            await store.put("other", b"")

    asyncio.run(fill())
    return url


def test_check_finds_a_directory_safe_and_leaves_nothing(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("store", "check", f"file://{tmp_path}/store", *SMALL)
    assert result.exit_code == 0, result.output
    assert f"this store is safe for Headwater: {CHECKS} checks passed" in result.stdout
    assert result.stdout.count("✓ pass") == CHECKS
    assert "put_if_unchanged" in result.stdout
    assert "p99 ms" in result.stdout
    assert "free of charge" in result.stdout
    left = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert all(".headwater" in path.parts for path in left), left


def test_check_finds_a_real_server_safe(invoke: Invoke, ministack: Server) -> None:
    done = invoke("store", "check", f"{ministack.url}cli", *SMALL, **ministack.env)
    assert done.exit_code == 0, done.stderr
    assert "this store is safe" in done.stdout
    assert "about $0.0" in done.stdout


def test_check_as_json_prints_json_alone(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("store", "check", f"file://{tmp_path}/store", "--json", *SMALL)
    report = json.loads(result.stdout)
    assert report["safe"] is True
    assert len(report["checks"]) == CHECKS
    assert result.stderr == ""


@pytest.fixture
def wrong_store(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(url: str, **_: object) -> Store:
        return Store(wrong.IgnoresConditions(), url=url)

    monkeypatch.setattr("headwater.store.open_store", opened)


@pytest.mark.usefixtures("wrong_store")
def test_check_says_plainly_that_a_store_is_not_safe(invoke: Invoke) -> None:
    result = invoke("store", "check", "s3://bucket", *SMALL)
    assert result.exit_code == 1
    assert "this store is NOT safe: race-replace: 10 of 15 accepted updates" in result.stdout
    assert "do not use this store" in result.stdout
    assert "✗ fail       create-if-absent" in result.stdout
    assert "because a number in a log is taken once" in result.stdout


@pytest.mark.usefixtures("wrong_store")
def test_check_as_json_has_the_same_exit_status(invoke: Invoke) -> None:
    result = invoke("store", "check", "s3://bucket", "--json", *SMALL)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["safe"] is False


def test_an_undecided_check_is_neither_yes_nor_no(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def undecided(store: Store, **_: object) -> conformance.StoreReport:
        result = conformance.CheckResult("list", "why", "unfinished", "no answer", 0.1)
        return conformance.StoreReport(store.url, "x", [result], ["x/left"], 1, 0.0, {})

    monkeypatch.setattr(conformance, "check_store", undecided)
    result = invoke("store", "check", "memory://")
    assert result.exit_code == 2
    assert "undecided: list could not finish: no answer" in result.stdout
    assert "1 objects could not be removed" in result.stdout


def test_ls_lists_sizes_times_and_keys_in_order(headwater_command: Run, url: str) -> None:
    done = headwater_command("store", "ls", url)
    assert b"\x1b[" not in done.stdout
    lines = [line.split() for line in done.stdout.decode().splitlines()]
    assert [(line[0], line[2]) for line in lines] == [
        ("6", "logs/a"),
        ("25,600,000", "logs/b"),
        ("0", "other"),
    ]
    assert all(line[1].endswith("Z") for line in lines)
    assert done.stderr.decode().strip() == "3 objects, 25,600,006 bytes"


def test_ls_of_a_folder(invoke: Invoke, url: str) -> None:
    result = invoke("store", "ls", url, "logs")
    assert result.exit_code == 0
    assert [line.split()[-1] for line in result.stdout.splitlines()] == ["logs/a", "logs/b"]


def test_cat_writes_the_bytes_and_nothing_else(headwater_command: Run, url: str) -> None:
    done = headwater_command("store", "cat", url, "logs/b")
    assert done.returncode == 0
    assert done.stdout == bytes(range(256)) * 100_000


def test_cat_of_an_empty_object(invoke: Invoke, url: str) -> None:
    assert invoke("store", "cat", url, "other").stdout_bytes == b""


def error_of(done: Result) -> str:
    text = done.stderr
    assert done.exit_code == 2, done
    assert done.stdout.splitlines()[1:] == []  # at most the line that says what is tried
    assert text.startswith("error: "), text
    assert "Traceback" not in text
    return text


def test_a_bad_address_is_explained(invoke: Invoke) -> None:
    text = error_of(invoke("store", "check", "s3a://bucket"))
    assert "did you mean s3://" in text
    assert "An address looks like" in text
    assert "file:///" in error_of(invoke("store", "ls", "some/path"))


def test_a_missing_bucket_is_named(invoke: Invoke, ministack: Server) -> None:
    done = invoke("store", "check", "s3://no-such-bucket", **ministack.env)
    assert "s3://no-such-bucket does not exist" in error_of(done)


def test_missing_credentials_are_said_to_be_missing(invoke: Invoke) -> None:
    text = error_of(invoke("store", "check", "s3://bucket"))
    assert "no credentials for s3://bucket" in text
    assert "AWS_ACCESS_KEY_ID" in text


def test_credentials_in_the_address_are_refused(invoke: Invoke) -> None:
    done = invoke("store", "ls", "s3://bucket", "--option", "secret_access_key=hunter2")
    text = error_of(done)
    assert "hunter2" not in text
    assert "credentials are not passed as options" in text


@pytest.mark.parametrize("verb", ["check", "ls"])
def test_a_pasted_signature_is_shown_nowhere(invoke: Invoke, verb: str) -> None:
    for url in ("https://a.blob.core.windows.net/c?sig=hunter2", "az://c?sig=hunter2#x"):
        done = invoke("store", verb, url)
        assert error_of(done)
        assert "hunter2" not in done.output
    assert "hunter2" not in invoke("store", verb, "memory://", "--option", "hunter2").output


def test_a_server_that_is_not_there(invoke: Invoke) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    done = invoke("store", "ls", "s3://bucket", "--option", "endpoint=http://127.0.0.1:1", **keys)
    text = error_of(done)
    assert "cannot connect to s3://bucket" in text
    assert "Check the network" in text


def test_a_file_in_place_of_the_directory(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    text = error_of(invoke("store", "check", f"file://{tmp_path}/file/store"))
    assert "file" in text


def test_an_absent_key(invoke: Invoke, url: str) -> None:
    text = error_of(invoke("store", "cat", url, "nothing/here"))
    assert "nothing/here" in text
    assert "headwater store ls" in text


def test_an_option_that_is_not_a_pair(invoke: Invoke) -> None:
    for option in ("endpoint", "=x", "policy=x"):
        result = invoke("store", "ls", "memory://", "--option", option)
        assert result.exit_code == 2
        assert "--option" in result.stderr


def test_a_traceback_is_shown_to_who_asks_for_it(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> Store:
        raise Unavailable("not today")

    monkeypatch.setattr("headwater.store.open_store", fails)
    shown = invoke("store", "ls", "memory://")
    assert shown.exit_code == 2
    assert shown.stderr.splitlines()[0] == "error: not today"
    monkeypatch.setenv("HEADWATER_DEBUG", "1")
    raised = invoke("store", "ls", "memory://")
    assert isinstance(raised.exception, Unavailable)
