"""The leader's door for replicas, in this process. The node puts HTTP in front of it.

Always holds:

- what is sent follows what was asked for without a gap, also if the log is pruned meanwhile;
- what is sent is synced: were it not, a replica could have what this leader loses with its power,
  and other records would come after it under the same LSNs;
- nobody goes on beyond the end of the log: what a longer copy has there is to be compared first;
- a replica that waits for records is never taken for a silent one: a pull waits for half of the
  time after which it would be;
- whoever was told that its slot is there finds it at the next leader, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.buffer.whole_number import whole_number
from headwater.core import limits
from headwater.core.errors import Refused
from headwater.log.primary.position import position
from headwater.log.primary.replication import PrimaryReplication
from headwater.log.primary.source import (
    Acknowledged,
    Acknowledgement,
    Bootstrap,
    Pulled,
    Registered,
)
from headwater.log.record.group import Group
from headwater.log.slots import FullRebootstrap, Slot


class PrimaryService:
    """A `ReplicationSource` over the leader's own log."""

    def __init__(self, primary: PrimaryReplication) -> None:
        self._primary = primary

    async def register(
        self, name: str, position_lsn: int, *, region: str | None = None
    ) -> Registered:
        """See `ReplicationSource`."""
        primary = self._primary
        position_lsn = position("position_lsn", position_lsn)
        registration = primary.register_replica(name, region=region, position_lsn=position_lsn)
        resume = primary.plan_replica_resume(name, position_lsn)
        await primary.settle_slots()
        # The name may have been registered again, or dropped, while this was stored.
        primary.replica(name, session=registration.session)
        # Nor is the slot safe until it is stored: it may have been given up, and the log pruned.
        cause = primary.slot_rebootstrap_reason(name, position_lsn)
        if cause is not None:
            resume = FullRebootstrap(cause)
        return Registered(
            primary.term,
            registration.session,
            resume,
            primary.topology_epoch,
            registration.restart_lsn,
            registration.confirmed_lsn,
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
    ) -> Pulled:
        """See `ReplicationSource`."""
        primary = self._primary
        primary.check_leading()
        since_lsn = position("since_lsn", since_lsn)
        max_records = whole_number("max_records", max_records)
        max_bytes = whole_number("max_bytes", max_bytes)
        if max_records < 1 or max_bytes < 1:
            raise Refused("a pull asks for one record and one byte at least")
        if session is None and primary.ensure_replica_registered(name, position_lsn=since_lsn):
            await primary.settle_slots()
            resume = primary.plan_replica_resume(name, since_lsn)
            if isinstance(resume, FullRebootstrap):
                return self._cannot(since_lsn, resume)
        session = self._registered(name, session)
        primary.check_known(name, since_lsn)
        refusal = primary.retention.pull_refusal(name, since_lsn)
        if refusal is not None:
            return self._cannot(since_lsn, refusal)
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
        primary.replica(name, session=session)
        # Nothing to send may mean that it was pruned to its end meanwhile.
        if (groups[0].first_lsn if groups else primary.wal.oldest_lsn()) > since_lsn + 1:
            return self._cannot(since_lsn, primary.retention.pruned_before(name, since_lsn))
        through_lsn = groups[-1].last_lsn if groups else since_lsn
        primary.note_replica_pull(name, through_lsn)
        primary.metrics.pulls += 1
        primary.metrics.records_sent += through_lsn - since_lsn
        return Pulled(
            primary.term,
            groups,
            through_lsn,
            primary.wal.current_lsn(),
            primary.topology_epoch,
        )

    async def acknowledge(
        self, name: str, progress: Acknowledgement, *, session: str | None = None
    ) -> Acknowledged:
        """See `ReplicationSource`."""
        self._primary.check_leading()
        self._registered(name, session)
        self._primary.acknowledge(
            name,
            applied_lsn=progress.applied_lsn,
            durable_lsn=progress.durable_lsn,
            apply_error_count=progress.apply_error_count,
            divergence_count=progress.divergence_count,
        )
        return self._acknowledged(self._primary.slot(name))

    async def begin_bootstrap(
        self, name: str, *, image_lsn: int | None = None, session: str | None = None
    ) -> Bootstrap:
        """See `ReplicationSource`."""
        session = self._registered(name, session)
        plan = self._primary.begin_rebootstrap(name, image_lsn=image_lsn)
        await self._primary.settle_slots()
        self._primary.replica(name, session=session)
        return Bootstrap(self._primary.term, plan)

    async def complete_bootstrap(
        self, name: str, lsn: int, *, session: str | None = None
    ) -> Acknowledged:
        """See `ReplicationSource`."""
        session = self._registered(name, session)
        slot = self._primary.complete_rebootstrap(name, lsn)
        await self._primary.settle_slots()
        self._primary.replica(name, session=session)
        return self._acknowledged(slot)

    async def unregister(self, name: str, *, session: str | None = None) -> None:
        """See `ReplicationSource`."""
        self._registered(name, session)
        self._primary.unregister_replica(name)

    def _registered(self, name: str, session: str | None) -> str:
        """Check the session of a request, and return it. Only a replica that was registered by its
        pull has none."""
        state = self._primary.replica(name, session=session)
        if session is None and state.session:
            raise Refused(
                f"replica {name!r} is registered with a session: say it with every request, or "
                "register again. Another process may have the name"
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

    def _cannot(self, since_lsn: int, rebootstrap: FullRebootstrap) -> Pulled:
        primary = self._primary
        return Pulled(
            primary.term,
            (),
            since_lsn,
            primary.wal.current_lsn(),
            primary.topology_epoch,
            rebootstrap,
        )

    def _acknowledged(self, slot: Slot) -> Acknowledged:
        cause = None if slot.invalidation is None else slot.invalidation.cause
        return Acknowledged(
            self._primary.term, slot.restart_lsn, self._primary.topology_epoch, cause
        )
