"""Standard output that takes less than it was given: all of the bytes leave, or the status says no.

A pipe takes a part of a write when a signal comes, and `PYTHONUNBUFFERED` leaves it to the writer
to notice.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Invoke
from tests.cli.data.given import File

PIPE_BYTES = 4096
PAUSES = 5
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}


@pytest.fixture
def large(invoke: Invoke, url: str, file: File) -> str:
    """Much more than a pipe holds, in one batch."""
    chance = random.Random(7)
    text = "\n".join(chance.randbytes(50_000).hex() for _ in range(12))
    done = invoke("produce", url, "events", file(text), "--set", "linger_ms=60000")
    assert done.exit_code == 0
    return url


def read_slowly(*arguments: str) -> bytes:
    """What a command writes into a small pipe, stopped and continued while it writes.

    A write that was stopped takes what the pipe held by then, and says how much that is.
    """
    reading, writing = os.pipe()
    fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    command = [sys.executable, "-m", "headwater.cli", *arguments]
    env = {**os.environ, **UNBUFFERED}
    with subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE, env=env) as process:
        os.close(writing)
        found = []
        while data := os.read(reading, 16 * PIPE_BYTES):
            found.append(data)
            if len(found) <= PAUSES:
                pause(process)
        os.close(reading)
        assert process.stderr is not None
        told = process.stderr.read()
        assert (process.wait(timeout=60), told) == (0, b"")
    return b"".join(found)


def pause(process: subprocess.Popen[bytes]) -> None:
    """Ctrl-Z and `fg`."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("form", ["lines", "json", "csv", "arrow"])
def test_every_record_reaches_a_slow_reader(
    invoke: Invoke, large: str, tmp_path: Path, form: str
) -> None:
    arguments = ("read", large, "events", f"--format={form}")
    assert invoke(*arguments, "-o", str(tmp_path / "whole")).exit_code == 0
    assert read_slowly(*arguments) == (tmp_path / "whole").read_bytes()


def test_a_parquet_file_reaches_a_slow_reader_whole(
    invoke: Invoke, large: str, tmp_path: Path
) -> None:
    piped = read_slowly("read", large, "events", "--format=parquet")
    found = pq.read_table(pa.BufferReader(piped))["_value"].to_pylist()
    assert b"\n".join(found).decode() == (tmp_path / "input").read_text()


def test_an_object_reaches_a_slow_reader_whole(large: str, tmp_path: Path) -> None:
    [batch] = (tmp_path / "store").glob("streams/events/0/ingest/*/batches/*")
    key = str(batch.relative_to(tmp_path / "store"))
    assert read_slowly("store", "cat", large, key) == batch.read_bytes()


def test_an_output_that_does_not_block_is_waited_for(
    invoke: Invoke, large: str, tmp_path: Path
) -> None:
    """Whoever shares the pipe may have made it so: node and ssh do."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    command = [sys.executable, "-m", "headwater.cli", "read", large, "events"]
    with subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        with open(reading, "rb") as pipe:
            found = pipe.read()
        assert process.stderr is not None
        told = process.stderr.read()
        assert (process.wait(timeout=60), told) == (0, b"")
    assert found.decode() == (tmp_path / "input").read_text() + "\n"
