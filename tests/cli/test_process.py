"""The command as a process: closed pipes, full disks, signals."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.cli.app import app
from headwater.cli.command_line import output_problem
from headwater.log import Spool
from tests.cli.conftest import Invoke
from tests.log.given import numbered, wait

COMMAND = [sys.executable, "-m", "headwater.cli"]


def test_an_empty_store_is_said_to_be_empty(invoke: Invoke, tmp_path: Path) -> None:
    done = invoke("store", "ls", f"file://{tmp_path}/nowhere")
    assert done.exit_code == 1
    assert "no objects" in done.output


def test_a_check_whose_reader_is_gone_gives_no_verdict(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    url = f"file://{tmp_path}/store"
    check = ["store", "check", url, "--listed", "0", "--large-mib", "0"]
    done = subprocess.run([*COMMAND, *check], stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert done.returncode == 141
    assert b"Traceback" not in done.stderr


def test_following_ends_when_its_reader_is_gone_also_while_nothing_comes(
    invoke: Invoke, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/store"
    invoke("stream", "create", url, "events")
    (tmp_path / "lines").write_text("a\nb\n")
    invoke("produce", url, "events", str(tmp_path / "lines"))
    follow = [*COMMAND, "read", url, "events", "--follow"]
    with subprocess.Popen(follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
        assert reading.stdout is not None
        assert [reading.stdout.readline(), reading.stdout.readline()] == [b"a\n", b"b\n"]
        reading.stdout.close()
        try:
            assert reading.wait(timeout=60) == 141
        finally:
            reading.kill()
        assert reading.stderr is not None
        assert reading.stderr.read() == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_below_the_output_is_said_to_be_full() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "version"], stdout=full, stderr=subprocess.PIPE, timeout=60
        )
    assert done.returncode == 2
    assert b"cannot be written" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EFBIG, errno.ENOSPC, errno.ECONNRESET])
def test_an_output_that_takes_no_more_is_named_whatever_the_system_calls_it(number: int) -> None:
    """A quota is a full disk, and so is a limit on the size of a file."""
    assert output_problem(OSError(number, os.strerror(number))) == (
        f"[Errno {number}] {os.strerror(number)}"
    )


def test_a_limit_on_the_size_of_a_file_cuts_nothing_off_silently(
    invoke: Invoke, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/store"
    invoke("stream", "create", url, "events")
    (tmp_path / "lines").write_text("x" * 100_000)
    invoke("produce", url, "events", str(tmp_path / "lines"))
    limited = ["sh", "-c", 'ulimit -f 8 && exec "$@"', "sh", *COMMAND, "read", url, "events"]
    with open(tmp_path / "output", "wb") as output:
        done = subprocess.run(limited, stdout=output, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: the output cannot be written")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "closed", "says"),
    [
        ("read {url} events --format json", 1, b"the output cannot be written: it is closed"),
        ("stream list {url}", 1, b"the output cannot be written: it is closed"),
        ("--help", 1, b"the output cannot be written: it is closed"),
        ("produce {url} events", 0, b"standard input is closed"),
        ("inspect batch", 0, b"standard input is closed"),
    ],
)
def test_a_standard_stream_that_is_closed_is_an_error_where_it_is_needed(
    invoke: Invoke, tmp_path: Path, arguments: str, closed: int, says: bytes
) -> None:
    url = f"file://{tmp_path}/store"
    invoke("stream", "create", url, "events")
    (tmp_path / "lines").write_text("a\n")
    invoke("produce", url, "events", str(tmp_path / "lines"))
    done = _closed(closed, arguments.format(url=url).split())
    assert done.returncode == 2
    assert says in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_standard_stream_that_is_closed_and_not_needed_is_not_missed(
    invoke: Invoke, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/store"
    invoke("stream", "create", url, "events")
    (tmp_path / "lines").write_text("a\n")
    done = _closed(0, ["produce", url, "events", str(tmp_path / "lines")])
    assert (done.returncode, done.stderr) == (0, b"")
    done = _closed(1, ["read", url, "events", "-o", str(tmp_path / "out")])
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "out").read_text() == "a\n"
    assert _closed(2, ["read", url, "nothing"]).returncode == 2


def _closed(descriptor: int, arguments: list[str]) -> subprocess.CompletedProcess[bytes]:
    """The command, started by a shell that closes one of its standard streams."""
    closing = {0: "<&-", 1: ">&-", 2: "2>&-"}[descriptor]
    return subprocess.run(
        ["sh", "-c", f'"$@" {closing}', "sh", *COMMAND, *arguments],
        capture_output=True,
        timeout=60,
    )


IMPATIENT = """
import atexit, os, signal, sys
# Whoever runs the tests in the background lets them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
moment, sys.argv = sys.argv[1], ["headwater", *sys.argv[2:]]
interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)
class Impatient:
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            print("interrupted")
            sys.stdout.flush()
            interrupt()
sys.meta_path.insert(0, Impatient())
if moment == "the end":
    atexit.register(interrupt)
from headwater.cli import main
main()
"""
"""The command, interrupted at a moment of one's choice: in place of a person who is quick."""


