"""How a replica that comes back goes on: from where it was, or from a fresh bootstrap.

Two positions count: the slot's, which the log is kept for, and the replica's own, which is what it
has. They differ when a replica went on after its last acknowledgement was stored, and when it lost
data that it had acknowledged; so its own decides what it is sent.
"""

from __future__ import annotations

import msgspec

from headwater.log.slots.slot import InvalidationCause, Slot


class PartialResync(msgspec.Struct, frozen=True, tag="partial"):
    """The log still has what follows: go on after `resume_lsn`."""

    resume_lsn: int
    """Where the replica is, or the end of the log where that is lower: what the replica has beyond
    it may turn out to be other records than those that come."""


class FullRebootstrap(msgspec.Struct, frozen=True, tag="rebootstrap"):
    """Load a fresh copy first."""

    cause: InvalidationCause


ResumeMode = PartialResync | FullRebootstrap


def plan_resume(
    slot: Slot | None, position_lsn: int | None, *, oldest_lsn: int, current_lsn: int
) -> ResumeMode:
    """Decide how a replica goes on.

    `position_lsn` is the last record that the replica has; None for "wherever my slot is".
    `oldest_lsn` is the first record that can be read. An empty log has one, too: the record that
    will come next. Were an empty log no reason to bootstrap, a replica at 500 would go on silently
    at 1,001 after the leader lost its disk. And none is told to go on beyond `current_lsn`, the
    end of the log: a leader that lost its last records would go on over the replica's.
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
    """Whether a log that begins at `oldest_lsn` can go on after a copy that ends at `lsn`.

    It has the copy's last record, to compare it with. Or it has the very next one, and the slot
    knows the copy to be acknowledged that far: an earlier leader's log was compared with it then.
    """
    return oldest_lsn <= lsn or (oldest_lsn == lsn + 1 and confirmed_lsn >= lsn)


class BootstrapPlan(msgspec.Struct, frozen=True):
    """Where a bootstrap begins; the log from there on is kept until it is done."""

    after_lsn: int
    """Everything through this one comes from the image, the rest from the log; 0: all of it."""
    current_lsn: int


class NoBootstrap(msgspec.Struct, frozen=True):
    """Nothing to begin from."""

    why: str


def plan_bootstrap(
    image_lsn: int | None, *, oldest_lsn: int, current_lsn: int
) -> BootstrapPlan | NoBootstrap:
    """Where a replica with this image of everything through `image_lsn`, or with none, begins."""
    if image_lsn is not None and image_lsn > current_lsn:
        return NoBootstrap(
            f"the log ends at LSN {current_lsn}, and what it would begin from at {image_lsn}: it "
            "waits until the log is there, and compares"
        )
    if image_lsn is not None and oldest_lsn <= image_lsn + 1:
        return BootstrapPlan(image_lsn, current_lsn)
    if oldest_lsn <= 1:
        return BootstrapPlan(0, current_lsn)
    if image_lsn is None:
        return NoBootstrap(
            f"the log begins at LSN {oldest_lsn}, and without an image of what came before it "
            "nothing complete can be made"
        )
    return NoBootstrap(
        f"the log begins at LSN {oldest_lsn}, and the image ends at {image_lsn}: records "
        f"{image_lsn + 1} to {oldest_lsn - 1} are in neither. It is tried again: a keyed replica "
        "that is further on writes a newer one, and a tier goes on"
    )
