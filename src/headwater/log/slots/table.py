"""All slots of a partition as one value, and how a leader's view joins what is stored.

Two write it: the leader, and whoever drops a slot from outside (`headwater group drop`). The leader
alone makes generations, so the number of the next one tells a slot that was never stored from one
that was stored and dropped since: no tombstones are needed, and a dropped slot does not come back
with the leader's next write.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from headwater.buffer.whole_number import whole_number
from headwater.core import limits
from headwater.core.errors import Fenced, NotFound, NotSupported, Refused
from headwater.core.limits import TERM_MAX
from headwater.log.slots.slot import Slot

FORMAT: Final = 2
_READ: Final = (1, FORMAT)
"""Format 1 had no token."""


class SlotTable(msgspec.Struct, frozen=True):
    """What `slots.json` holds."""

    slots_format: int
    leader_epoch: int
    """Of the leader that may write; one with an older epoch is refused."""
    next_generation: int
    """Above every generation that was ever stored."""
    slots: list[Slot]
    """By name."""
    leader_token: str = ""
    """Of the opening that may write: under one epoch there may be several, and the last counts."""

    def slot(self, name: str) -> Slot | None:
        """The slot of this name, if there is one."""
        return next((slot for slot in self.slots if slot.name == name), None)


EMPTY: Final = SlotTable(FORMAT, 0, 1, [])


def table_of(
    slots: Iterable[Slot], *, leader_epoch: int, next_generation: int, leader_token: str = ""
) -> SlotTable:
    """A table of these slots, in the order in which tables are stored."""
    ordered = sorted(slots, key=lambda slot: slot.name)
    return SlotTable(FORMAT, leader_epoch, next_generation, ordered, leader_token)


def check_format(stored: SlotTable) -> SlotTable:
    """The table itself; `NotSupported` if it is one of a later version."""
    if stored.slots_format not in _READ:
        raise NotSupported(
            f"these slots are of format {stored.slots_format}; this version reads formats up to "
            f"{FORMAT}. Upgrade Headwater."
        )
    return stored


def stamped(stored: SlotTable | None, leader_epoch: int, leader_token: str) -> SlotTable:
    """The stored table under a new leader's epoch; `Fenced` if a newer one has been there.

    `Refused` if no leader can have come so far since: each later one would be fenced by it.
    """
    before = check_format(stored or EMPTY)
    if before.leader_epoch > leader_epoch:
        raise _fenced(before, leader_epoch)
    if before.leader_epoch and leader_epoch - before.leader_epoch > limits.EPOCH_STEP_MAX:
        raise Refused(
            f"leader_epoch is {leader_epoch}, and {before.leader_epoch} was the last before it: no "
            f"leader is so far ahead (EPOCH_STEP_MAX is {limits.EPOCH_STEP_MAX:,}). Nobody after "
            "it would be let in"
        )
    return table_of(
        before.slots,
        leader_epoch=leader_epoch,
        next_generation=before.next_generation,
        leader_token=leader_token,
    )


def lowered(stored: SlotTable | None, leader_epoch: int) -> SlotTable:
    """The table without an epoch that no leader has: those after `leader_epoch` are let in."""
    if stored is None:
        raise NotFound("no leader has kept slots here: there is no epoch to lower")
    before = check_format(stored)
    if leader_epoch >= before.leader_epoch:
        raise Refused(
            f"the slots are a leader's with epoch {before.leader_epoch}: only a lower one than "
            f"that is set by hand, not {leader_epoch}"
        )
    return msgspec.structs.replace(before, leader_epoch=leader_epoch, leader_token="")


def check_epoch(leader_epoch: int) -> int:
    """The epoch itself; `Refused` if it is none that a record can carry as its term."""
    epoch = whole_number("leader_epoch", leader_epoch)
    if not 1 <= epoch <= TERM_MAX:
        raise Refused(
            f"leader_epoch is {epoch}: they begin at 1 and end at {TERM_MAX}, as terms do"
        )
    return epoch


def joined(stored: SlotTable | None, mine: SlotTable) -> SlotTable:
    """What is stored, brought up to what the leader knows.

    A slot that the leader does not have was dropped by it: it began with all that was stored. One
    that is not stored, though its generation was, was dropped by somebody else. `Fenced` if the
    table is no longer this leader's: of two that take it for theirs, each would drop what the other
    one added.
    """
    before = check_format(stored or EMPTY)
    _refuse_others(before, mine)
    kept = {slot.name: slot for slot in before.slots}
    slots = [
        _later(kept.get(slot.name), slot)
        for slot in mine.slots
        if slot.name in kept or slot.generation >= before.next_generation
    ]
    generation = max(before.next_generation, mine.next_generation)
    return table_of(
        slots,
        leader_epoch=mine.leader_epoch,
        next_generation=generation,
        leader_token=mine.leader_token,
    )


def _later(stored: Slot | None, mine: Slot) -> Slot:
    """Of one generation: nothing goes back, and an invalidation stays."""
    if stored is None or stored.generation != mine.generation:
        return mine
    return msgspec.structs.replace(
        mine,
        restart_lsn=max(stored.restart_lsn, mine.restart_lsn),
        confirmed_lsn=max(stored.confirmed_lsn, mine.confirmed_lsn),
        last_seen_ms=max(stored.last_seen_ms, mine.last_seen_ms),
        bootstrapping=stored.bootstrapping and mine.bootstrapping,
        invalidation=stored.invalidation or mine.invalidation,
    )


def without(stored: SlotTable, name: str) -> SlotTable:
    """The table without this slot; the number of the next generation stays."""
    slots = [slot for slot in stored.slots if slot.name != name]
    return msgspec.structs.replace(check_format(stored), slots=slots)


def _refuse_others(stored: SlotTable, mine: SlotTable) -> None:
    if (stored.leader_epoch, stored.leader_token) != (mine.leader_epoch, mine.leader_token):
        raise _fenced(stored, mine.leader_epoch)


def _fenced(stored: SlotTable, leader_epoch: int) -> Fenced:
    if stored.leader_epoch == leader_epoch:
        return Fenced(
            f"the slots were opened again under the same epoch {leader_epoch}: stop serving. Each "
            "opening takes an epoch of its own, unless it is the same leader that starts again"
        )
    return Fenced(
        f"a leader with epoch {stored.leader_epoch} keeps the slots; this one has "
        f"{leader_epoch}: stop serving"
    )
