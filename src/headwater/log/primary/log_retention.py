"""What the log is kept for: the slots, compared with the log itself.

Always holds:

- nothing above the stored position of a valid slot is pruned, whatever is registered meanwhile;
- log that only an invalid or dropped slot needed is freed once the invalidation or drop is stored;
- a replica resumes only where the log has the very next record.
"""

from __future__ import annotations

import logging
from typing import Final

from headwater.core import runtime
from headwater.core.errors import OutcomeUnknown, Refused, Unavailable
from headwater.log.primary.registry import ReplicationMetrics
from headwater.log.primary.slot import (
    FullRebootstrap,
    InvalidationCause,
    LagClock,
    ResumeMode,
    RetentionLimits,
    Slot,
    SlotLag,
    SlotView,
    exceeded_limit,
    is_comparable,
    plan_bootstrap,
    plan_resume,
    slot_status,
)
from headwater.log.primary.slot_writer import SlotWriter
from headwater.log.record.group import Wal

_log: Final = logging.getLogger("headwater")


class LogRetention:
    """The slots of one leader, and the log that they hold."""

    def __init__(
        self,
        wal: Wal,
        slot_writer: SlotWriter,
        bounds: RetentionLimits,
        metrics: ReplicationMetrics,
    ) -> None:
        self.wal = wal
        self.slot_writer = slot_writer
        self.slots = slot_writer.slots
        self._bounds = bounds
        self._metrics = metrics
        self._lag_clock = LagClock()
        self.archived_lsn = 0
        """Through here the log is archived elsewhere, and only slots need it."""
        self._pruning_lsn = 0
        """The log is being, or was, pruned through this one: what is not above it is gone."""

    def oldest_lsn(self) -> int:
        """The first record that a replica can count on."""
        return max(self.wal.oldest_lsn(), self._pruning_lsn + 1)

    def register(self, name: str, position_lsn: int | None) -> Slot:
        self.slot_writer.check()
        slot = self.slots.find(name)
        if slot is None:
            return self._new_slot(name, position_lsn)
        if position_lsn is not None and self._has_lost_some(slot, position_lsn):
            return self.slots.create(name, min(position_lsn, self.wal.current_lsn()))
        return self.slots.touch(name)

    def lower_slots_to_log_end(self) -> None:
        """Move slots that are above the end of the log back to its end.

        Their replicas have records that this log does not have and may write otherwise: those are
        kept until the replica has compared them.
        """
        current_lsn = self.wal.current_lsn()
        for slot in self.slots.all():
            if slot.bootstrapping or max(slot.restart_lsn, slot.confirmed_lsn) <= current_lsn:
                continue
            self.slots.create(
                slot.name,
                min(slot.restart_lsn, current_lsn),
                confirmed_lsn=min(slot.confirmed_lsn, current_lsn),
                last_seen_ms=slot.last_seen_ms,
            )
            if slot.invalidation is not None:
                self.slots.invalidate(slot.name, slot.invalidation.cause)

    def enforce_limits(self) -> list[tuple[str, InvalidationCause]]:
        self._lag_clock.note(runtime.monotonic_s(), self.wal.current_lsn())
        invalidated = []
        for slot in self.slots.all():
            cause = exceeded_limit(self._kept(slot), self._bounds) if slot.is_valid else None
            if cause is not None:
                self._invalidate(slot.name, cause)
                invalidated.append((slot.name, cause))
        return invalidated

    async def prune_through(self, archived_lsn: int) -> int:
        """Prune what is archived elsewhere and no slot needs; the LSN through which it went."""
        self.archived_lsn = max(self.archived_lsn, archived_lsn)
        self.enforce_limits()
        wanted_lsn = self._prunable_lsn(self.slots.wanted_floor_lsn())
        if self._prunable_lsn(self.slots.floor_lsn()) < wanted_lsn:
            try:
                await self.slot_writer.wait_stored()
            except (Unavailable, OutcomeUnknown, Refused):
                self._metrics.prunes_cut_short += 1
        self.slot_writer.check()
        prune_lsn = min(self._prunable_lsn(self.slots.floor_lsn()), self.wal.current_lsn())
        if prune_lsn > 0:
            # Before the prune: a replica that registers meanwhile must not count on these records.
            self._pruning_lsn = max(self._pruning_lsn, prune_lsn)
            await self.wal.prune_through(prune_lsn)
        return prune_lsn

    def rebootstrap_reason(self, name: str, position_lsn: int | None) -> InvalidationCause | None:
        mode = self._plan(name, position_lsn)
        return mode.cause if isinstance(mode, FullRebootstrap) else None

    def plan_resume(self, name: str, position_lsn: int | None) -> ResumeMode:
        mode = self._plan(name, position_lsn)
        if isinstance(mode, FullRebootstrap):
            self._metrics.full_rebootstraps[mode.cause.value] += 1
        else:
            self._metrics.partial_resyncs += 1
        return mode

    def begin_bootstrap(self, name: str, image_lsn: int | None) -> int:
        """Where a fresh copy begins; the log after that is kept from here on."""
        self.slot_writer.check()
        after_lsn = plan_bootstrap(
            image_lsn, oldest_lsn=self.oldest_lsn(), current_lsn=self.wal.current_lsn()
        )
        # The image was not acknowledged; what the replica had acknowledged before stays.
        before = self.slots.find(name)
        confirmed_lsn = 0 if before is None else min(before.confirmed_lsn, after_lsn)
        self.slots.create(name, after_lsn, bootstrapping=True, confirmed_lsn=confirmed_lsn)
        return after_lsn

    def complete_bootstrap(self, name: str, lsn: int) -> Slot:
        """The replica has a fresh copy of everything through this LSN: its slot is valid again.

        `Refused` if the log no longer has the records after it, whatever the slot says.
        """
        self.slot_writer.check()
        slot = self.slots.get(name)
        if self.oldest_lsn() > lsn + 1:
            raise Refused(
                f"the copy of {name!r} ends at LSN {lsn}, and the log begins at "
                f"{self.oldest_lsn()}: bootstrap again, from a newer image"
            )
        if slot.is_valid and slot.bootstrapping and lsn >= slot.restart_lsn:
            return self.slots.complete_bootstrap(name, lsn)
        return self.slots.create(name, lsn)

    def check_pull(self, name: str, since_lsn: int) -> FullRebootstrap | None:
        """None if a pull can be served, else why not; a slot whose records are gone is invalidated.

        A bootstrap under way may pull what follows its image.
        """
        slot = self.slots.get(name)
        if slot.invalidation is not None:
            return FullRebootstrap(slot.invalidation.cause)
        if slot.bootstrapping and since_lsn < slot.restart_lsn:
            return FullRebootstrap(InvalidationCause.NOT_BOOTSTRAPPED)
        if self.oldest_lsn() > since_lsn + 1:
            return self.invalidate_or_refuse(name, since_lsn)
        return None

    def invalidate_or_refuse(self, name: str, since_lsn: int) -> FullRebootstrap:
        """Invalidate a slot, because the log no longer has the records after `since_lsn`.

        Below its slot a replica only compares: then the slot stays, and the pull is `Refused`.
        Registering again returns from where the replica can compare.
        """
        slot = self.slots.get(name)
        if since_lsn < slot.restart_lsn and self.oldest_lsn() <= slot.restart_lsn + 1:
            raise Refused(
                f"the log begins at LSN {self.oldest_lsn()}, and what follows {since_lsn} was "
                f"pruned: register again with what replica {name!r} has"
            )
        self._invalidate(name, InvalidationCause.WAL_REMOVED)
        return FullRebootstrap(InvalidationCause.WAL_REMOVED)

    def view(self, slot: Slot, *, is_active: bool) -> SlotView:
        lag, kept = self._lag(slot), self._kept(slot)
        copied_lsns = slot.restart_lsn - slot.confirmed_lsn if slot.bootstrapping else 0
        status = slot_status(
            slot,
            kept,
            self._bounds,
            oldest_lsn=self.oldest_lsn(),
            archived_lsn=self.archived_lsn,
        )
        return SlotView(
            slot.name,
            status,
            slot.restart_lsn,
            slot.confirmed_lsn,
            lag.lsn + max(0, copied_lsns),
            lag.bytes,
            lag.seconds,
            None if is_active else slot.last_seen_ms,
            slot.bootstrapping,
            None if slot.invalidation is None else slot.invalidation.cause,
        )

    def _new_slot(self, name: str, position_lsn: int | None) -> Slot:
        current_lsn = self.wal.current_lsn()
        if position_lsn is None:
            return self.slots.create(name, current_lsn)
        if is_comparable(position_lsn, confirmed_lsn=0, oldest_lsn=self.oldest_lsn()):
            # The replica's own position was not compared with any log yet.
            return self.slots.create(name, min(position_lsn, current_lsn), confirmed_lsn=0)
        # What the replica has does not reach the log: it needs a copy, and its slot says so.
        return self.slots.create(name, current_lsn, bootstrapping=True, confirmed_lsn=0)

    def _plan(self, name: str, position_lsn: int | None) -> ResumeMode:
        """How a replica resumes. A slot whose records are gone is invalid from then on."""
        mode = plan_resume(
            self.slots.find(name),
            position_lsn,
            oldest_lsn=self.oldest_lsn(),
            current_lsn=self.wal.current_lsn(),
        )
        if isinstance(mode, FullRebootstrap) and mode.cause is InvalidationCause.WAL_REMOVED:
            self._invalidate(name, mode.cause)
        return mode

    def _has_lost_some(self, slot: Slot, position_lsn: int) -> bool:
        """Whether a replica has less than it acknowledged, and the log still has the rest.

        Its slot is then recreated further back, so that the rest is kept until it is sent.
        """
        return (
            slot.is_valid
            and not slot.bootstrapping
            and self.oldest_lsn() - 1 <= position_lsn < slot.restart_lsn
        )

    def _prunable_lsn(self, floor_lsn: int | None) -> int:
        return self.archived_lsn if floor_lsn is None else min(floor_lsn, self.archived_lsn)

    def _invalidate(self, name: str, cause: InvalidationCause) -> None:
        slot = self.slots.find(name)
        if slot is None or not slot.is_valid:
            return
        self.slots.invalidate(name, cause)
        self._metrics.slots_invalidated[cause.value] += 1
        _log.warning(
            "slot %s is given up (%s) at LSN %s, with the log from %s to %s: its replica must "
            "bootstrap again",
            name,
            cause.value,
            slot.restart_lsn,
            self.oldest_lsn(),
            self.wal.current_lsn(),
        )

    def _lag(self, slot: Slot) -> SlotLag:
        behind_s = self._lag_clock.behind_s(runtime.monotonic_s(), slot.restart_lsn)
        return SlotLag(
            max(0, self.wal.current_lsn() - slot.restart_lsn),
            self.wal.bytes_since(slot.restart_lsn),
            behind_s,
            self.slots.idle_s(slot.name),
        )

    def _kept(self, slot: Slot) -> SlotLag:
        """What the log keeps for this slot alone.

        What is not archived is kept anyway. If it counted, a slow replica of a log that is longer
        than the limits would be given up again and again, and no log would be freed.
        """
        behind = self._lag(slot)
        end_lsn = min(self.archived_lsn, self.wal.current_lsn())
        if slot.restart_lsn >= end_lsn:
            return SlotLag(0, 0, 0.0, behind.idle_s)
        return behind._replace(
            lsn=end_lsn - slot.restart_lsn, bytes=behind.bytes - self.wal.bytes_since(end_lsn)
        )
