"""Simulated histories of replicas keep their promises, and notice when somebody else does not."""

from __future__ import annotations

from typing import Any
from unittest import mock

import msgspec
import pyarrow as pa
import pytest

from headwater.log import Bookmark, LogArchive, Target
from headwater.log.primary import log_retention
from headwater.log.primary.service import PullResponse
from headwater.log.primary.slot import Slot
from headwater.log.primary.slot_writer import LeaderSlots
from headwater.log.replica import comparing, follower, keyed_table, log_copy
from headwater.log.replica.comparing import SplitPull
from headwater.log.replica.contract import Image
from headwater.log.replica.copies import ReplicaCopies, SavedState, SavedStateFile, encode_state
from headwater.log.replica.follower import LogFollower
from headwater.log.replica.keyed_state import KeyedState
from headwater.log.replica.log_copy import LogCopies, LogCopy
from tests.planted import expect_noticed
from tests.torture.replica_scenarios import SCENARIOS, replica_history

HISTORIES_TO_CATCH_A_BUG = 60
BEGIN_AT = {"empty-copy-begins-anywhere": 26, "gap-is-applied": 4}
"""Where a bug shows only in few histories, one of them."""


def looks_away(*_: Any) -> None:
    """Takes whatever comes next for what follows, or keeps the log for a dead slot."""


def begins_anywhere(pulled: PullResponse, applied_lsn: int) -> None:
    """Looks for gaps only where there is something before them."""
    if applied_lsn:
        _check_dense(pulled, applied_lsn)


def applies_again(pulled: PullResponse, applied_lsn: int, **how: Any) -> SplitPull:
    """Applies all of an answer, also what is there already."""
    found = _take_in(pulled, applied_lsn, **how)
    through_lsn = max(found.through_lsn, applied_lsn + bool(found.repeated))
    return found._replace(repeated=[], new=[*found.repeated, *found.new], through_lsn=through_lsn)


async def heeds_anybody(self: ReplicaCopies, term: int) -> bool:
    """Listens to whoever answers."""
    self._state = msgspec.structs.replace(self._state, term=term)
    return True


async def heeds_until_a_restart(self: ReplicaCopies, term: int) -> bool:
    """Keeps in memory alone whom it has heard of."""
    if term < self._state.term:
        await _check_term(self, term)
    self._state = msgspec.structs.replace(self._state, term=term)
    return True


def writes_without_a_sync(self: SavedStateFile, kept: SavedState) -> None:
    """Leaves it to the system when the fence is safe."""
    with self.folder.replacing(self.folder.file("replica.json")) as file:
        file.append(encode_state(kept))


def durable_when_applied(self: Any) -> int:
    """Acknowledges what is only in memory."""
    return int(self.applied_lsn)


async def does_nothing(self: Any, *_: Any) -> None:
    """Goes on with the old copy, or with what was left of another."""


def shows_by_lsn_alone(self: LogFollower, bookmark: Bookmark) -> bool:
    """Does not ask under which leader a bookmark was made."""
    return self.target.applied_lsn >= bookmark.lsn


def shows_anything(self: LogFollower, bookmark: Bookmark) -> bool:
    """Does not wait."""
    return True


def deletes_nothing(records: pa.RecordBatch) -> Any:
    """Shows what was deleted."""
    return pa.repeat(pa.scalar(False), records.num_rows)


def never_renews(self: LeaderSlots, name: str, at_lsn: int, **how: Any) -> Slot:
    """Leaves a slot that was given up as it is."""
    before = self.find(name)
    if before is not None and not before.is_valid:
        return before
    return _create(self, name, at_lsn, **how)


def frees_what_it_knows(self: LeaderSlots) -> int | None:
    """Lets the log go before anybody else knows that it may."""
    return self.wanted_floor_lsn()


async def begins_at_the_end(self: LogCopies, path: str, image: Image | None) -> Target:
    """Leaves the tier where it is, and copies what follows."""
    return LogCopy(await self._empty(path, 1 if image is None else image.lsn + 1))


async def loads_half(copy: LogCopy, archive: LogArchive, lsns: range) -> None:
    """Takes for all what is a part."""
    await _load(copy, archive, lsns[: len(lsns) // 2])


_load = log_copy._load
_check_dense, _take_in = comparing._check_dense, comparing.split_pull
_check_term, _create = ReplicaCopies.check_term, LeaderSlots.create

PLANTED: dict[str, tuple[Any, str, Any]] = {
    "gap-is-applied": (comparing, "_check_dense", looks_away),
    "empty-copy-begins-anywhere": (comparing, "_check_dense", begins_anywhere),
    "applied-twice": (follower, "split_pull", applies_again),
    "older-leader-is-heeded": (ReplicaCopies, "check_term", heeds_anybody),
    "fence-in-memory": (ReplicaCopies, "check_term", heeds_until_a_restart),
    "fence-not-synced": (SavedStateFile, "write", writes_without_a_sync),
    "log-copy-durable-when-applied": (LogCopy, "durable_lsn", property(durable_when_applied)),
    "state-durable-when-applied": (KeyedState, "durable_lsn", property(durable_when_applied)),
    "bootstrap-without-a-copy": (LogFollower, "_replace_copy", does_nothing),
    "leftovers-are-kept": (LogCopies, "discard", does_nothing),
    "bookmark-without-term": (LogFollower, "shows", shows_by_lsn_alone),
    "bookmark-not-waited-for": (LogFollower, "shows", shows_anything),
    "tier-is-left-out": (LogCopies, "begin", begins_at_the_end),
    "tier-is-loaded-in-part": (log_copy, "_load", loads_half),
    "deleted-keys-stay": (keyed_table, "_deletes", deletes_nothing),
    "rebootstrap-for-ever": (LeaderSlots, "create", never_renews),
    "pruned-before-stored": (LeaderSlots, "floor_lsn", frees_what_it_knows),
    "dead-slot-holds-for-ever": (log_retention, "exceeded_limit", looks_away),
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_no_history_breaks_a_promise(scenario: Any) -> None:
    scenario.run_sample()


@pytest.mark.planted
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    owner, name, instead = PLANTED[bug]
    with mock.patch.object(owner, name, instead):
        first = BEGIN_AT.get(bug, 0)
        expect_noticed(replica_history, within=HISTORIES_TO_CATCH_A_BUG, first=first)


def test_the_same_seed_gives_the_same_history() -> None:
    assert replica_history(5) == replica_history(5)
    assert replica_history(5) != replica_history(6)
