"""The interface between replicas and their leader, and its implementation in this process.

Requests name the replica and its session. Answers carry the leader's term, so that a replica can
refuse an older leader. Everything but `PullResponse.groups` is plain data.

Always holds, for `PrimaryService`:

- what is sent follows the requested LSN without a gap, also if the log is pruned meanwhile;
- what is sent is synced: otherwise a replica could have records that this leader loses in a power
  loss, and other records would follow under the same LSNs;
- no replica resumes beyond the end of the log: what a longer copy has there is compared first;
- a replica that waits for records is never taken for a silent one: a pull waits for half of
  `health_timeout_s` at most;
- a slot is stored before its replica gets the answer, so the next leader has it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from headwater.core import limits
from headwater.core.errors import Refused
from headwater.core.settings import whole_number
from headwater.log.primary.registry import Acknowledgement
from headwater.log.primary.replication import PrimaryReplication, check_position
from headwater.log.primary.slot import FullRebootstrap, InvalidationCause, ResumeMode, Slot
from headwater.log.record.group import Group


class RegisterResponse(msgspec.Struct, frozen=True):
    term: int
    session: str
    """Goes with every further request to this leader. The next one gives another."""
    resume: ResumeMode
    """How to resume."""
    topology_epoch: int
    restart_lsn: int = 0
    """The position of the slot: while it is valid, the log above it is kept."""
    confirmed_lsn: int = 0
    """What the replica acknowledged as applied. Records that it has beyond are compared before
    anything is applied after them."""
    oldest_lsn: int = 1
    """The log can be pulled from here on, also records that the replica has and compares."""
    current_lsn: int = 0
    """The current end of the log."""


@dataclass(frozen=True, slots=True)
class PullResponse:
    """The answer to `pull`: records that follow without a gap, or none for the time being."""

    term: int
    groups: Sequence[Group]
    through_lsn: int
    """Everything through this one was sent, or skipped on purpose: apply it, then acknowledge it,
    also if there are no records."""
    current_lsn: int
    topology_epoch: int
    rebootstrap: FullRebootstrap | None = None
    """The replica cannot resume: it has to load a fresh copy first. There are no groups then."""


class AcknowledgeResponse(msgspec.Struct, frozen=True):
    term: int
    restart_lsn: int
    """The log is kept above this one."""
    topology_epoch: int
    invalidation: InvalidationCause | None = None
    """The slot was given up: finish what was pulled, then bootstrap."""


class BootstrapResponse(msgspec.Struct, frozen=True):
    term: int
    after_lsn: int
    """Records through this LSN come from the image, the others from the log; 0: all of them."""
    current_lsn: int


class ReplicationSource(Protocol):
    """The leader, as a replica sees it: the source of its log.

    Every method raises `NotFound` if the replica has to register (again), as after a change of
    leaders; `Fenced` if another process has registered its name since, or a newer leader took over;
    and `Unavailable` if a later attempt may succeed. A registered replica sends its session with
    every request: without it, the request is `Refused`.
    """

    async def register(
        self, name: str, position_lsn: int, *, region: str | None = None
    ) -> RegisterResponse:
        """Register a replica that has everything through `position_lsn`; 0 means nothing.

        The slot is stored when this returns, so later leaders keep the log for it as well.
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
    ) -> PullResponse:
        """The groups after `since_lsn`; if there are none, wait up to `wait_s`.

        Without a session the replica is registered by its first pull.
        """

    async def acknowledge(
        self, name: str, progress: Acknowledgement, *, session: str | None = None
    ) -> AcknowledgeResponse:
        """Acknowledge the progress of the replica."""

    async def begin_bootstrap(
        self, name: str, *, image_lsn: int | None = None, session: str | None = None
    ) -> BootstrapResponse:
        """Plan a fresh copy; the log after the image is kept when this returns.

        `Refused` says why there is nothing to begin from.
        """

    async def complete_bootstrap(
        self, name: str, lsn: int, *, session: str | None = None
    ) -> AcknowledgeResponse:
        """Report that the fresh copy has replaced the old one, and is on disk through this LSN."""

    async def unregister(self, name: str, *, session: str | None = None) -> None:
        """Leave. The slot stays."""


