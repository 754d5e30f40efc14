"""A replica as people look at it."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class ReplicaPhase(StrEnum):
    """What a replica is doing."""

    CONNECTING = "connecting"
    """It is not registered with a leader at this moment."""
    FOLLOWING = "following"
    BOOTSTRAPPING = "bootstrapping"
    """It makes a fresh copy; the old one can be read."""
    DIVERGED = "diverged"
    """It holds other records than the log, and stopped: call `rebootstrap`."""
    STOPPED = "stopped"


class ReplicaStatus(msgspec.Struct, frozen=True):
    """Everything at a glance."""

    name: str
    phase: ReplicaPhase
    term: int
    applied_lsn: int
    durable_lsn: int
    lag_lsn: int
    """Behind the log, as far as it was last heard of."""
    problem: str | None
    """What went wrong last, unless it went on since."""
