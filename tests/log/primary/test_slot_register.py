"""Joining a leader's slots with what is stored: who may, what stays, what goes."""

from __future__ import annotations

import msgspec
import pytest

from headwater.core.errors import Fenced, NotSupported
from headwater.log.primary.slot import Invalidation, InvalidationCause, Slot
from headwater.log.primary.slot_register import (
    SLOTS_FORMAT,
    SlotTable,
    merge_tables,
    stamp_epoch,
)


def slot(name: str, generation: int, lsn: int = 0, **more: object) -> Slot:
    return msgspec.structs.replace(Slot(name, generation, lsn, lsn, 5, 5), **more)


def table(*slots: Slot, epoch: int = 1, next_generation: int = 10) -> SlotTable:
    return SlotTable(SLOTS_FORMAT, epoch, next_generation, list(slots))


def test_an_older_leader_neither_stamps_nor_writes() -> None:
    newer = table(epoch=7)
    with pytest.raises(Fenced, match="epoch 7"):
        stamp_epoch(newer, 6, "x")
    with pytest.raises(Fenced, match="stop serving"):
        merge_tables(newer, table(epoch=6))


def test_stamping_keeps_every_slot() -> None:
    before = table(slot("a", 1, 40), epoch=3)
    later = msgspec.structs.replace(before, leader_epoch=4, leader_token="x")
    assert stamp_epoch(before, 4, "x") == later
    assert stamp_epoch(later, 4, "y").slots == before.slots, "the same leader may come again"
    assert stamp_epoch(None, 4, "x").slots == []


def test_positions_of_one_generation_never_go_back() -> None:
    stored = table(slot("a", 1, 40))
    assert merge_tables(stored, table(slot("a", 1, 30))) == stored
    assert merge_tables(stored, table(slot("a", 1, 50))) == table(slot("a", 1, 50))


def test_an_invalidation_stays() -> None:
    lost = Invalidation(InvalidationCause.HORIZON, 9)
    stored = table(slot("a", 1, 40, invalidation=lost))
    assert merge_tables(stored, table(slot("a", 1, 40))) == stored


def test_a_bootstrap_that_is_done_stays_done() -> None:
    stored = table(slot("a", 1, 40))
    assert merge_tables(stored, table(slot("a", 1, 40, bootstrapping=True))) == stored


def test_a_new_generation_replaces_the_one_before_and_may_stand_lower() -> None:
    lost = Invalidation(InvalidationCause.HORIZON, 9)
    stored = table(slot("a", 1, 40, invalidation=lost), next_generation=2)
    renewed = table(slot("a", 2, 30), next_generation=3)
    assert merge_tables(stored, renewed) == renewed


def test_a_slot_that_was_never_stored_is_added() -> None:
    stored = table(slot("a", 1), next_generation=2)
    mine = table(slot("a", 1), slot("b", 2), next_generation=3)
    assert merge_tables(stored, mine) == mine


def test_a_slot_that_somebody_else_dropped_does_not_come_back() -> None:
    mine = table(slot("a", 1), slot("b", 2), next_generation=3)
    dropped = table(slot("b", 2), next_generation=3)
    assert merge_tables(dropped, mine) == dropped


def test_a_slot_that_the_leader_dropped_goes() -> None:
    stored = table(slot("a", 1), slot("b", 2), next_generation=3)
    mine = table(slot("b", 2), next_generation=3)
    assert merge_tables(stored, mine) == mine


def test_generations_are_never_given_twice() -> None:
    stored = table(next_generation=9)
    assert merge_tables(stored, table(next_generation=3)).next_generation == 9


def test_a_table_of_a_later_version_is_refused() -> None:
    later = msgspec.structs.replace(table(), slots_format=3)
    with pytest.raises(NotSupported, match="Upgrade"):
        stamp_epoch(later, 9, "x")
    with pytest.raises(NotSupported, match="Upgrade"):
        merge_tables(later, table())
