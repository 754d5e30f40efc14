"""Histories of the coordinator: a sample, and proof that they can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from headwater.coordinator.channel import WriteHandle
from headwater.coordinator.contract import Termination
from headwater.coordinator.progress import ViewBoard
from headwater.coordinator.writer import FlushLoop, Writer
from headwater.core import runtime
from headwater.core.errors import HeadwaterError
from tests.planted import expect_noticed
from tests.torture.coordinator_scenarios import SCENARIOS, coordinator_history

HISTORIES_TO_CATCH_A_BUG = 200


async def watermark_first(self: FlushLoop, frozen: Any, write_epochs: range) -> None:
    """Wakes the waiters, and publishes the view when it comes to it."""
    snapshot = await self._persist(lambda: self._flusher.flush_delta(frozen, write_epochs))
    self._last_flushed = write_epochs.stop - 1
    self._watermarks.set_written(self._last_flushed)
    await runtime.sleep(0)
    self._board.publish_flushed(snapshot, write_epochs)
    self._frozen -= 1
    self._room_freed.set()


def oldest_first(self: ViewBoard[Any, Any, Any], frozen: Any, current: Any) -> None:
    """Puts what was frozen last behind what was frozen before."""
    self._publish(self.view._replace(current=current, frozen=(*self.view.frozen, frozen)))


def reuses_epochs(
    self: Writer, handle: WriteHandle[Any], write_epoch: int, error: Exception
) -> None:
    """Reuses the write epoch of a refused write."""
    _refuse(self, handle, write_epoch, error)
    if write_epoch > self._delta_start:
        self._next_write_epoch -= 1


def forgets_the_cause(self: Termination, cause: BaseException | None = None) -> None:
    """Whatever happened, it was a stop."""
    self.cause = None


async def drops_what_fails(self: FlushLoop) -> None:
    """Ends in silence when a flush fails."""
    try:
        await _run(self)
    except HeadwaterError:
        self._events.clear()


_refuse, _run = Writer._refuse, FlushLoop.run

PLANTED: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "watermark-before-view": (FlushLoop, "_flush", watermark_first),
    "frozen-order-reversed": (ViewBoard, "publish_frozen", oldest_first),
    "write-epoch-reused": (Writer, "_refuse", reuses_epochs),
    "failure-reported-as-a-stop": (Termination, "__init__", forgets_the_cause),
    "drain-error-swallowed": (FlushLoop, "run", drops_what_fails),
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_no_history_breaks_a_promise(scenario: Any) -> None:
    scenario.run_sample()


@pytest.mark.planted
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    owner, name, instead = PLANTED[bug]
    with mock.patch.object(owner, name, instead):
        expect_noticed(coordinator_history, within=HISTORIES_TO_CATCH_A_BUG)


def test_the_same_seed_gives_the_same_history() -> None:
    assert coordinator_history(5) == coordinator_history(5)
    assert coordinator_history(5) != coordinator_history(6)
