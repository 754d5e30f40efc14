"""A replication slot: how far one replica is, what the log keeps for it, and how it resumes.

Positions of one generation only rise, and an invalidation is final. A slot that is renewed after a
bootstrap, or recreated after it was dropped, is a new generation and may begin lower.

Two positions count when a replica resumes: the slot's, for which the log is kept, and the replica's
own, which is what it has. They differ when a replica went on after its last acknowledgement was
stored, or lost data that it had acknowledged. The replica's own position decides what it is sent.

Nothing here reads a clock or a store.

Always holds: the log above the floor is kept; a slot for which more is kept than a limit allows is
given up. Log that would be kept without a slot does not count against it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from headwater.core import limits
from headwater.core.errors import Refused


class InvalidationCause(StrEnum):
    WAL_REMOVED = "wal-removed"
    """The log no longer has what follows the position."""
    HORIZON = "horizon"
    """The slot fell further behind than its limits allow, in records, bytes or time."""
    IDLE_TIMEOUT = "idle-timeout"
    """The replica was silent for too long."""
    NOT_BOOTSTRAPPED = "not-bootstrapped"
    """The slot keeps the log for a bootstrap that has not been completed."""


class SlotStatus(StrEnum):
    """The state of the log that a slot needs, as PostgreSQL's `wal_status`."""

    RESERVED = "reserved"
    """It is kept, also without the slot."""
    EXTENDED = "extended"
    """It is kept only for the slot."""
    UNRESERVED = "unreserved"
    """A limit is exceeded: the next sweep invalidates the slot, unless it catches up before."""
    LOST = "lost"
    """It is no longer kept: the replica must bootstrap again."""


class Invalidation(msgspec.Struct, frozen=True):
    cause: InvalidationCause
    at_ms: int


class Slot(msgspec.Struct, frozen=True, omit_defaults=True):
    """One slot, as it is stored."""

    name: str
    generation: int
    restart_lsn: int
    """The replica has everything through this one on its own disk: the log is kept above it."""
    confirmed_lsn: int
    """The replica has applied everything through this one of this log, as it acknowledged."""
    created_ms: int
    last_seen_ms: int
    """The last request of the replica, by the clock of the leader that got it."""
    bootstrapping: bool = False
    """The position is where a bootstrap under way will end: nothing can be resumed from it yet."""
    invalidation: Invalidation | None = None

    @property
    def is_valid(self) -> bool:
        """Whether the log is kept for it."""
        return self.invalidation is None

    @property
    def floor_lsn(self) -> int:
        """The log is kept above this one.

        The last record of a copy that was not compared yet is kept as well: without it the copy
        could not be compared, and the replica would have to bootstrap.
        """
        is_compared = self.bootstrapping or self.confirmed_lsn >= self.restart_lsn
        return self.restart_lsn if is_compared else self.restart_lsn - 1

    def advanced(self, *, applied_lsn: int, durable_lsn: int) -> Slot:
        """Moved forward by an acknowledgement.

        An invalid slot does not move, nor one that is kept for a bootstrap: what is acknowledged
        meanwhile may be of the copy that is about to be replaced.
        """
        if not self.is_valid or self.bootstrapping:
            return self
        return msgspec.structs.replace(
            self,
            restart_lsn=max(self.restart_lsn, durable_lsn),
            confirmed_lsn=max(self.confirmed_lsn, applied_lsn, durable_lsn),
        )

    def seen(self, at_ms: int) -> Slot:
        return msgspec.structs.replace(self, last_seen_ms=max(self.last_seen_ms, at_ms))

    def invalidated(self, cause: InvalidationCause, at_ms: int) -> Slot:
        """Invalid for this cause; the first cause stays."""
        if not self.is_valid:
            return self
        return msgspec.structs.replace(self, invalidation=Invalidation(cause, at_ms))

    def bootstrapped(self, lsn: int) -> Slot:
        """With a completed bootstrap that ended here: it can be resumed from."""
        done = msgspec.structs.replace(self, bootstrapping=False)
        return done.advanced(applied_lsn=lsn, durable_lsn=lsn)


