"""The leader's side of replication: its replicas, their progress, what the log is kept for.

    replication = await PrimaryReplication.open(wal, register, leader_epoch=7)
    replication.start()
    await replication.wait_committed(lsn)              # after a write, as the policy says
    await replication.prune_retained_wal_through(tiered_lsn)
    await replication.close()

Methods that change state are synchronous and use neither store nor disk; methods that wait are
coroutines. Replicas connect through `PrimaryService`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final, Literal, Self

from msgspec.structs import asdict

from headwater.buffer.layout import check_group_name
from headwater.core import limits, runtime
from headwater.core.errors import Fenced, HeadwaterError, Refused, Unavailable
from headwater.core.limits import LSN_MAX
from headwater.core.settings import check_above_zero, whole_number
from headwater.log.primary.commits import (
    CommitPolicy,
    Committed,
    CommitUnknown,
    CommitWaiter,
    FlowControl,
    Local,
    acknowledged_by,
    check_policy,
)
from headwater.log.primary.log_retention import LogRetention
from headwater.log.primary.registry import (
    Acknowledgement,
    ReplicaRegistry,
    ReplicaState,
    ReplicationMetrics,
    ReplicationProgress,
)
from headwater.log.primary.slot import RetentionLimits, Slot, SlotView
from headwater.log.primary.slot_register import SlotRegister
from headwater.log.primary.slot_writer import SlotWriter
from headwater.log.record.group import Wal

_log: Final = logging.getLogger("headwater")


@dataclass(frozen=True, slots=True)
class ReplicationConfig:
    """Limits, times and the commit policy."""

    retention: RetentionLimits = field(default_factory=RetentionLimits)
    commit_policy: CommitPolicy = field(default_factory=Local)
    commit_timeout_s: float = limits.COMMIT_TIMEOUT_S
    on_commit_timeout: Literal["raise", "continue"] = "raise"
    """`raise` raises `CommitUnknown`; `continue` returns a result that says so. The record is in
    the log either way."""
    health_timeout_s: float = limits.REPLICA_HEALTH_TIMEOUT_S
    """A replica that was silent for so long is unhealthy. A pull waits for half of it at most."""
    sweep_interval_s: float = limits.REPLICA_SWEEP_INTERVAL_S
    slot_write_interval_s: float = limits.SLOT_WRITE_INTERVAL_S
    soft_lag_lsn: int | None = limits.FLOW_SOFT_LAG_LSN
    """Writers are delayed while a healthy replica is further behind; None delays no writer."""
    max_delay_s: float = limits.FLOW_MAX_DELAY_S

    def __post_init__(self) -> None:
        check_above_zero(
            self,
            "commit_timeout_s",
            "health_timeout_s",
            "sweep_interval_s",
            "slot_write_interval_s",
            "max_delay_s",
        )
        if self.sweep_interval_s < limits.REPLICA_SWEEP_MIN_S:
            raise Refused(
                f"sweep_interval_s is {self.sweep_interval_s}: {limits.REPLICA_SWEEP_MIN_S} at "
                "least, or a slot that is beyond a limit would be given up before it is stored, "
                "and its replica could never resume"
            )
        check_policy("commit_policy", self.commit_policy)
        if self.soft_lag_lsn is not None and self.soft_lag_lsn < 1:
            raise Refused(
                f"soft_lag_lsn is {self.soft_lag_lsn}: above 0, or None to delay no writer"
            )
        if self.on_commit_timeout not in ("raise", "continue"):
            raise Refused(f"on_commit_timeout is {self.on_commit_timeout!r}: raise or continue")


def check_position(name: str, value: int) -> int:
    """A position in the log, or a count; `Refused` if it is not a whole number from 0 on.

    Slots are stored as one value: a number that cannot be stored would keep the slots of all other
    replicas from being stored, and so the log from being pruned.
    """
    return whole_number(name, value, at_least=0, at_most=LSN_MAX)


class PrimaryReplication:
    """Replicas, slots and commits of one partition's leader. For one event loop."""

    def __init__(
        self, wal: Wal, slot_writer: SlotWriter, config: ReplicationConfig | None = None
    ) -> None:
        """Use `PrimaryReplication.open`."""
        self.config = config = config or ReplicationConfig()
        self.metrics = ReplicationMetrics().register()
        self.wal = wal
        self.slot_writer = slot_writer
        self.slots = slot_writer.slots
        self.registry = ReplicaRegistry(self.slots.leader_epoch)
        self.retention = LogRetention(wal, slot_writer, config.retention, self.metrics)
        self.commit_waiter = CommitWaiter(self.replicated_lsn)
        self._flow_control = FlowControl(
            self._flow_lag_lsn, soft_lag_lsn=config.soft_lag_lsn, max_delay_s=config.max_delay_s
        )
        self._sweeping: asyncio.Task[None] | None = None
        self._is_closed = False
        slot_writer.on_dropped = self._note_dropped
        slot_writer.on_failure = self._fail

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
        """Open the slots under this leader's epoch.

        `Fenced` if a later leader has opened them; `Refused` if the epoch is not a valid term or is
        too far above the last one. Slots that cannot be read raise, and nothing is pruned, because
        it is unknown what replicas need. So does a missing table if the log holds, or held,
        records. For a log that never had a leader pass `must_exist=False`, or open its slots before
        its first record is written.
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
        await slot_writer.wait_stored()
        return made

    def start(self) -> None:
        self.slot_writer.start()
        if self._sweeping is None:
            self._sweeping = runtime.spawn(self._run_sweeps(), name="headwater-replicas")

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Fail all waiting writers, store the slots, and stop."""
        self._is_closed = True
        self.commit_waiter.end(lambda: CommitUnknown("the leader stops: the record is in its log"))
        sweeping, self._sweeping = self._sweeping, None
        if sweeping is not None:
            sweeping.cancel()
            await asyncio.wait((sweeping,))
        await self.slot_writer.close()

    @property
    def term(self) -> int:
        return self.slots.leader_epoch

    def check_leading(self) -> None:
        """Raise `Fenced` once a newer leader is known, and `Unavailable` once closed: slots are no
        longer stored then."""
        if isinstance(self.slot_writer.failure, Fenced):
            self.slot_writer.check()
        if self._is_closed:
            raise Unavailable("this leader was closed: ask the next one")

    # Replicas

    def progress(self) -> ReplicationProgress | None:
        return ReplicationProgress.from_replicas(self.registry.replicas())

    def register_replica(
        self,
        name: str,
        *,
        region: str | None = None,
        position_lsn: int | None = None,
        by_pull: bool = False,
    ) -> Slot:
        """Register a replica, or register it again with what it acknowledged; returns its slot.

        `position_lsn` is the last record that it has, and the position of a new slot. Without it a
        new slot is at the end of the log, for a copy that is about to begin.
        """
        self.check_leading()
        check_group_name(name)
        if position_lsn is not None:
            position_lsn = check_position("position_lsn", position_lsn)
        slot = self.retention.register(name, position_lsn)
        self.registry.register(
            name,
            region=region,
            sent_lsn=min(max(slot.restart_lsn, position_lsn or 0), self.wal.current_lsn()),
            position_lsn=position_lsn,
            by_pull=by_pull,
        )
        self.evaluate()
        return slot

    def ensure_replica_registered(self, name: str, *, position_lsn: int | None = None) -> bool:
        """Register a replica that only pulls, at its first pull; returns whether it was that."""
        if name in self.registry:
            return False
        self.register_replica(name, position_lsn=position_lsn, by_pull=True)
        return True

    def unregister_replica(self, name: str) -> bool:
        """Remove a replica; its slot stays, and keeps the log."""
        is_removed = self.registry.unregister(name)
        self.evaluate()
        return is_removed

    def set_replica_rebootstrapping(self, name: str, rebootstrapping: bool) -> bool:
        """Record whether the replica loads a fresh copy, so that routers send readers elsewhere."""
        is_registered = self.registry.set_rebootstrapping(name, rebootstrapping)
        self.evaluate()
        return is_registered

    def note_replica_pull(self, name: str, last_sent_lsn: int) -> None:
        self.registry.note_pull(name, last_sent_lsn)
        if self.slots.find(name) is not None:
            self.slots.touch(name)

    def acknowledge(self, name: str, progress: Acknowledgement) -> ReplicaState:
        """Record the progress of a replica. Numbers only rise; an older message changes nothing.

        `Refused` for a position beyond the end of the log: the replica would count for records that
        are not written yet.
        """
        progress = Acknowledgement(
            **{key: check_position(key, value) for key, value in asdict(progress).items()}
        )
        applied_lsn, durable_lsn = progress.applied_lsn, progress.durable_lsn
        self.check_known(name, max(applied_lsn, durable_lsn))
        state = self.registry.acknowledge(name, progress)
        if self.slots.find(name) is not None:
            self.slots.advance(name, applied_lsn=applied_lsn, durable_lsn=durable_lsn)
        self.metrics.acknowledgements += 1
        self.evaluate()
        return state

    def check_known(self, name: str, lsn: int) -> None:
        """Refuse a position beyond what is in the log or was sent.

        Also if the replica registered with that position: if the log ends below it, other records
        may be written there than the replica has.
        """
        end_lsn = max(self.registry.get(name).last_sent_lsn, self.wal.current_lsn())
        if lsn > end_lsn:
            raise Refused(
                f"replica {name!r} is at LSN {lsn}, and the log ends at {end_lsn}: it is not a "
                "copy of this log, unless the log gets there and it is compared"
            )

    def sweep(self) -> None:
        for state in self.registry.sweep(self.config.health_timeout_s):
            self.metrics.health_flips["healthy" if state.healthy else "unhealthy"] += 1
        self.retention.enforce_limits()
        self.evaluate()

    # What the log is kept for

    def slot_views(self) -> list[SlotView]:
        healthy = {one.name for one in self.registry.replicas() if one.healthy}
        return [
            self.retention.view(slot, is_active=slot.name in healthy) for slot in self.slots.all()
        ]

    async def prune_retained_wal_through(self, archived_lsn: int) -> int:
        """Prune records that are archived elsewhere and that no slot needs; returns the new floor.

        If slots cannot be stored, the log is pruned only as far as the stored slots allow. If there
        is a newer leader, or the slots are damaged, this raises and prunes nothing.
        """
        return await self.retention.prune_through(check_position("archived_lsn", archived_lsn))

    def begin_rebootstrap(self, name: str, *, image_lsn: int | None = None) -> int:
        """Begin a fresh copy; returns the LSN after which it takes records from the log.

        That is `image_lsn`, or 0 without an image. The log after it is kept from here on. `Refused`
        says why there is nothing to begin from.
        """
        self.check_leading()
        self.registry.get(name)
        if image_lsn is not None:
            image_lsn = check_position("image_lsn", image_lsn)
        after_lsn = self.retention.begin_bootstrap(name, image_lsn)
        self.set_replica_rebootstrapping(name, True)
        return after_lsn

    def complete_rebootstrap(self, name: str, lsn: int) -> Slot:
        """Complete a fresh copy, which is on disk through this LSN: its slot is valid again."""
        self.check_leading()
        lsn = check_position("lsn", lsn)
        self.check_known(name, lsn)
        slot = self.retention.complete_bootstrap(name, lsn)
        self.registry.renew(name, lsn)
        self.metrics.slots_renewed += 1
        self.evaluate()
        return slot

    def drop_slot(self, name: str) -> bool:
        """Drop a slot and its replica; returns whether there was one.

        The drop frees the log once it is stored.
        """
        self.registry.unregister(name)
        dropped = self.slots.drop(name)
        self.metrics.slots_dropped += dropped
        self.evaluate()
        return dropped

    # Commits

    def replicated_lsn(self, policy: CommitPolicy | None = None) -> int:
        policy = policy or self.config.commit_policy
        return policy.replicated_lsn(self.registry.replicas(), self.wal.current_lsn())

    async def wait_committed(
        self, lsn: int, *, policy: CommitPolicy | None = None, timeout_s: float | None = None
    ) -> Committed:
        """Wait until a record in the log is replicated.

        A time-out raises `CommitUnknown`, or with `on_commit_timeout="continue"` returns a result
        with `is_replicated=False`. The record stays in the log, and replicas get it later. A leader
        that stopped or was overtaken raises `CommitUnknown` under every policy.
        """
        policy = check_policy("policy", policy or self.config.commit_policy)
        timeout_s = self.config.commit_timeout_s if timeout_s is None else timeout_s
        if not timeout_s >= 0:
            raise Refused(f"timeout_s is {timeout_s}: it must be 0 or more")
        if whole_number("lsn", lsn) < 1:
            raise Refused(f"LSN {lsn}: no record has it, because LSNs begin at 1")
        if lsn > self.wal.current_lsn():
            raise Refused(
                f"LSN {lsn} is not in the log, which ends at {self.wal.current_lsn()}: wait for a "
                "record after it was appended"
            )
        began_s = runtime.monotonic_s()
        is_in_time = await self.commit_waiter.wait(lsn, policy, timeout_s=timeout_s)
        waited_s = runtime.monotonic_s() - began_s
        acked = acknowledged_by(self.registry.replicas(), lsn)
        if is_in_time:
            self.metrics.commit_seconds.observe(waited_s)
            return Committed(lsn, True, acked)
        self.metrics.commit_timeouts[str(policy)] += 1
        if self.config.on_commit_timeout == "continue":
            return Committed(lsn, False, acked)
        raise CommitUnknown(
            f"LSN {lsn} is in the log, but {policy} was not met within {waited_s:.1f} s: "
            f"{', '.join(acked) or 'no replica'} has it. It may still be replicated: do not write "
            "it again",
            lsn=lsn,
            policy=str(policy),
            acknowledged_by=tuple(acked),
        )

    async def admit(self) -> float:
        """Delay a writer while replicas are far behind; returns the delay.

        `Fenced` once a newer leader is known.
        """
        self.check_leading()
        delayed_s = await self._flow_control.admit()
        if delayed_s:
            self.metrics.writers_delayed += 1
            self.metrics.writer_delay_seconds.observe(delayed_s)
        return delayed_s

    def evaluate(self) -> None:
        """Wake writers whose policy is met, and end delays, after replicas have changed."""
        self.commit_waiter.evaluate()
        self._flow_control.evaluate()

    def _flow_lag_lsn(self) -> int:
        """The lag of the slowest replica that is healthy, has acknowledged, and is not
        bootstrapping.

        It counts from the slot if that is higher: a replica that is still compared below its slot
        has those records.
        """
        positions = []
        for one in self.registry.replicas():
            if one.healthy and one.is_counted and one.last_acked_lsn:
                slot = self.slots.find(one.name)
                positions.append(max(one.last_acked_lsn, 0 if slot is None else slot.restart_lsn))
        return max(0, self.wal.current_lsn() - min(positions)) if positions else 0

    def _fail(self, failure: HeadwaterError) -> None:
        """The slots can no longer be stored: this leader does not know which replicas count."""
        self.commit_waiter.end(
            lambda: CommitUnknown(
                "the record is in this leader's log; which replicas will have it is not known: "
                f"{failure}"
            )
        )

    def _note_dropped(self, names: list[str]) -> None:
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
