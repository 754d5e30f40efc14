"""What goes on beside a command: it says so if a store does not answer."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import typer

from headwater.cli import loop
from headwater.cli.loop import SILENT_S, say_if_silent
from headwater.core import runtime
from headwater.core.backoff import RetryPolicy
from headwater.store import MemoryBackend, Object, Store
from headwater.store.objects import ByteRange
from tests.cli.conftest import Invoke
from tests.store.scripted import virtual


class Slow(MemoryBackend):
    """Answers after a while."""

    def __init__(self, after_s: float) -> None:
        super().__init__()
        self.after_s = after_s

    async def get(self, key: str, range: ByteRange | None = None) -> Object:
        await runtime.sleep(self.after_s)
        return await super().get(key, range)


async def _told(after_s: float, rounds: int, capsys: pytest.CaptureFixture[str]) -> str:
    store = Store(Slow(after_s), policy=RetryPolicy(attempt_timeout_s=1000, deadline_s=1000))
    await store.put("key", b"value")
    watching = runtime.spawn(say_if_silent([store]), name="watching")
    for _ in range(rounds):
        await store.get("key")
    # Who has nothing to ask waits for no answer.
    await runtime.sleep(10 * SILENT_S)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return capsys.readouterr().err


@virtual
async def _a_store_that_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert await _told(SILENT_S - 2, 20, capsys) == ""


@virtual
async def _a_store_that_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    told = await _told(3 * SILENT_S, 3, capsys)
    assert told.count("has not answered for 5 s: still waiting") == 1
    assert told.startswith("memory://")


def test_a_slow_store_is_not_taken_for_one_that_hangs(capsys: pytest.CaptureFixture[str]) -> None:
    _a_store_that_answers(capsys)


def test_a_store_that_hangs_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    _a_store_that_does_not(capsys)


class Hanging(MemoryBackend):
    """Answers nothing until somebody has complained."""

    def __init__(self, complained: threading.Event) -> None:
        super().__init__()
        self._complained = complained

    async def get(self, key: str, range: ByteRange | None = None) -> Object:
        while not self._complained.is_set():
            await runtime.sleep(0.001)
        return await super().get(key, range)


@pytest.mark.parametrize("command", [("stream", "describe"), ("lag",), ("read",), ("produce",)])
def test_a_command_says_for_whom_it_waits(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    complained = threading.Event()
    echo = typer.echo

    def heard(message: str, **how: Any) -> None:
        echo(message, **how)
        if "has not answered" in message:
            complained.set()

    monkeypatch.setattr(loop, "SILENT_S", 0.0)
    monkeypatch.setattr(loop, "LOOK_S", 0.001)
    monkeypatch.setattr(typer, "echo", heard)
    hanging = Store(Hanging(complained))
    monkeypatch.setattr("headwater.store.open_store", lambda url, **_: hanging)
    done = invoke(*command, "memory://", "orders")
    assert done.exit_code == 2
    told = done.stderr.splitlines()
    assert sum("has not answered" in line for line in told) == 1
    assert any("there is no stream 'orders'" in line for line in told)