LAG_SAMPLES_MAX: Final = 512


class LagClock:
    """Samples of (time, LSN), both rising, to express a lag in records in seconds.

    Of LAG_SAMPLES_MAX samples every second one is dropped, and the spacing doubles. So the result
    is never too high, and too low by one spacing at most.
    """

    def __init__(self) -> None:
        self._spacing_s = 1.0
        self._times_s: list[float] = []
        self._lsns: list[int] = []

    def note(self, now_s: float, current_lsn: int) -> None:
        if self._lsns and (
            current_lsn <= self._lsns[-1] or now_s < self._times_s[-1] + self._spacing_s
        ):
            return
        if len(self._lsns) == LAG_SAMPLES_MAX:
            self._times_s, self._lsns = self._times_s[::2], self._lsns[::2]
            self._spacing_s *= 2
        self._times_s.append(now_s)
        self._lsns.append(current_lsn)

    def behind_s(self, now_s: float, lsn: int) -> float:
        """How long, at least, the log has had records after this LSN."""
        past = bisect.bisect_right(self._lsns, lsn)
        return now_s - self._times_s[past] if past < len(self._lsns) else 0.0


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """Limits of a slot: it is given up when it exceeds one. None is no limit.

    Only log that is kept for this slot alone counts, and so only archived records.
    """

    max_lag_lsn: int | None = limits.SLOT_MAX_LAG_LSN
    """Archived records that the log keeps for one slot."""
    max_lag_bytes: int | None = limits.SLOT_MAX_LAG_BYTES
    max_lag_s: float | None = limits.SLOT_MAX_LAG_S
    """Age in the log of the first record that the slot needs, if it is kept for the slot alone."""
    idle_timeout_s: float | None = limits.SLOT_IDLE_TIMEOUT_S
    """How long the replica may be silent. A new leader counts from its own start."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not value > 0:
                raise Refused(
                    f"{field.name} is {value}: it must be above 0, or None for no such limit"
                )


class SlotLag(NamedTuple):
    """How far a slot is behind, or how much of that is kept only for it, and how long its replica
    has been silent."""

    lsn: int
    bytes: int
    seconds: float
    idle_s: float


def exceeded_limit(kept: SlotLag, bounds: RetentionLimits) -> InvalidationCause | None:
    """The cause for giving up a slot for which this is kept; None if it is within the limits."""
    if (
        _is_above(kept.lsn, bounds.max_lag_lsn)
        or _is_above(kept.bytes, bounds.max_lag_bytes)
        or _is_above(kept.seconds, bounds.max_lag_s)
    ):
        return InvalidationCause.HORIZON
    if _is_above(kept.idle_s, bounds.idle_timeout_s):
        return InvalidationCause.IDLE_TIMEOUT
    return None


def retention_floor(slots: Iterable[Slot]) -> int | None:
    """The log is kept above this LSN; None if no slot needs any of it."""
    return min((slot.floor_lsn for slot in slots if slot.is_valid), default=None)


def slot_status(
    slot: Slot, kept: SlotLag, bounds: RetentionLimits, *, oldest_lsn: int, archived_lsn: int
) -> SlotStatus:
    """The state of the log that a slot needs.

    `oldest_lsn` is the first LSN that can be read, `archived_lsn` the last that only slots need.
    """
    if not slot.is_valid or oldest_lsn > slot.restart_lsn + 1:
        return SlotStatus.LOST
    if exceeded_limit(kept, bounds) is not None:
        return SlotStatus.UNRESERVED
    if slot.restart_lsn < archived_lsn:
        return SlotStatus.EXTENDED
    return SlotStatus.RESERVED


class SlotView(msgspec.Struct, frozen=True):
    """A slot as its leader shows it."""

    name: str
    status: SlotStatus
    restart_lsn: int
    confirmed_lsn: int
    lag_lsn: int
    """Records that its replica does not have on disk; during a bootstrap also those of the copy
    that are no longer in the log."""
    lag_bytes: int
    lag_s: float
    inactive_since_ms: int | None
    """The last request of its replica; None while the replica is healthy."""
    bootstrapping: bool
    cause: InvalidationCause | None
    """Why it was given up."""


def _is_above(measured: float, limit: float | None) -> bool:
    return limit is not None and measured > limit


class PartialResync(msgspec.Struct, frozen=True, tag="partial"):
    """The log has the records after `resume_lsn`: resume from there."""

    resume_lsn: int
    """The replica's position, or the end of the log if that is lower: the replica may have other
    records beyond it than those that the log will have."""


class FullRebootstrap(msgspec.Struct, frozen=True, tag="rebootstrap"):
    """The replica has to load a fresh copy first."""

    cause: InvalidationCause


ResumeMode = PartialResync | FullRebootstrap


def plan_resume(
    slot: Slot | None, position_lsn: int | None, *, oldest_lsn: int, current_lsn: int
) -> ResumeMode:
    """Decide how a replica resumes.

    `position_lsn` is the last record that the replica has; None for the slot's position.
    `oldest_lsn` is the first record that can be read; in an empty log it is the next one. So a
    replica at 500 bootstraps if the leader lost its disk and the log goes on at 1,001. No replica
    resumes beyond `current_lsn`, the end of the log: a leader that lost its last records would
    write others under the LSNs that the replica has.
    """
    if slot is not None and slot.invalidation is not None:
        return FullRebootstrap(slot.invalidation.cause)
    if slot is not None and slot.bootstrapping:
        return FullRebootstrap(InvalidationCause.NOT_BOOTSTRAPPED)
    resume_lsn = position_lsn
    if resume_lsn is None:
        resume_lsn = 0 if slot is None else slot.restart_lsn
    confirmed_lsn = 0 if slot is None else slot.confirmed_lsn
    if not is_comparable(resume_lsn, confirmed_lsn=confirmed_lsn, oldest_lsn=oldest_lsn):
        return FullRebootstrap(InvalidationCause.WAL_REMOVED)
    return PartialResync(min(resume_lsn, current_lsn))


def is_comparable(lsn: int, *, confirmed_lsn: int, oldest_lsn: int) -> bool:
    """Whether a copy that ends at `lsn` can resume from a log that begins at `oldest_lsn`.

    It can if the log has the copy's last record, to compare it. Also if the log has the very next
    one and the copy was acknowledged up to `lsn`: it was compared with an earlier leader's log.
    """
    return oldest_lsn <= lsn or (oldest_lsn == lsn + 1 and confirmed_lsn >= lsn)


def plan_bootstrap(image_lsn: int | None, *, oldest_lsn: int, current_lsn: int) -> int:
    """The LSN after which a fresh copy takes records from the log: that of the image, or 0.

    `Refused` if there is nothing to begin from.
    """
    if image_lsn is not None and image_lsn > current_lsn:
        raise Refused(
            f"the log ends at LSN {current_lsn}, and the image to begin from at {image_lsn}: the "
            "replica waits until the log is there, and compares"
        )
    if image_lsn is not None and oldest_lsn <= image_lsn + 1:
        return image_lsn
    if oldest_lsn <= 1:
        return 0
    if image_lsn is None:
        raise Refused(
            f"the log begins at LSN {oldest_lsn}, and without an image of what came before it "
            "no complete copy can be made"
        )
    raise Refused(
        f"the log begins at LSN {oldest_lsn}, and the image ends at {image_lsn}: records "
        f"{image_lsn + 1} to {oldest_lsn - 1} are in neither. It is tried again: another keyed "
        "replica may write a newer image, and the tier may catch up"
    )
