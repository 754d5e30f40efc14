"""Histories whose leaders write different records: no copy mixes them, and a mistake shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest

from headwater.log import Group, PrimaryService
from headwater.log.primary.log_retention import LogRetention
from headwater.log.primary.service import RegisterResponse
from headwater.log.replica.comparing import Verification
from headwater.log.replica.follower import LogFollower
from tests.planted import expect_noticed
from tests.torture.fork_scenarios import SCENARIOS, fork_history

HISTORIES_TO_CATCH_A_BUG = 60
BEGIN_AT = {"only-the-slot-is-compared": 36, "one-answer-is-enough": 29, "unsynced-is-sent": 3}
"""Where a bug shows only in few histories, one of them."""


async def reads_all(self: PrimaryService, since_lsn: int, **how: int) -> Sequence[Group]:
    """Hands out what is not synced."""
    return await self._primary.wal.read_since(since_lsn, **how)


def trusts(told: RegisterResponse, through_lsn: int, compare_records: int) -> Verification:
    """Takes a copy for a prefix of whatever log it meets."""
    return Verification(through_lsn, through_lsn)


def compares_what_the_slot_holds(
    told: RegisterResponse, through_lsn: int, compare_records: int
) -> Verification:
    """Has only that sent again which the log is kept for."""
    after_lsn = max(told.restart_lsn, told.oldest_lsn - 1, through_lsn - compare_records)
    return Verification(min(after_lsn, through_lsn), through_lsn)


def done_after_one_answer(self: Verification, lsn: int) -> Verification:
    """Takes an answer of a log that is shorter for all that it will say."""
    return Verification(self.through_lsn, self.through_lsn)


async def looks_away(self: LogFollower, groups: Sequence[Group]) -> None:
    """Compares nothing."""


def leaves_slots(self: LogRetention) -> None:
    """Lets slots stand above the end of the log."""


PLANTED: dict[str, tuple[Any, str, Any]] = {
    "unsynced-is-sent": (PrimaryService, "_read_synced", reads_all),
    "copy-is-trusted": (Verification, "of_copy", staticmethod(trusts)),
    "only-the-slot-is-compared": (
        Verification,
        "of_copy",
        staticmethod(compares_what_the_slot_holds),
    ),
    "one-answer-is-enough": (Verification, "reached", done_after_one_answer),
    "nothing-is-compared": (LogFollower, "_compare", looks_away),
    "slots-above-the-log": (LogRetention, "lower_slots_to_log_end", leaves_slots),
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_no_history_mixes_two_logs(scenario: Any) -> None:
    scenario.run_sample()


@pytest.mark.planted
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    owner, name, instead = PLANTED[bug]
    with mock.patch.object(owner, name, instead):
        first = BEGIN_AT.get(bug, 0)
        expect_noticed(fork_history, within=HISTORIES_TO_CATCH_A_BUG, first=first)
