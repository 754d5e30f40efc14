"""The log as replication uses it: positions, groups of records, and a floor.

The spool implements it on a local disk; anything else that implements it can be replicated too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headwater.log.record.group import Group


@dataclass(frozen=True, slots=True)
class Pruned:
    """The result of pruning."""

    floor_lsn: int
    """LSNs at or below can no longer be read."""
    segments: int
    """Whole segments that were dropped."""
    size_bytes: int


class SealedRange(NamedTuple):
    """A sealed part of a log."""

    first_lsn: int
    last_lsn: int
    size_bytes: int


class Wal(Protocol):
    """A dense, append-only log of records, numbered by LSN."""

    def oldest_lsn(self) -> int:
        """The first LSN that can be read; in an empty log, the next one to be written.

        So a position resumes without a gap exactly when `position + 1 >= oldest_lsn()`, whether
        the log is empty, was pruned wholly, or lost its disk and began again above LSN 1.
        """

    def current_lsn(self) -> int:
        """The last LSN that readers may see; one below the next. 0 before LSN 1 is written.

        A log that was pruned wholly still knows it, also when it is opened again.
        """

    @property
    def synced_lsn(self) -> int:
        """Through here the log has it after a power loss, too; at most `current_lsn()`."""

    async def sync(self) -> None:
        """Return once what is in the log at this moment is synced."""

    def bytes_since(self, lsn: int) -> int:
        """Bytes of log after `lsn`, to within one step of the index; cheap, for lag."""

    async def read_since(self, lsn: int, *, max_records: int, max_bytes: int) -> Sequence[Group]:
        """Groups with LSNs above `lsn`, in order and without gaps, from the oldest that is kept.

        The first group begins at `max(lsn + 1, oldest_lsn())`, cut inside a frame if needed: a
        caller that must not skip records compares its `first_lsn`. Together they hold at most
        `max_records` LSNs and about `max_bytes`, but always at least one record where there is one.
        Several readers share the memory of what they read.
        """

    async def prune_through(self, lsn: int) -> Pruned:
        """Move the floor up to `lsn`, durably, then drop the segments that lie wholly below it.

        A floor never goes down, and never above what was written: both are left as they are.
        """

    async def wait_for_lsn_after(self, lsn: int, *, timeout_s: float | None = None) -> int:
        """Return `current_lsn()` as soon as it is above `lsn`, or what it is after `timeout_s`."""