class PrimaryService:
    """A `ReplicationSource` over the leader's own log."""

    def __init__(self, primary: PrimaryReplication) -> None:
        self._primary = primary

    async def register(
        self, name: str, position_lsn: int, *, region: str | None = None
    ) -> RegisterResponse:
        primary = self._primary
        position_lsn = check_position("position_lsn", position_lsn)
        slot = primary.register_replica(name, region=region, position_lsn=position_lsn)
        session = primary.registry.get(name).session
        resume = primary.retention.plan_resume(name, position_lsn)
        await primary.slot_writer.wait_stored()
        # The name may have been registered again, or dropped, while this was stored.
        primary.registry.get(name, session=session)
        # Before it was stored, the slot may have been given up and the log pruned.
        cause = primary.retention.rebootstrap_reason(name, position_lsn)
        if cause is not None:
            resume = FullRebootstrap(cause)
        return RegisterResponse(
            primary.term,
            session,
            resume,
            primary.registry.topology_epoch,
            slot.restart_lsn,
            slot.confirmed_lsn,
            primary.retention.oldest_lsn(),
            primary.wal.current_lsn(),
        )

    async def pull(
        self,
        name: str,
        since_lsn: int,
        *,
        session: str | None = None,
        max_records: int = limits.PULL_MAX_RECORDS,
        max_bytes: int = limits.PULL_MAX_BYTES,
        wait_s: float = 0.0,
    ) -> PullResponse:
        primary = self._primary
        primary.check_leading()
        since_lsn = check_position("since_lsn", since_lsn)
        max_records = whole_number("max_records", max_records, at_least=1)
        max_bytes = whole_number("max_bytes", max_bytes, at_least=1)
        if session is None and primary.ensure_replica_registered(name, position_lsn=since_lsn):
            await primary.slot_writer.wait_stored()
            resume = primary.retention.plan_resume(name, since_lsn)
            if isinstance(resume, FullRebootstrap):
                return self._rebootstrap_response(since_lsn, resume)
        session = self._registered(name, session)
        primary.check_known(name, since_lsn)
        refusal = primary.retention.check_pull(name, since_lsn)
        if refusal is not None:
            return self._rebootstrap_response(since_lsn, refusal)
        primary.note_replica_pull(name, since_lsn)
        await primary.wal.wait_for_lsn_after(
            since_lsn, timeout_s=min(max(0.0, wait_s), primary.config.health_timeout_s / 2)
        )
        groups = await self._read_synced(
            since_lsn,
            max_records=min(max_records, limits.PULL_MAX_RECORDS),
            max_bytes=min(max_bytes, limits.PULL_MAX_BYTES),
        )
        primary.check_leading()
        primary.registry.get(name, session=session)
        # Nothing to send may mean that it was pruned to its end meanwhile.
        if (groups[0].first_lsn if groups else primary.wal.oldest_lsn()) > since_lsn + 1:
            return self._rebootstrap_response(
                since_lsn, primary.retention.invalidate_or_refuse(name, since_lsn)
            )
        through_lsn = groups[-1].last_lsn if groups else since_lsn
        primary.note_replica_pull(name, through_lsn)
        primary.metrics.pulls += 1
        primary.metrics.records_sent += through_lsn - since_lsn
        return PullResponse(
            primary.term,
            groups,
            through_lsn,
            primary.wal.current_lsn(),
            primary.registry.topology_epoch,
        )

    async def acknowledge(
        self, name: str, progress: Acknowledgement, *, session: str | None = None
    ) -> AcknowledgeResponse:
        self._primary.check_leading()
        self._registered(name, session)
        self._primary.acknowledge(name, progress)
        return self._acknowledged(self._primary.slots.get(name))

    async def begin_bootstrap(
        self, name: str, *, image_lsn: int | None = None, session: str | None = None
    ) -> BootstrapResponse:
        session = self._registered(name, session)
        after_lsn = self._primary.begin_rebootstrap(name, image_lsn=image_lsn)
        await self._primary.slot_writer.wait_stored()
        self._primary.registry.get(name, session=session)
        return BootstrapResponse(self._primary.term, after_lsn, self._primary.wal.current_lsn())

    async def complete_bootstrap(
        self, name: str, lsn: int, *, session: str | None = None
    ) -> AcknowledgeResponse:
        session = self._registered(name, session)
        slot = self._primary.complete_rebootstrap(name, lsn)
        await self._primary.slot_writer.wait_stored()
        self._primary.registry.get(name, session=session)
        return self._acknowledged(slot)

    async def unregister(self, name: str, *, session: str | None = None) -> None:
        self._registered(name, session)
        self._primary.unregister_replica(name)

    def _registered(self, name: str, session: str | None) -> str:
        state = self._primary.registry.get(name, session=session)
        if session is None and state.session:
            raise Refused(
                f"replica {name!r} is registered with a session: send it with every request, or "
                "register again. Another process may use the name"
            )
        return state.session

    async def _read_synced(
        self, since_lsn: int, *, max_records: int, max_bytes: int
    ) -> Sequence[Group]:
        wal = self._primary.wal
        if since_lsn < wal.current_lsn() > wal.synced_lsn:
            await wal.sync()
        synced_lsn = wal.synced_lsn
        groups = await wal.read_since(since_lsn, max_records=max_records, max_bytes=max_bytes)
        parts = (group.between(1, synced_lsn) for group in groups)
        return [part for part in parts if part is not None]

    def _rebootstrap_response(self, since_lsn: int, rebootstrap: FullRebootstrap) -> PullResponse:
        primary = self._primary
        return PullResponse(
            primary.term,
            (),
            since_lsn,
            primary.wal.current_lsn(),
            primary.registry.topology_epoch,
            rebootstrap,
        )

    def _acknowledged(self, slot: Slot) -> AcknowledgeResponse:
        cause = None if slot.invalidation is None else slot.invalidation.cause
        return AcknowledgeResponse(
            self._primary.term, slot.restart_lsn, self._primary.registry.topology_epoch, cause
        )
