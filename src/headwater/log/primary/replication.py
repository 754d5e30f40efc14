"""The leader's side of replication: its replicas, their progress, what the log is kept for.

    replication = await PrimaryReplication.open(wal, register, leader_epoch=7)
    replication.start()
    await replication.wait_committed(lsn)              # after a write, as the policy says
    await replication.prune_retained_wal_through(tiered_lsn)
    await replication.close()

Methods that change state are synchronous and use neither store nor disk; methods that wait are
coroutines. Replicas connect through `PrimaryService`.

Always holds: a replica counts towards a commit only with what it acknowledged since it registered;
every waiting writer gets an answer; nothing that a valid slot needs is pruned (see
`log_retention`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Self

from headwater.buffer.layout import check_group_name
from headwater.core import runtime
from headwater.core.errors import Fenced, HeadwaterError, Refused, Unavailable
from headwater.core.limits import LSN_MAX
from headwater.core.settings import whole_number
from headwater.log.primary.commits import Commits, Committed
from headwater.log.primary.config import CommitPolicy, ReplicationConfig, ReplicationMetrics
from headwater.log.primary.log_retention import LogRetention, SlotView
from headwater.log.primary.registry import (
    Registration,
    ReplicaRegistry,
    ReplicaState,
    ReplicationProgress,
)
from headwater.log.slots import (
    BootstrapPlan,
    InvalidationCause,
    ResumeMode,
    Slot,
    SlotRegister,
    SlotWriter,
)
from headwater.log.wal import Wal


def check_position(what: str, given: int) -> int:
    """A position in the log, or a count; `Refused` if it is not a whole number from 0 on.

    Slots are stored as one value: a number that cannot be stored would keep the slots of all other
    replicas from being stored, and so the log from being pruned.
    """
    return whole_number(what, given, at_least=0, at_most=LSN_MAX)


_log: Final = logging.getLogger("headwater")


class PrimaryReplication:
    """Replicas, slots and commits of one partition's leader. For one event loop."""

    def __init__(
        self, wal: Wal, slot_writer: SlotWriter, config: ReplicationConfig | None = None
    ) -> None:
        """Use `PrimaryReplication.open`."""
        self.config = config or ReplicationConfig()
        self.metrics = ReplicationMetrics()
        self.wal = wal
        self.retention = LogRetention(wal, slot_writer, self.config.retention, self.metrics)
        self._slot_writer = slot_writer
        self._slots = slot_writer.slots
        self._registry = ReplicaRegistry(self._slots.leader_epoch)
        self.commits = Commits(wal, self._registry, self._slots, self.config, self.metrics)
        self._sweeping: asyncio.Task[None] | None = None
        self._is_closed = False
        slot_writer.on_dropped = self._dropped_elsewhere
        slot_writer.on_failure = self.commits.fail

    @classmethod
    async def open(
        cls,
        wal: Wal,
        register: SlotRegister,
        *,
        leader_epoch: int,
        config: ReplicationConfig | None = None,
        must_exist: bool | None = None,
    ) -> Self:
        """Take the slots over under this leader's epoch.

        `Fenced` if a later leader has, `Refused` for an epoch that is not a valid term or is too
        far ahead. Slots that cannot be read raise, and nothing is pruned, since it is not known
        what replicas need. So does a missing table where the log holds, or held, records. For a log
        that never had a leader pass `must_exist=False`, or open its slots before its first record
        is written.
        """
        chosen = config or ReplicationConfig()
        if must_exist is None:
            must_exist = wal.current_lsn() > 0
        slot_writer = await SlotWriter.open(
            register,
            leader_epoch=leader_epoch,
            must_exist=must_exist,
            write_interval_s=chosen.slot_write_interval_s,
        )
        made = cls(wal, slot_writer, chosen)
        made.retention.lower_slots_to_log_end()
        # Before anything is written above them: a later leader, whose log has other records there,
        # would trust the slots.
        await slot_writer.settle()
        return made

    def start(self) -> None:
        """Write slots and sweep replicas, every few seconds, until `close`."""
        self._slot_writer.start()
        if self._sweeping is None:
            self._sweeping = runtime.spawn(self._run_sweeps(), name="headwater-replicas")

    async def __aenter__(self) -> Self:
        """Started; the block's end closes it."""
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """See `close`."""
        await self.close()

    async def close(self) -> None:
        """End all waiting writers, store the slots, and stop."""
        self._is_closed = True
        self.commits.stop()
        sweeping, self._sweeping = self._sweeping, None
        if sweeping is not None:
            sweeping.cancel()
            await asyncio.wait((sweeping,))
        await self._slot_writer.close()

    @property
    def term(self) -> int:
        """The leader's epoch."""
        return self._slots.leader_epoch

    def check_leading(self) -> None:
        """Raise `Fenced` once a newer leader is known, and `Unavailable` once closed: slots are no
        longer stored then."""
        if isinstance(self._slot_writer.failure, Fenced):
            self._slot_writer.check()
        if self._is_closed:
            raise Unavailable("this leader was closed: ask the next one")

    # Who replicates

    @property
    def topology_epoch(self) -> int:
        """Rises whenever the set of replicas, their health or their bootstraps change."""
        return self._registry.topology_epoch

    def replicas(self) -> list[ReplicaState]:
        """All registered replicas."""
        return self._registry.replicas()

    def replica(self, name: str, *, session: str | None = None) -> ReplicaState:
        """One replica; `NotFound`, or `Fenced` if the name was registered again since."""
        return self._registry.get(name, session=session)

    def progress(self) -> ReplicationProgress | None:
        """The progress of all replicas together; None if there are none."""
        return ReplicationProgress.from_replicas(self._registry.replicas())

    def register_replica(
        self,
        name: str,
        *,
        region: str | None = None,
        position_lsn: int | None = None,
        by_pull: bool = False,
    ) -> Registration:
        """Register a replica, or register it again with what it acknowledged.

        `position_lsn` is the last record that it has, and the position of a new slot. Without it a
        new slot is at the end of the log, for a copy that is about to be made.
        """
        self.check_leading()
        check_group_name(name)
        if position_lsn is not None:
            position_lsn = check_position("position_lsn", position_lsn)
        slot = self.retention.hold(name, position_lsn)
        state = self._registry.register(
            name,
            region=region,
            sent_lsn=min(max(slot.restart_lsn, position_lsn or 0), self.wal.current_lsn()),
            position_lsn=position_lsn,
            by_pull=by_pull,
        )
        self._evaluate()
        return Registration(state.session, slot.restart_lsn, slot.confirmed_lsn)

    def ensure_replica_registered(self, name: str, *, position_lsn: int | None = None) -> bool:
        """Register a replica that only pulls, the first time it does; whether this was it."""
        if name in self._registry:
            return False
        self.register_replica(name, position_lsn=position_lsn, by_pull=True)
        return True

    def unregister_replica(self, name: str) -> bool:
        """Remove a replica until it registers again; its slot stays, and keeps the log."""
        left = self._registry.unregister(name)
        if left:
            self._evaluate()
        return left

    def set_replica_rebootstrapping(self, name: str, rebootstrapping: bool) -> bool:
        """Whether it loads a fresh copy, so that readers who must see their writes go elsewhere."""
        known = self._registry.set_rebootstrapping(name, rebootstrapping)
        self._evaluate()
        return known

    def note_replica_pull(self, name: str, last_sent_lsn: int) -> None:
        """A replica was sent records through this one."""
        self._registry.note_pull(name, last_sent_lsn)
        if self._slots.find(name) is not None:
            self._slots.touch(name)

    def acknowledge(
        self,
        name: str,
        *,
        applied_lsn: int,
        durable_lsn: int,
        apply_error_count: int = 0,
        divergence_count: int = 0,
    ) -> ReplicaState:
        """Note the progress of a replica. Numbers only rise; an older message changes nothing.

        `Refused` beyond what it can have: it would count for records that are not written yet.
        """
        applied_lsn = check_position("applied_lsn", applied_lsn)
        durable_lsn = check_position("durable_lsn", durable_lsn)
        apply_error_count = check_position("apply_error_count", apply_error_count)
        divergence_count = check_position("divergence_count", divergence_count)
        self.check_known(name, max(applied_lsn, durable_lsn))
        state = self._registry.acknowledge(
            name,
            applied_lsn=applied_lsn,
            durable_lsn=durable_lsn,
            apply_error_count=apply_error_count,
            divergence_count=divergence_count,
        )
        if self._slots.find(name) is not None:
            self._slots.advance(name, applied_lsn=applied_lsn, durable_lsn=durable_lsn)
        self.metrics.acknowledgements += 1
        self._evaluate()
        return state

    def check_known(self, name: str, lsn: int) -> None:
        """Refuse a position beyond what is in the log or was sent.

        Also if the replica registered with it: a log that ends below it may get other records there
        than the replica has.
        """
        known_lsn = max(self._registry.get(name).last_sent_lsn, self.wal.current_lsn())
        if lsn > known_lsn:
            raise Refused(
                f"replica {name!r} is at LSN {lsn}, and the log ends at {known_lsn}: it is not a "
                "copy of this log, unless the log gets there and it is compared"
            )

    def sweep(self) -> None:
        """Update the health of replicas, and give up slots beyond their limits."""
        for state in self._registry.sweep(self.config.health_timeout_s):
            self.metrics.health_flips["healthy" if state.healthy else "unhealthy"] += 1
        self.enforce_retention_limits()
        self._evaluate()

    # What the log is kept for

    def slots(self) -> list[Slot]:
        """The slots as they are at this moment."""
        return self._slots.all()

    def slot(self, name: str) -> Slot:
        """The slot of this name; `NotFound` if its replica has to register."""
        return self._slots.get(name)

    def slot_views(self) -> list[SlotView]:
        """The slots with their status, lag, and how long they are unused."""
        healthy = {one.name for one in self._registry.replicas() if one.healthy}
        return [
            self.retention.view(slot, is_active=slot.name in healthy) for slot in self._slots.all()
        ]

    def enforce_retention_limits(self) -> list[tuple[str, InvalidationCause]]:
        """Give up slots that are beyond a limit; which, and why."""
        return self.retention.enforce_limits()

    async def prune_retained_wal_through(self, archived_lsn: int) -> int:
        """Prune what is archived elsewhere and no slot needs; the LSN through which it went.

        If slots cannot be stored it is pruned only as far as what is stored allows. A newer
        leader, or damaged slots, raise, and nothing is pruned.
        """
        return await self.retention.prune_through(check_position("archived_lsn", archived_lsn))

    def slot_rebootstrap_reason(
        self, name: str, position_lsn: int | None = None
    ) -> InvalidationCause | None:
        """Why a replica cannot resume from here; None if it can. Marks a lost slot as invalid."""
        return self.retention.rebootstrap_reason(name, position_lsn)

    def plan_replica_resume(self, name: str, position_lsn: int | None = None) -> ResumeMode:
        """How a replica resumes; counted in the metrics."""
        return self.retention.plan_resume(name, position_lsn)

    def begin_rebootstrap(self, name: str, *, image_lsn: int | None = None) -> BootstrapPlan:
        """Plan a fresh copy from an image of everything through `image_lsn`, or from the log alone.

        The log after it is kept from here on. `Refused` says why there is nothing to begin from.
        """
        self.check_leading()
        self._registry.get(name)
        if image_lsn is not None:
            image_lsn = check_position("image_lsn", image_lsn)
        plan = self.retention.begin_bootstrap(name, image_lsn)
        self.set_replica_rebootstrapping(name, True)
        return plan

    def complete_rebootstrap(self, name: str, lsn: int) -> Slot:
        """The fresh copy is there, through this LSN and on disk: its slot is valid again."""
        self.check_leading()
        lsn = check_position("lsn", lsn)
        self.check_known(name, lsn)
        slot = self.retention.complete_bootstrap(name, lsn)
        self._registry.renew(name, lsn)
        self.metrics.slots_renewed += 1
        self._evaluate()
        return slot

    def drop_slot(self, name: str) -> bool:
        """Drop a slot and its replica; whether there was one. It frees the log once stored."""
        self._registry.unregister(name)
        dropped = self._slots.drop(name)
        self.metrics.slots_dropped += dropped
        self._evaluate()
        return dropped

    async def settle_slots(self) -> None:
        """Return once the slots, as they are now, would survive this leader."""
        await self._slot_writer.settle()

    # Commits

    def replicated_lsn(self, policy: CommitPolicy | None = None) -> int:
        """The last record that is replicated as the policy says."""
        return self.commits.replicated_lsn(policy)

    async def wait_committed(
        self, lsn: int, *, policy: CommitPolicy | None = None, timeout_s: float | None = None
    ) -> Committed:
        """Wait until a record that is in the log is replicated; see `Commits.wait_committed`."""
        return await self.commits.wait_committed(lsn, policy=policy, timeout_s=timeout_s)

    async def admit(self) -> float:
        """Delay a writer if replicas are far behind; returns for how long.

        `Fenced` once a newer leader is known.
        """
        self.check_leading()
        return await self.commits.admit()

    # Inside

    def _evaluate(self) -> None:
        self.commits.evaluate()

    def _dropped_elsewhere(self, names: list[str]) -> None:
        for name in names:
            self.metrics.slots_dropped += 1
            self.unregister_replica(name)

    async def _run_sweeps(self) -> None:
        while True:
            await runtime.sleep(self.config.sweep_interval_s)
            # If the sweeps ended after an error, a dead slot would hold the log without end.
            try:
                self.sweep()
            except HeadwaterError:
                self.metrics.sweeps_failed += 1
            except Exception:
                self.metrics.sweeps_failed += 1
                _log.exception("a sweep of replicas and slots failed, and is tried again")
