"""A slot as people look at it."""

from __future__ import annotations

import msgspec

from headwater.log.slots import (
    InvalidationCause,
    RetentionLimits,
    Slot,
    SlotLag,
    SlotStatus,
    slot_status,
)


class SlotView(msgspec.Struct, frozen=True):
    """What one slot holds, and for whom."""

    name: str
    status: SlotStatus
    restart_lsn: int
    confirmed_lsn: int
    lag_lsn: int
    """Records that its replica does not have on disk; while it bootstraps, all that its copy is to
    be given, also what is no longer in the log."""
    lag_bytes: int
    lag_s: float
    inactive_since_ms: int | None
    """When its replica was last heard of, if it is away; None while it is there."""
    bootstrapping: bool
    cause: InvalidationCause | None
    """Why it was given up."""


def slot_view(
    slot: Slot,
    lag: SlotLag,
    held: SlotLag,
    bounds: RetentionLimits,
    *,
    oldest_lsn: int,
    archived_lsn: int,
    is_active: bool,
) -> SlotView:
    """The view of a slot at this moment: what its replica lacks, and what is held for it alone."""
    not_in_log = slot.restart_lsn - slot.confirmed_lsn if slot.bootstrapping else 0
    return SlotView(
        slot.name,
        slot_status(slot, held, bounds, oldest_lsn=oldest_lsn, archived_lsn=archived_lsn),
        slot.restart_lsn,
        slot.confirmed_lsn,
        lag.lsn + max(0, not_in_log),
        lag.bytes,
        lag.seconds,
        None if is_active else slot.last_seen_ms,
        slot.bootstrapping,
        None if slot.invalidation is None else slot.invalidation.cause,
    )
