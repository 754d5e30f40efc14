"""The leader's slots in memory, and writing them to the store at a bounded rate.

    writer = await SlotWriter.open(register, leader_epoch=7)
    writer.slots.advance("standby", applied_lsn=120, durable_lsn=100)
    await writer.wait_stored()     # or leave it to writer.start(), which writes every few seconds

Always holds:

- the log is kept for what is *stored*: a position that moved, an invalidation or a drop frees log
  only once it is stored. A slot that is not stored yet counts at once, and so does one that a write
  with unknown outcome may have stored;
- a pull changes nothing that needs a write, except for `last_seen_ms`, once a minute;
- one write at a time, at least SLOT_WRITE_GAP_S apart, shared by all waiting calls;
- while the store is away, writes are delayed and nothing is freed;
- after a newer leader or a damaged table was found, the writer writes nothing more and raises the
  cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from headwater.core import limits, runtime
from headwater.core.errors import Bug, Damaged, Fenced, HeadwaterError, LimitExceeded, NotFound
from headwater.log.primary.slot import InvalidationCause, Slot, retention_floor
from headwater.log.primary.slot_register import SLOTS_FORMAT, SlotRegister, SlotTable


class LeaderSlots:
    """Slots by name, over what was stored last."""

    def __init__(self, stored: SlotTable) -> None:
        self._stored = stored
        self._slots = {slot.name: slot for slot in stored.slots}
        self._seen_stored_ms = _last_seen_ms(stored)
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
        return self._stored.leader_epoch

    def all(self) -> list[Slot]:
        return sorted(self._slots.values(), key=lambda slot: slot.name)

    def find(self, name: str) -> Slot | None:
        return self._slots.get(name)

    def get(self, name: str) -> Slot:
        slot = self._slots.get(name)
        if slot is None:
            raise NotFound(f"there is no slot {name!r}: register the replica first")
        return slot

    def idle_s(self, name: str) -> float:
        """How long a replica has been silent, counted from this leader's start at most.

        By a monotonic clock: two leaders' wall clocks may be days apart, and the second leader
        would give up every slot at once.
        """
        return runtime.monotonic_s() - self._heard_s[name]

    def floor_lsn(self) -> int | None:
        """The log must be kept above this; None if no slot needs any of it."""
        return _lowest(
            retention_floor(self._slots.values()),
            retention_floor(self._stored.slots),
            self._maybe_stored_floor,
        )

    def wanted_floor_lsn(self) -> int | None:
        """The floor if everything were stored."""
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
        """A new generation at this position. `confirmed_lsn` is what the replica acknowledged, if
        that is less; `last_seen_ms` is for a slot that is recreated without its replica's request.
        """
        if name not in self._slots and len(self._slots) >= limits.SLOTS_MAX:
            raise LimitExceeded(
                f"there are {len(self._slots)} slots; SLOTS_MAX is {limits.SLOTS_MAX}. Drop "
                "unused ones: headwater slot drop"
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
        slot = self.get(name).advanced(applied_lsn=applied_lsn, durable_lsn=durable_lsn)
        self._put(slot)
        return self.touch(name)

    def touch(self, name: str) -> Slot:
        slot = self.get(name)
        self._heard_s[name] = runtime.monotonic_s()
        seen = slot.seen(runtime.wall_ms())
        stored_ms = self._seen_stored_ms.get(name, 0)
        if seen.last_seen_ms - stored_ms >= limits.SLOT_SEEN_REFRESH_S * 1000:
            self._put(seen)
        else:
            self._slots[name] = seen
        return seen

    def invalidate(self, name: str, cause: InvalidationCause) -> None:
        self._put(self.get(name).invalidated(cause, runtime.wall_ms()))

    def complete_bootstrap(self, name: str, lsn: int) -> Slot:
        self._put(self.get(name).bootstrapped(lsn))
        return self.touch(name)

    def drop(self, name: str) -> bool:
        if self._slots.pop(name, None) is None:
            return False
        self._heard_s.pop(name)
        self.changes += 1
        return True

    def table(self) -> SlotTable:
        token = self._stored.leader_token
        return SlotTable(SLOTS_FORMAT, self.leader_epoch, self._next_generation, self.all(), token)

    def sending(self, sent: SlotTable) -> None:
        """A table is about to be written: it may be stored until a later write landed."""
        self._maybe_stored_floor = _lowest(self._maybe_stored_floor, retention_floor(sent.slots))

    def stored(self, sent: SlotTable, result: SlotTable) -> list[str]:
        """`sent` was written, and `result` is stored; returns names that others had dropped.

        Earlier writes that had not landed by then never will: each names the version that it
        replaces.
        """
        self._stored = result
        self._seen_stored_ms = _last_seen_ms(result)
        self._maybe_stored_floor = None
        stored_names = {slot.name for slot in result.slots}
        dropped = []
        for slot in sent.slots:
            present = self._slots.get(slot.name)
            if slot.name in stored_names or present is None:
                continue
            if present.generation != slot.generation:
                continue  # recreated while this was written: it is not the dropped one
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


def _last_seen_ms(table: SlotTable) -> dict[str, int]:
    return {slot.name: slot.last_seen_ms for slot in table.slots}


_log: Final = logging.getLogger("headwater")


class SlotWriter:
    """The slots of one partition, in the hands of its leader."""

    def __init__(
        self, register: SlotRegister, slots: LeaderSlots, *, write_interval_s: float
    ) -> None:
        """Use `SlotWriter.open`."""
        self.slots = slots
        self.failure: HeadwaterError | None = None
        """What ended the writer: a newer leader, or damage."""
        self.writes = 0
        self.writes_failed = 0
        """Writes that failed, or whose outcome is unknown: they are done again."""
        self.on_dropped: Callable[[list[str]], None] = lambda names: None
        """Called with the names of slots that another process dropped."""
        self.on_failure: Callable[[HeadwaterError], None] = lambda failure: None
        self._register = register
        self._write_interval_s = write_interval_s
        self._written = slots.changes
        self._last_write_s = runtime.monotonic_s()
        self._attempts = 0
        self._failed: tuple[int, HeadwaterError] | None = None
        """The attempt that failed last, and why."""
        self._writing = asyncio.Lock()
        self._running: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        register: SlotRegister,
        *,
        leader_epoch: int,
        must_exist: bool = False,
        write_interval_s: float = limits.SLOT_WRITE_INTERVAL_S,
    ) -> SlotWriter:
        """Take the slots over under this epoch, as `SlotRegister.stamp` says."""
        stored = await register.stamp(leader_epoch, must_exist=must_exist)
        return cls(register, LeaderSlots(stored), write_interval_s=write_interval_s)

    @property
    def is_stored(self) -> bool:
        return self._written >= self.slots.changes

    def check(self) -> None:
        if self.failure is not None:
            raise _copy_of_error(self.failure)

    def start(self) -> None:
        if self._running is None:
            self._running = runtime.spawn(self._run(), name="headwater-slots")

    async def close(self) -> None:
        """Write what is left to write, and end. An error is that of `wait_stored`."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.wait((running,))
        if self.failure is None:
            await self.wait_stored()

    async def wait_stored(self) -> None:
        """Return once everything that was changed until now is stored.

        Raises what the store says; nothing is lost by that, and a later call tries again.
        """
        self.check()
        wanted, arrived = self.slots.changes, self._attempts
        while self._written < wanted:
            async with self._writing:
                if self._failed is not None and self._failed[0] > arrived:
                    # Everyone who waited for that write gets its error: if each tried again,
                    # the last of many would wait for as many time-outs.
                    raise _copy_of_error(self._failed[1])
                if self._written < wanted:
                    await self._write()
        self.check()

    async def refresh(self) -> None:
        """Write even if nothing changed, to learn of slots that another process dropped.

        Without it, a dropped slot would hold the log for as long as no other slot moves.
        """
        async with self._writing:
            await self._write()

    async def _write(self) -> None:
        self.check()
        wait_s = self._last_write_s + limits.SLOT_WRITE_GAP_S - runtime.monotonic_s()
        if wait_s > 0:
            await runtime.sleep(wait_s)
        self._attempts += 1
        changes, sent = self.slots.changes, self.slots.table()
        self.slots.sending(sent)
        try:
            result = await self._register.write(sent)
        except HeadwaterError as error:
            self.writes_failed += 1
            self._failed = (self._attempts, error)
            if isinstance(error, Fenced | Damaged | Bug):
                self.failure = error
                _log.error("slots are no longer written, and nothing is pruned: %s", error)
                self.on_failure(error)
            raise
        finally:
            self._last_write_s = runtime.monotonic_s()
        self.writes += 1
        self._written = max(self._written, changes)
        dropped = self.slots.stored(sent, result)
        if dropped:
            self.on_dropped(dropped)

    async def _run(self) -> None:
        while self.failure is None:
            await runtime.sleep(self._write_interval_s)
            try:
                # What can pass is tried again at the next turn; what cannot is in `failure`.
                with contextlib.suppress(HeadwaterError):
                    await (self.refresh() if self._is_old() else self.wait_stored())
            except Exception:
                # If this task ended, nothing would be stored any more, and so nothing pruned.
                self.writes_failed += 1
                _log.exception("slots were not written, and will be")

    def _is_old(self) -> bool:
        return runtime.monotonic_s() - self._last_write_s >= limits.SLOT_LOOK_S


def _copy_of_error(error: HeadwaterError) -> HeadwaterError:
    """A new error for each caller: a raised one collects the traceback of its raiser."""
    copy = type(error)(str(error))
    copy.__cause__ = error
    return copy
