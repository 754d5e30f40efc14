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

from headwater.core.errors import Fenced, NotSupported
from headwater.log.slots.slot import Slot

FORMAT: Final = 1


class SlotTable(msgspec.Struct, frozen=True):
    """What `slots.json` holds."""

    slots_format: int
    leader_epoch: int
    """Of the leader that may write; one with an older epoch is refused."""
    next_generation: int
    """Above every generation that was ever stored."""
    slots: list[Slot]
    """By name."""

    def slot(self, name: str) -> Slot | None:
        """The slot of this name, if there is one."""
        return next((slot for slot in self.slots if slot.name == name), None)


EMPTY: Final = SlotTable(FORMAT, 0, 1, [])


def table_of(slots: Iterable[Slot], *, leader_epoch: int, next_generation: int) -> SlotTable:
    """A table of these slots, in the order in which tables are stored."""
    ordered = sorted(slots, key=lambda slot: slot.name)
    return SlotTable(FORMAT, leader_epoch, next_generation, ordered)


def check_format(stored: SlotTable) -> SlotTable:
    """The table itself; `NotSupported` if it is one of a later version."""
    if stored.slots_format != FORMAT:
        raise NotSupported(
            f"these slots are of format {stored.slots_format}; this version reads format {FORMAT}. "
            "Upgrade Headwater."
        )
    return stored


def stamped(stored: SlotTable | None, leader_epoch: int) -> SlotTable:
    """The stored table under a new leader's epoch; `Fenced` if a newer one has been there."""
    before = check_format(stored or EMPTY)
    _refuse_newer(before, leader_epoch)
    return msgspec.structs.replace(before, leader_epoch=leader_epoch)


def joined(stored: SlotTable | None, mine: SlotTable) -> SlotTable:
    """What is stored, brought up to what the leader knows.

    A slot that the leader does not have was dropped by it: it began with all that was stored. One
    that is not stored, though its generation was, was dropped by somebody else. `Fenced` if the
    table is a newer leader's.
    """
    before = check_format(stored or EMPTY)
    _refuse_newer(before, mine.leader_epoch)
    kept = {slot.name: slot for slot in before.slots}
    slots = [
        _later(kept.get(slot.name), slot)
        for slot in mine.slots
        if slot.name in kept or slot.generation >= before.next_generation
    ]
    generation = max(before.next_generation, mine.next_generation)
    return table_of(slots, leader_epoch=mine.leader_epoch, next_generation=generation)


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


def _refuse_newer(stored: SlotTable, leader_epoch: int) -> None:
    if stored.leader_epoch > leader_epoch:
        raise Fenced(
            f"a leader with epoch {stored.leader_epoch} keeps the slots; this one has "
            f"{leader_epoch}: stop serving"
        )
