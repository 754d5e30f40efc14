"""Simulated histories of slots keep their promises, and notice when somebody else does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import msgspec
import pytest

from headwater.core.errors import Damaged
from headwater.log import SlotRegister
from headwater.log.primary import log_retention, slot_register
from headwater.log.primary.log_retention import LogRetention
from headwater.log.primary.registry import ReplicaRegistry, ReplicaState
from headwater.log.primary.slot import Slot
from headwater.log.primary.slot_register import SlotTable
from headwater.log.primary.slot_writer import LeaderSlots
from tests.planted import expect_noticed
from tests.torture.slot_scenarios import SCENARIOS, slot_history

HISTORIES_TO_CATCH_A_BUG = 100


def counts_at_once(self: ReplicaRegistry, name: str, **about: Any) -> ReplicaState:
    """Takes a replica that has only just come for one that has everything it was sent."""
    state = _register(self, name, **about)
    self._replicas[name] = msgspec.structs.replace(
        state, last_durable_lsn=max(state.last_durable_lsn, state.last_sent_lsn)
    )
    return self._replicas[name]


def frees_what_it_knows(self: LeaderSlots) -> int | None:
    """Lets the log go before anybody else knows that it may."""
    return self.wanted_floor_lsn()


def joins_blindly(stored: Any, mine: Any) -> Any:
    """Writes down whatever the leader remembers, dropped or not."""
    slot_register._check_leader(stored, mine)
    generation = max(stored.next_generation, mine.next_generation)
    return msgspec.structs.replace(mine, next_generation=generation)


def looks_away(*_: Any) -> None:
    """Keeps the log for a dead slot, or lets an older leader write."""


def empty_log_has_no_oldest(self: LogRetention) -> int:
    """Resumes anybody anywhere from a log that holds nothing yet."""
    is_empty = self.wal.current_lsn() < self.wal.oldest_lsn()
    return 0 if is_empty else _oldest_lsn(self)


def never_renews(self: LeaderSlots, name: str, at_lsn: int, **how: Any) -> Slot:
    """Leaves a slot that was given up as it is."""
    before = self.find(name)
    if before is not None and not before.is_valid:
        return before
    return _create(self, name, at_lsn, **how)


async def begins_without(self: SlotRegister, leader_epoch: int, **how: Any) -> SlotTable:
    """Takes slots that cannot be read for none at all."""
    try:
        return await _stamp(self, leader_epoch, **how)
    except Damaged:
        return msgspec.structs.replace(slot_register.EMPTY_TABLE, leader_epoch=leader_epoch)


def gives_the_same_session(self: ReplicaRegistry, name: str, **about: Any) -> ReplicaState:
    """Gives a session that other registrations get as well, here and at the next leader."""
    state = _register(self, name, **about)
    self._replicas[name] = msgspec.structs.replace(state, session="1")
    return self._replicas[name]


_stamp = SlotRegister.stamp
_register, _create = ReplicaRegistry.register, LeaderSlots.create
_oldest_lsn = LogRetention.oldest_lsn

PLANTED: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "new-replica-counts": (ReplicaRegistry, "register", counts_at_once),
    "sessions-are-no-tokens": (ReplicaRegistry, "register", gives_the_same_session),
    "unreadable-slots-are-none": (SlotRegister, "stamp", begins_without),
    "pruned-before-stored": (LeaderSlots, "floor_lsn", frees_what_it_knows),
    "dropped-slot-comes-back": (slot_register, "merge_tables", joins_blindly),
    "older-leader-writes": (slot_register, "_check_leader", looks_away),
    "dead-slot-holds-for-ever": (log_retention, "exceeded_limit", looks_away),
    "empty-log-resumes-anybody": (LogRetention, "oldest_lsn", empty_log_has_no_oldest),
    "rebootstrap-for-ever": (LeaderSlots, "create", never_renews),
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_no_history_breaks_a_promise(scenario: Any) -> None:
    scenario.run_sample()


@pytest.mark.planted
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    owner, name, instead = PLANTED[bug]
    with mock.patch.object(owner, name, instead):
        expect_noticed(slot_history, within=HISTORIES_TO_CATCH_A_BUG)


def test_the_same_seed_gives_the_same_history() -> None:
    assert slot_history(5) == slot_history(5)
    assert slot_history(5) != slot_history(6)
