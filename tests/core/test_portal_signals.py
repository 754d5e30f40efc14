"""Signals that are held back come afterwards, and only then."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from headwater.core import portal

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM, signal.SIGALRM])
def came(request: pytest.FixtureRequest) -> Iterator[list[int]]:
    """What a handler has heard, after the number of its signal."""
    heard: list[int] = [request.param]
    before = signal.signal(request.param, lambda number, _: heard.append(number))
    yield heard
    signal.signal(request.param, before)


def test_a_handler_runs_once_the_work_is_done(came: list[int]) -> None:
    number = came[0]
    with portal.signals_deferred(), portal.signals_deferred():
        signal.raise_signal(number)
        assert came == [number]
    assert came == [number, number]
    signal.raise_signal(number)
    assert came == [number] * 3


def test_a_signal_is_held_over_an_error(came: list[int]) -> None:
    number = came[0]

    def fail() -> None:
        with portal.signals_deferred():
            signal.raise_signal(number)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    assert came == [number, number]


def test_other_threads_need_nothing() -> None:
    done: list[bool] = []

    def work() -> None:
        with portal.signals_deferred():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


def test_an_event_loop_hears_of_a_signal_once() -> None:
    async def main() -> list[int]:
        heard: list[int] = []
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, heard.append, 1)
        with portal.signals_deferred():
            os.kill(os.getpid(), signal.SIGTERM)
        # It reads what came through its descriptor, and then calls whom that is for.
        for _ in range(5):
            await asyncio.sleep(0)
        loop.remove_signal_handler(signal.SIGTERM)
        return heard

    assert asyncio.run(main()) == [1]


@pytest.fixture
def raising() -> Iterator[list[int]]:
    """What handlers have heard that raise each time."""
    heard: list[int] = []

    def handler(number: int, _: object) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, handler) for number in NUMBERS}
    yield heard
    for number, one in before.items():
        signal.signal(number, one)


@pytest.mark.usefixtures("raising")
def test_a_handler_that_raises_keeps_no_other_from_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    real = _signal.signal
    coming = [signal.SIGALRM]

    def one_comes_meanwhile(number: int, handler: object) -> None:
        real(number, handler)
        if number in coming:
            signal.raise_signal(coming.pop())

    def work() -> None:
        with portal.signals_deferred():
            monkeypatch.setattr(_signal, "signal", one_comes_meanwhile)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert [signal.getsignal(number) for number in NUMBERS] == before


def test_a_handler_that_raises_keeps_no_other_from_its_signal(raising: list[int]) -> None:
    def work() -> None:
        with portal.signals_deferred():
            for number in NUMBERS:
                signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert sorted(raising) == sorted(NUMBERS)
