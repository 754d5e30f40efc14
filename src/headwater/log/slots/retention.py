"""How much log slots may hold, and when one is given up. Nothing here asks a clock or a store.

Always holds: the log above the floor is kept; a slot for which more is kept than a limit allows is
given up, so that a dead replica holds no more. What would be kept without a slot costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import NamedTuple

from headwater.core import limits
from headwater.core.errors import Refused
from headwater.log.slots.slot import InvalidationCause, Slot, SlotStatus


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """Beyond any of these a slot is given up. None is no limit.

    Counted is what the log keeps for the slot alone: what is archived elsewhere.
    """

    max_lag_lsn: int | None = limits.SLOT_MAX_LAG_LSN
    """Archived records that the log keeps for one slot."""
    max_lag_bytes: int | None = limits.SLOT_MAX_LAG_BYTES
    max_lag_s: float | None = limits.SLOT_MAX_LAG_S
    """For how long the first record that a slot still needs has been in the log, if it is kept
    for the slot alone."""
    idle_timeout_s: float | None = limits.SLOT_IDLE_TIMEOUT_S
    """For how long nothing was heard of the replica. A new leader counts from its own start."""

    def __post_init__(self) -> None:
        for field in fields(self):
            given = getattr(self, field.name)
            if given is not None and not given > 0:
                raise Refused(
                    f"{field.name} is {given}: it must be above 0, or None for no such limit"
                )


class SlotLag(NamedTuple):
    """How far a slot is behind, or what of that is kept for it alone, and for how long its replica
    has been silent."""

    lsn: int
    bytes: int
    seconds: float
    idle_s: float


def breach(held: SlotLag, bounds: RetentionLimits) -> InvalidationCause | None:
    """The cause for which a slot that holds so much is given up; None if it is within limits."""
    if (
        _above(held.lsn, bounds.max_lag_lsn)
        or _above(held.bytes, bounds.max_lag_bytes)
        or _above(held.seconds, bounds.max_lag_s)
    ):
        return InvalidationCause.HORIZON
    if _above(held.idle_s, bounds.idle_timeout_s):
        return InvalidationCause.IDLE_TIMEOUT
    return None


def retention_floor(slots: Iterable[Slot]) -> int | None:
    """The log is kept above this LSN; None where no slot asks for anything."""
    return min((slot.floor_lsn for slot in slots if slot.is_valid), default=None)


def slot_status(
    slot: Slot, held: SlotLag, bounds: RetentionLimits, *, oldest_lsn: int, archived_lsn: int
) -> SlotStatus:
    """What becomes of the log that a slot needs.

    `oldest_lsn` is the first that can be read, `archived_lsn` the last that nobody but slots needs.
    """
    if not slot.is_valid or oldest_lsn > slot.restart_lsn + 1:
        return SlotStatus.LOST
    if breach(held, bounds) is not None:
        return SlotStatus.UNRESERVED
    if slot.restart_lsn < archived_lsn:
        return SlotStatus.EXTENDED
    return SlotStatus.RESERVED


def _above(measured: float, limit: float | None) -> bool:
    return limit is not None and measured > limit