@pytest.mark.parametrize(
    ("moment", "command"),
    [
        ("headwater.cli.app", "stream list"),
        ("typer", "stream list"),
        ("headwater.cli.stream_report", "stream list"),
        ("pyarrow", "stream verify"),
    ],
)
def test_an_interrupt_while_parts_are_loaded_ends_it_quietly(
    moment: str, command: str, invoke: Invoke, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/store"
    assert invoke("stream", "create", url, "orders").exit_code == 0
    words = [*command.split(), url, *(["orders"] if command == "stream verify" else [])]
    done = subprocess.run(
        [sys.executable, "-c", IMPATIENT, moment, *words], capture_output=True, timeout=60
    )
    found = (done.returncode, done.stdout, done.stderr.strip())
    assert found == (128 + signal.SIGINT, b"interrupted\n", b"")


def test_an_interrupt_while_it_ends_is_as_quiet() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPATIENT, "the end", "version"], capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, b"")


@pytest.mark.parametrize("command", ["read", "produce"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_it_while_it_waits_for_a_store_that_does_not_answer(
    command: str, number: signal.Signals
) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"s3://bucket?endpoint=http://127.0.0.1:{silent.getsockname()[1]}"
        asking = subprocess.Popen(
            [*COMMAND, command, url, "orders"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | keys,
        )
        silent.settimeout(60)
        with asking, silent.accept()[0]:
            asking.send_signal(number)
            try:
                assert asking.wait(timeout=20) == 128 + number
            finally:
                asking.kill()
            assert asking.stderr is not None
            assert b"Traceback" not in asking.stderr.read()


def test_an_interrupt_that_is_to_be_ignored_is_ignored() -> None:
    code = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "import headwater.cli.app\n"
        "seen = []\n"
        "headwater.cli.app.run_app = lambda: seen.append(signal.getsignal(signal.SIGINT))\n"
        "headwater.cli.main()\n"
        "assert seen == [signal.SIG_IGN]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_check_that_is_told_to_end_removes_what_it_wrote(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    check = subprocess.Popen([*COMMAND, "store", "check", url], stdout=subprocess.PIPE)
    assert check.stdout is not None
    while b"read-your-write" not in (line := check.stdout.readline()):
        assert line, "the check ended by itself"
    check.send_signal(signal.SIGTERM)
    check.communicate(timeout=60)
    assert check.returncode == 128 + signal.SIGTERM
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in left if ".headwater" not in path.parts] == []


@pytest.mark.parametrize(
    ("output", "why"), [("closed", b"it is closed"), ("gone", b"its reader has gone")]
)
def test_records_that_are_accepted_are_though_nobody_can_be_told(
    invoke: Invoke, tmp_path: Path, output: str, why: bytes
) -> None:
    url = f"file://{tmp_path}/store"
    (tmp_path / "lines").write_text("one\ntwo\n")
    invoke("stream", "create", url, "events")
    done = _unheard(output, ["produce", url, "events", str(tmp_path / "lines")])
    assert done.stderr == b"note: the report of what was done cannot be written: " + why + b"\n"
    assert done.returncode == 0
    assert invoke("read", url, "events").stdout == "one\ntwo\n"


def _unheard(output: str, arguments: list[str]) -> subprocess.CompletedProcess[bytes]:
    """The command, with nobody to read what it prints."""
    if output == "closed":
        return _closed(1, arguments)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [*COMMAND, *arguments], stdout=writer, stderr=subprocess.PIPE, timeout=60
        )
    finally:
        os.close(writer)


def test_what_changes_a_stream_is_done_though_its_report_cannot_be_written(
    invoke: Invoke,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    url = f"file://{tmp_path}/store"
    invoke("stream", "create", url, "old", "--format=v1")
    for arguments in (
        f"stream create {url} events",
        f"stream alter {url} events --retention 1d",
        f"stream adopt {url} old",
        f"gc {url} events",
        f"gc {url} events --json",
        f"stream delete {url} events --yes",
    ):
        # What is opened for reading alone takes no output, as a closed one.
        nowhere = os.open(os.devnull, os.O_RDONLY)
        with monkeypatch.context() as patched, open(nowhere, "w") as closed:
            patched.setattr(sys, "stdout", closed)
            assert not app(arguments.split(), standalone_mode=False)
        said = capfd.readouterr().err
        assert said == "note: the report of what was done cannot be written: it is closed\n"
    assert "events" not in invoke("stream", "list", url).stdout


def test_work_that_was_not_done_is_said_not_to_be_though_nobody_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = os.open(os.devnull, os.O_RDONLY)
    with monkeypatch.context() as patched, open(nowhere, "w") as closed:
        patched.setattr(sys, "stdout", closed)
        arguments = ["produce", f"file://{tmp_path}/store", "events", "/dev/null"]
        assert app(arguments, standalone_mode=False) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_repair_that_was_done_is_no_failure_though_nobody_could_be_told(tmp_path: Path) -> None:
    spool = Spool.open(str(tmp_path / "log"))
    wait(spool.append(numbered(1, 1), term=1))
    wait(spool.close())
    repair = [*COMMAND, "log", "repair", str(tmp_path / "log")]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(repair, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 0
    assert b"cannot be written" in done.stderr
