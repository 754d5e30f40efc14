"""The stored slots of a partition: one register beside its queue, and how a leader updates it.

Two processes write it: the leader, and `headwater slot drop`. Only the leader creates generations,
so `next_generation` distinguishes a slot that was never stored from one that was stored and dropped
since. No tombstones are needed, and the leader's next write does not bring a dropped slot back.

Always holds:

- only the leader with the highest epoch writes positions, and of several openings under one epoch
  the last; all others are `Fenced`;
- a table that exists and cannot be read is an error, never an empty table: otherwise the log would
  be pruned under replicas that need it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from headwater.buffer.layout import slots_key
from headwater.core import limits, runtime
from headwater.core.errors import Damaged, Fenced, NotFound, NotSupported, Refused, RolledBack
from headwater.core.limits import TERM_MAX
from headwater.core.settings import whole_number
from headwater.log.primary.slot import Slot
from headwater.store import Register, Store

SLOTS_FORMAT: Final = 2
_READABLE_FORMATS: Final = (1, SLOTS_FORMAT)
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


EMPTY_TABLE: Final = SlotTable(SLOTS_FORMAT, 0, 1, [])


def check_format(stored: SlotTable) -> SlotTable:
    if stored.slots_format not in _READABLE_FORMATS:
        raise NotSupported(
            f"these slots are of format {stored.slots_format}; this version reads formats up to "
            f"{SLOTS_FORMAT}. Upgrade Headwater."
        )
    return stored


def stamp_epoch(stored: SlotTable | None, leader_epoch: int, leader_token: str) -> SlotTable:
    """The stored table under a new leader's epoch; `Fenced` if it has a higher one.

    `Refused` for an epoch that no leader can have reached: it would fence all later leaders.
    """
    before = check_format(stored or EMPTY_TABLE)
    if before.leader_epoch > leader_epoch:
        raise _fenced(before, leader_epoch)
    if before.leader_epoch and leader_epoch - before.leader_epoch > limits.EPOCH_STEP_MAX:
        raise Refused(
            f"leader_epoch is {leader_epoch}, and the last one was {before.leader_epoch}: no "
            f"leader is so far ahead (EPOCH_STEP_MAX is {limits.EPOCH_STEP_MAX:,}). It would "
            "fence every leader after it"
        )
    return msgspec.structs.replace(
        before, slots_format=SLOTS_FORMAT, leader_epoch=leader_epoch, leader_token=leader_token
    )


def merge_tables(stored: SlotTable | None, mine: SlotTable) -> SlotTable:
    """The stored table with the leader's changes.

    A slot that the leader does not have was dropped by it, because it began with all stored slots.
    A slot that is not stored although its generation was, was dropped by another process. `Fenced`
    if the table belongs to another leader: each would drop the slots that the other one added.
    """
    before = check_format(stored or EMPTY_TABLE)
    _check_leader(before, mine)
    by_name = {slot.name: slot for slot in before.slots}
    slots = [
        _merge_slot(by_name.get(slot.name), slot)
        for slot in mine.slots
        if slot.name in by_name or slot.generation >= before.next_generation
    ]
    generation = max(before.next_generation, mine.next_generation)
    return msgspec.structs.replace(mine, slots=slots, next_generation=generation)


def _merge_slot(stored: Slot | None, mine: Slot) -> Slot:
    """In one generation nothing goes back, and an invalidation stays."""
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


def _check_leader(stored: SlotTable, mine: SlotTable) -> None:
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


class SlotRegister:
    """The stored slots of one partition."""

    def __init__(self, store: Store, stream: str, partition: int, stream_id: str) -> None:
        key = slots_key(stream, partition, stream_id)
        self._register = Register(store, key, SlotTable)

    @property
    def key(self) -> str:
        return self._register.key

    async def read(self) -> SlotTable | None:
        try:
            return check_format((await self._register.read()).value)
        except NotFound:
            return None

    async def stamp(self, leader_epoch: int, *, must_exist: bool = False) -> SlotTable:
        """Become the table's only writer, and return it; `Fenced` if there is a later leader.

        With `must_exist` a missing table is damage.
        """
        epoch, token = _valid_epoch(leader_epoch), runtime.new_token().hex()

        def change(stored: SlotTable | None) -> SlotTable:
            if stored is None and must_exist:
                raise RolledBack(
                    f"{self.key} is gone, and there may have been slots: what replicas need is "
                    "unknown. Restore it, or, if there are no replicas, begin without slots: "
                    "headwater slot reset, or must_exist=False for a log that never had a leader"
                )
            return stamp_epoch(stored, epoch, token)

        return (await self._register.update(change)).value

    async def write(self, mine: SlotTable) -> SlotTable:
        """Merge the leader's table into the stored one; returns the result.

        After an unknown outcome, write again: nothing in it goes back. `RolledBack` if
        the table that this leader stamped is gone.
        """
        return (await self._register.update(lambda stored: merge_tables(stored, mine))).value

    async def drop(self, name: str) -> bool:
        """Remove a slot, from any process; returns whether there was one. It frees the log."""
        dropped = False

        def change(stored: SlotTable | None) -> SlotTable:
            nonlocal dropped
            before = check_format(stored or EMPTY_TABLE)
            slots = [slot for slot in before.slots if slot.name != name]
            dropped = len(slots) < len(before.slots)
            return msgspec.structs.replace(before, slots=slots)

        if await self.read() is None:
            return False  # an update would create a table
        await self._register.update(change)
        return dropped

    async def lower_epoch(self, leader_epoch: int) -> None:
        """Lower the stored epoch, so that leaders from this epoch on are accepted again.

        Repairs a table with an epoch that no leader reaches. `Refused` unless the epoch is lower.
        """
        epoch = _valid_epoch(leader_epoch)

        def change(stored: SlotTable | None) -> SlotTable:
            if stored is None:
                raise NotFound("no leader has stored slots here: there is no epoch to lower")
            before = check_format(stored)
            if epoch >= before.leader_epoch:
                raise Refused(
                    f"the slots have epoch {before.leader_epoch}: it can only be lowered, not set "
                    f"to {epoch}"
                )
            return msgspec.structs.replace(before, leader_epoch=epoch, leader_token="")

        await self._register.update(change)

    async def reset_damaged(self) -> None:
        """Replace a table that is damaged or missing by an empty one; `Refused` if it can be read.

        Until replicas register again, the log is not kept for them.
        """
        try:
            is_gone = await self.read() is None
        except Damaged:
            is_gone = False
        if is_gone:
            await self._register.update(lambda stored: stored or EMPTY_TABLE)
        else:
            await self._register.replace_damaged(EMPTY_TABLE)


def _valid_epoch(leader_epoch: int) -> int:
    return whole_number("leader_epoch", leader_epoch, at_least=1, at_most=TERM_MAX)
