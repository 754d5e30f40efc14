"""A manager as people look at it."""

from __future__ import annotations

import msgspec


class PartitionStatus(msgspec.Struct, frozen=True):
    """One metadata partition."""

    partition: int
    is_assigned: bool
    is_ready: bool
    first_offset: int
    """Where the log began when it was followed from its beginning; above 0, earlier events are
    gone, and segments that only they told of are not known."""
    next_offset: int
    """All events below it are applied."""
    high_water_mark: int | None
    """Up to where it has to be applied before it is ready; None while that is not known."""
    saved_offset: int
    """All events below it are in the snapshot."""
    segments: int
    problem: str | None
    """Why it is followed no further, or what is being tried again."""


class ManagerStatus(msgspec.Struct, frozen=True):
    """Everything at a glance."""

    partitions: tuple[PartitionStatus, ...]
    """Those that are or were followed, in order."""
    problem: str | None
    """What is wrong with the subscription as a whole, or with the snapshots."""
