"""Signals that are held back come afterwards, and only then."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from headwater.core import interrupts


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM, signal.SIGALRM])
def came(request: pytest.FixtureRequest) -> Iterator[list[int]]:
    """What a handler has heard, after the number of its signal."""
    heard: list[int] = [request.param]
    before = signal.signal(request.param, lambda number, _: heard.append(number))
    yield heard
    signal.signal(request.param, before)


def test_a_handler_runs_once_the_work_is_done(came: list[int]) -> None:
    number = came[0]
    with interrupts.held(), interrupts.held():
        signal.raise_signal(number)
        assert came == [number]
    assert came == [number, number]
    signal.raise_signal(number)
    assert came == [number] * 3


def test_a_signal_is_held_over_an_error(came: list[int]) -> None:
    number = came[0]

    def fail() -> None:
        with interrupts.held():
            signal.raise_signal(number)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    assert came == [number, number]


def test_other_threads_need_nothing() -> None:
    done: list[bool] = []

    def work() -> None:
        with interrupts.held():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
