"""Many writers under every fault: a sample of the histories, and proof that they can fail.

Each planted bug is a mistake somebody would make. A history that does not notice it proves
nothing about the code that is right.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from headwater.core.errors import (
    AlreadyExists,
    Conflict,
    OutcomeUnknown,
    RolledBack,
)
from headwater.store import IF_ABSENT, IfAbsent, LogFloor, Object, Register, Store, Version
from headwater.store.numbered_log import CreateResult
from headwater.testing.guard import UnhandledFailure
from tests.planted import expect_noticed
from tests.store.numbered_logs import SampleLog
from tests.torture.store_scenarios import (
    SCENARIOS,
    Parts,
    numbered_log_history,
    numbered_log_outages_history,
    register_history,
    register_outages_history,
)

HISTORIES_TO_CATCH_A_BUG = 400
CAUGHT = (AssertionError, RolledBack, UnhandledFailure, pytest.fail.Exception)


class UselessLog(SampleLog):
    """Never says anything wrong, and never anything of use."""

    async def append_payload(self, payload: bytes) -> int:
        await super().append_payload(payload)
        raise OutcomeUnknown("who knows")


class BlindStore(Store):
    """Takes every refusal at its word: a 412 is somebody else's write."""

    def _is_ours(self, *_: Any) -> bool:
        return False


class BlindRegister(Register[Any]):
    """Writes its change again after a conflict, without asking whether it had landed."""

    def _settle(self, base: Any, token: Any, current: Any, unknown: Any) -> bool:
        if current is None:
            raise OutcomeUnknown("nothing there yet")
        return False


class HidingRegister(Register[Any]):
    """Looks once more after an unknown outcome; the error of that look takes its place."""

    async def _write(self, *args: Any) -> Any:
        try:
            return await super()._write(*args)
        except OutcomeUnknown:
            await self._load()
            raise


class HidingLog(SampleLog):
    """The same of entries."""

    async def _settle(self, number: int, token: bytes, unknown: OutcomeUnknown) -> CreateResult:
        try:
            return await super()._settle(number, token, unknown)
        except OutcomeUnknown:
            await self.exists(number)
            raise


class FloorlessWriter(SampleLog):
    """Believes that a number it could create is an entry."""

    async def _floor_after_create(self, number: int) -> LogFloor:
        return LogFloor(0, 0)


class FloorlessReader(SampleLog):
    """Believes that what it can read is alive."""

    async def read(self, start: int, count: int) -> list[Object]:
        stored = [await self.get(number) for number in range(start, start + count)]
        return [one for one in itertools.takewhile(bool, stored) if one is not None]


class HastyStore(Store):
    """Takes a 409 for a conflict, though the key is absent."""

    @staticmethod
    def _conflict_with(
        key: str, current: Object | None, condition: IfAbsent | Version, *, nothing_landed: bool
    ) -> Conflict:
        kind = AlreadyExists if condition is IF_ABSENT else Conflict
        return kind(f"{key} was changed", current=current, nothing_landed=nothing_landed)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_no_history_loses_doubles_or_invents_an_update(scenario: Any) -> None:
    scenario.run_sample()


@pytest.mark.planted
@pytest.mark.parametrize(
    ("history", "parts"),
    [
        pytest.param(
            register_history,
            Parts(store=BlindStore, register=BlindRegister),
            id="blind-retry-after-conflict-register",
        ),
        pytest.param(
            numbered_log_history, Parts(store=BlindStore), id="blind-retry-after-conflict-log"
        ),
        pytest.param(register_history, Parts(fixed_token=True), id="no-nonce-register"),
        pytest.param(numbered_log_history, Parts(fixed_token=True), id="no-nonce-log"),
        pytest.param(
            numbered_log_history, Parts(log=FloorlessWriter), id="floor-not-checked-on-append"
        ),
        pytest.param(
            numbered_log_history, Parts(log=FloorlessReader), id="floor-not-checked-on-read"
        ),
        pytest.param(numbered_log_history, Parts(log=UselessLog), id="never-an-answer"),
        pytest.param(numbered_log_history, Parts(store=HastyStore), id="409-treated-as-conflict"),
        pytest.param(
            register_outages_history,
            Parts(register=HidingRegister),
            id="look-hides-the-unknown-register",
        ),
        pytest.param(
            numbered_log_outages_history,
            Parts(log=HidingLog),
            id="look-hides-the-unknown-log",
        ),
    ],
)
def test_a_planted_bug_is_caught(history: Callable[[int, Parts], str], parts: Parts) -> None:
    expect_noticed(lambda seed: history(seed, parts), within=HISTORIES_TO_CATCH_A_BUG, by=CAUGHT)


def test_the_same_seed_gives_the_same_history() -> None:
    for history in (register_history, numbered_log_history):
        assert history(5) == history(5)
        assert history(5) != history(6)
