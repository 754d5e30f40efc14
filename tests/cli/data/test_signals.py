"""Signals: what was read is sent, and what follows ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess

import pytest

from headwater.buffer.stream import open_stream
from headwater.cli import terminal as interrupt_module
from headwater.cli.terminal import Interrupt, WaitInterrupted
from headwater.store import Store
from tests.cli.conftest import Invoke
from tests.cli.data.given import File, on, start, values


def wait_for(url: str, records: int) -> None:
    async def look(store: Store) -> None:
        queue_reader = (await open_stream(store, "events")).queue_reader(0)
        async with asyncio.timeout(60):
            while (await queue_reader.state()).next_lsn <= records:
                continue

    on(url, look)


def test_a_signal_sends_what_was_read_and_says_so(url: str) -> None:
    process = start("produce", url, "events", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"one\ntwo\nhal")
    process.stdin.flush()
    wait_for(url, 2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT, err
    assert b"2 records accepted" in out
    assert b"interrupted: all complete lines" in out
    assert b"Traceback" not in err
    assert values(url) == [b"one", b"two"]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_following_shows_what_comes_until_a_signal(
    url: str, invoke: Invoke, file: File, number: signal.Signals, status: int
) -> None:
    invoke("produce", url, "events", file("before\n"))
    process = start("read", url, "events", "--follow")
    assert process.stdout is not None
    assert process.stdout.readline() == b"before\n"
    invoke("produce", url, "events", file("after\n"))
    assert process.stdout.readline() == b"after\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (status, b"")


def test_signals_are_taken_while_waiting_and_noted_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def signalled() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with Interrupt() as interrupt:
        with pytest.raises(WaitInterrupted), interrupt.waiting():
            signalled()
        assert interrupt.exit_status == 130
        with pytest.raises(WaitInterrupted), interrupt.waiting():
            raise AssertionError("it was interrupted before")
    with Interrupt() as interrupt:
        signalled()
        assert interrupt.received == signal.SIGINT
        signalled()  # passed on by whoever started this
        monkeypatch.setattr(interrupt_module, "SAME_S", -1.0)
        with pytest.raises(KeyboardInterrupt):
            signalled()
