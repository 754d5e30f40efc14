"""Where slots survive a failover: one register beside the partition's queue.

Always holds:

- only the leader with the highest epoch writes positions, and of several openings under it the
  last; all others are `Fenced`;
- a table that is there and cannot be read is an error and never an empty table: were it empty, the
  log would be pruned under replicas that count on it.
"""

from __future__ import annotations

from headwater.buffer.layout import slots_key
from headwater.core import runtime
from headwater.core.errors import Damaged, NotFound, RolledBack
from headwater.log.slots.table import (
    EMPTY,
    SlotTable,
    check_epoch,
    check_format,
    joined,
    lowered,
    stamped,
    without,
)
from headwater.store import Register, Store


class SlotRegister:
    """The stored slots of one partition."""

    def __init__(self, store: Store, stream: str, partition: int, stream_id: str) -> None:
        key = slots_key(stream, partition, stream_id)
        self._register = Register(store, key, SlotTable)

    @property
    def key(self) -> str:
        """Where it stands."""
        return self._register.key

    async def read(self) -> SlotTable | None:
        """What is stored; None if slots were never kept here."""
        try:
            return check_format((await self._register.read()).value)
        except NotFound:
            return None

    async def stamp(self, leader_epoch: int, *, must_exist: bool = False) -> SlotTable:
        """Become the one who writes, and get what was stored; `Fenced` if a later leader has.

        `must_exist` is for whoever knows that slots were kept here: gone is then damage.
        """
        epoch, token = check_epoch(leader_epoch), runtime.new_token().hex()

        def change(stored: SlotTable | None) -> SlotTable:
            if stored is None and must_exist:
                raise RolledBack(
                    f"{self.key} is gone, and there may have been slots: nothing can say what "
                    "replicas still need. Restore it, or, if there are no replicas, begin without "
                    "slots: headwater group reset, or must_exist=False for a log that nobody has "
                    "led before"
                )
            return stamped(stored, epoch, token)

        return (await self._register.update(change)).value

    async def write(self, mine: SlotTable) -> SlotTable:
        """Bring what is stored up to what the leader knows; returns it, as it is then.

        After an unknown outcome it is simply done again: nothing in it goes back. `RolledBack` if
        the table that this leader stamped is gone.
        """
        return (await self._register.update(lambda stored: joined(stored, mine))).value

    async def drop(self, name: str) -> bool:
        """Remove a slot, whoever leads; whether there was one. The log is no longer kept for it."""
        dropped = False

        def change(stored: SlotTable | None) -> SlotTable:
            nonlocal dropped
            before = stored or EMPTY
            dropped = before.slot(name) is not None
            return without(before, name)

        if await self.read() is None:
            return False  # an update would make a table where nobody keeps slots
        await self._register.update(change)
        return dropped

    async def lower_epoch(self, leader_epoch: int) -> None:
        """Let leaders after this epoch in, where one that no leader has was stamped. Slots stay.

        `Refused` unless it is lower than what is stored.
        """
        epoch = check_epoch(leader_epoch)
        await self._register.update(lambda stored: lowered(stored, epoch))

    async def reset_damaged(self) -> None:
        """Begin anew where the table cannot be read, or is gone; `Refused` if it can be read.

        Replicas that come back are registered again. Until then the log is not kept for them.
        """
        if await self._is_gone():
            await self._register.update(lambda stored: stored or EMPTY)
        else:
            await self._register.replace_damaged(EMPTY)

    async def _is_gone(self) -> bool:
        try:
            return await self.read() is None
        except Damaged:
            return False
