"""The slots as the leader knows them from moment to moment, and what of that is stored.

Always holds:

- what is kept of the log follows what is *stored*: a position that moved, an invalidation or a drop
  frees nothing before it would survive this leader. A slot that is not stored yet counts at once,
  and so does one that a write whose outcome is unknown may have stored;
- a pull changes nothing that is worth a write, but for the time it was heard of, once a minute.
"""

from __future__ import annotations

from headwater.core import limits, runtime
from headwater.core.errors import LimitExceeded, NotFound
from headwater.log.slots.retention import retention_floor
from headwater.log.slots.slot import InvalidationCause, Slot
from headwater.log.slots.table import SlotTable, table_of


class SlotBook:
    """Slots by name, over what was stored last."""

    def __init__(self, stored: SlotTable) -> None:
        self._stored = stored
        self._slots = {slot.name: slot for slot in stored.slots}
        self._seen_stored_ms = _seen(stored)
        self._maybe_stored_floor: int | None = None
        """The lowest floor of the tables sent since `_stored`: any of them may have landed."""
        self._next_generation = stored.next_generation
        now_s = runtime.monotonic_s()
        self._heard_s = dict.fromkeys(self._slots, now_s)
        self.changes = 0
        """How many changes were made that are worth a write."""

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def leader_epoch(self) -> int:
        """The epoch that stored tables are stamped with."""
        return self._stored.leader_epoch

    def slots(self) -> list[Slot]:
        """All slots, by name."""
        return sorted(self._slots.values(), key=lambda slot: slot.name)

    def find(self, name: str) -> Slot | None:
        """The slot of this name, if there is one."""
        return self._slots.get(name)

    def get(self, name: str) -> Slot:
        """The slot of this name; `NotFound` if there is none."""
        slot = self._slots.get(name)
        if slot is None:
            raise NotFound(f"there is no slot {name!r}: register the replica first")
        return slot

    def idle_s(self, name: str) -> float:
        """For how long nothing was heard of a replica, counted from this leader's start at most.

        By one clock that never goes back: two leaders' wall clocks may be days apart, and the
        second would give up every slot at once.
        """
        return runtime.monotonic_s() - self._heard_s[name]

    def floor_lsn(self) -> int | None:
        """The log must be kept above this; None where no slot asks for anything."""
        return _lowest(
            retention_floor(self._slots.values()),
            retention_floor(self._stored.slots),
            self._maybe_stored_floor,
        )

    def wanted_floor_lsn(self) -> int | None:
        """Where the floor would be if everything were stored."""
        return retention_floor(self._slots.values())

    def create(
        self,
        name: str,
        at_lsn: int,
        *,
        bootstrapping: bool = False,
        confirmed_lsn: int | None = None,
        last_seen_ms: int | None = None,
    ) -> Slot:
        """A new slot at this position; one of the same name becomes a new generation.

        `confirmed_lsn` is what its replica is known to have, if that is less than the slot keeps
        the log for; `last_seen_ms` is for one that is made anew though nobody was heard of.
        """
        if name not in self._slots and len(self._slots) >= limits.SLOTS_MAX:
            raise LimitExceeded(
                f"there are {len(self._slots)} slots; SLOTS_MAX is {limits.SLOTS_MAX}. Drop those "
                "that nobody uses: headwater group drop"
            )
        now_ms = runtime.wall_ms()
        before = self._slots.get(name)
        created_ms = now_ms if before is None else before.created_ms
        confirmed_lsn = at_lsn if confirmed_lsn is None else confirmed_lsn
        seen_ms = now_ms if last_seen_ms is None else last_seen_ms
        slot = Slot(
            name, self._next_generation, at_lsn, confirmed_lsn, created_ms, seen_ms, bootstrapping
        )
        self._next_generation += 1
        self._put(slot)
        self._heard_s[name] = runtime.monotonic_s()
        return slot

    def advance(self, name: str, *, applied_lsn: int, durable_lsn: int) -> Slot:
        """The replica acknowledged so much."""
        slot = self.get(name).advanced(applied_lsn=applied_lsn, durable_lsn=durable_lsn)
        self._put(slot)
        return self.touch(name)

    def touch(self, name: str) -> Slot:
        """The replica was heard of."""
        slot = self.get(name)
        self._heard_s[name] = runtime.monotonic_s()
        seen = slot.seen(runtime.wall_ms())
        stored_ms = self._seen_stored_ms.get(name, 0)
        if seen.last_seen_ms - stored_ms >= limits.SLOT_SEEN_REFRESH_S * 1000:
            self._put(seen)
        else:
            self._slots[name] = seen
        return seen

    def invalidate(self, name: str, cause: InvalidationCause) -> Slot:
        """Give a slot up."""
        slot = self.get(name).invalidated(cause, runtime.wall_ms())
        self._put(slot)
        return slot

    def complete_bootstrap(self, name: str, lsn: int) -> Slot:
        """The bootstrap that the slot was kept for is done, through this LSN."""
        self._put(self.get(name).bootstrapped(lsn))
        return self.touch(name)

    def drop(self, name: str) -> bool:
        """Forget a slot; whether there was one."""
        if self._slots.pop(name, None) is None:
            return False
        self._heard_s.pop(name)
        self.changes += 1
        return True

    def table(self) -> SlotTable:
        """What is to be stored."""
        return table_of(
            self._slots.values(),
            leader_epoch=self.leader_epoch,
            next_generation=self._next_generation,
            leader_token=self._stored.leader_token,
        )

    def sending(self, sent: SlotTable) -> None:
        """This is about to be written; until a write is known to have landed, it may be stored."""
        self._maybe_stored_floor = _lowest(self._maybe_stored_floor, retention_floor(sent.slots))

    def stored(self, sent: SlotTable, found: SlotTable) -> list[str]:
        """`sent` was written, and gave `found`; the names that somebody else had dropped.

        Whatever was sent before it and had not landed by then never will: each names the version
        that it replaces.
        """
        self._stored = found
        self._seen_stored_ms = _seen(found)
        self._maybe_stored_floor = None
        kept = {slot.name for slot in found.slots}
        dropped = []
        for slot in sent.slots:
            present = self._slots.get(slot.name)
            if slot.name in kept or present is None or present.generation != slot.generation:
                continue  # a slot that was made again while this was written is not the dropped one
            del self._slots[slot.name]
            del self._heard_s[slot.name]
            dropped.append(slot.name)
        return dropped

    def _put(self, slot: Slot) -> None:
        if self._slots.get(slot.name) != slot:
            self._slots[slot.name] = slot
            self.changes += 1


def _lowest(*floors: int | None) -> int | None:
    return min((floor for floor in floors if floor is not None), default=None)


def _seen(table: SlotTable) -> dict[str, int]:
    return {slot.name: slot.last_seen_ms for slot in table.slots}
