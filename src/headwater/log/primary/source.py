"""What a replica asks of whoever it replicates from: in this process, or at the end of a wire.

Requests name the replica and its session; answers carry the leader's term, so that a replica can
refuse an older leader. Everything but `Pulled.groups` is plain data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from headwater.core import limits
from headwater.log.record.group import Group
from headwater.log.slots import BootstrapPlan, FullRebootstrap, InvalidationCause, ResumeMode


class Registered(msgspec.Struct, frozen=True):
    """The answer to `register`."""

    term: int
    session: str
    """Goes with every further request to this leader. The next one gives another."""
    resume: ResumeMode
    """How to go on."""
    topology_epoch: int
    restart_lsn: int = 0
    """Where the slot stands: while it is valid, the log above this is kept."""
    confirmed_lsn: int = 0
    """What the slot knows the replica to have applied of this log. What it has beyond is to be
    compared before anything is taken after it."""
    oldest_lsn: int = 1
    """From here on the log can be pulled, also what the replica has already and compares."""
    current_lsn: int = 0
    """Where the log ends at this moment."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """The answer to `pull`: records that follow without a gap, or none for the time being."""

    term: int
    groups: Sequence[Group]
    through_lsn: int
    """Everything through this one was sent, or passed over on purpose: apply, then acknowledge it,
    also where no records came."""
    current_lsn: int
    topology_epoch: int
    rebootstrap: FullRebootstrap | None = None
    """The log cannot be gone on with: load a fresh copy first. No groups then."""


class Acknowledgement(msgspec.Struct, frozen=True):
    """How far a replica has come, and what its present copy met since it was made."""

    applied_lsn: int
    durable_lsn: int
    apply_error_count: int = 0
    divergence_count: int = 0


class Acknowledged(msgspec.Struct, frozen=True):
    """The answer to `acknowledge`."""

    term: int
    restart_lsn: int
    """The log is kept above this one."""
    topology_epoch: int
    invalidation: InvalidationCause | None = None
    """The slot was given up: finish what was pulled, then bootstrap."""


class Bootstrap(msgspec.Struct, frozen=True):
    """The answer to `begin_bootstrap`."""

    term: int
    plan: BootstrapPlan


class ReplicationSource(Protocol):
    """Where a replica gets the log from.

    All raise `NotFound` if the replica has to register (again), as when the leader has changed,
    `Fenced` if its name was registered by another since, or if a newer leader took over, and
    `Unavailable` if later may work. Who was registered says its session with every request:
    without it, that is `Refused`.
    """

    async def register(
        self, name: str, position_lsn: int, *, region: str | None = None
    ) -> Registered:
        """Come, or come back, with everything through `position_lsn`; 0 is nothing at all.

        The slot is stored when this returns: the log is kept for it, whoever leads.
        """

    async def pull(
        self,
        name: str,
        since_lsn: int,
        *,
        session: str | None = None,
        max_records: int = limits.PULL_MAX_RECORDS,
        max_bytes: int = limits.PULL_MAX_BYTES,
        wait_s: float = 0.0,
    ) -> Pulled:
        """What follows `since_lsn`; where nothing does, wait for it for a while.

        Without a session the replica is registered by its first pull.
        """

    async def acknowledge(
        self, name: str, progress: Acknowledgement, *, session: str | None = None
    ) -> Acknowledged:
        """Say how far the replica has come."""

    async def begin_bootstrap(
        self, name: str, *, image_lsn: int | None = None, session: str | None = None
    ) -> Bootstrap:
        """Plan a fresh copy; the log after the image is kept when this returns.

        `Refused` says why there is nothing to begin from.
        """

    async def complete_bootstrap(
        self, name: str, lsn: int, *, session: str | None = None
    ) -> Acknowledged:
        """The fresh copy holds everything through this LSN, on disk, in place of the old one."""

    async def unregister(self, name: str, *, session: str | None = None) -> None:
        """Leave; the slot stays for when the replica comes again."""
