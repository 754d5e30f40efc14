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
from headwater.buffer.whole_number import whole_number
from headwater.core import runtime
from headwater.core.errors import Fenced, HeadwaterError, Refused, Unavailable
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
    SlotKeeper,
    SlotRegister,
)
from headwater.log.wal import Wal


def check_position(what: str, given: int) -> int:
    """A place in the log, or a count, from 0 on; `Refused` if it is none."""
    number = whole_number(what, given)
    if number < 0:
        raise Refused(f"{what} is {number}: the first LSN is 1, and 0 is before it")
    return number


_log: Final = logging.getLogger("headwater")


class PrimaryReplication:
    """Replicas, slots and commits of one partition's leader. For one event loop."""

    def __init__(
        self, wal: Wal, slots: SlotKeeper, config: ReplicationConfig | None = None
    ) -> None:
        """Use `PrimaryReplication.open`."""
        self.config = config or ReplicationConfig()
        self.metrics = ReplicationMetrics()
        self.wal = wal
        self.retention = LogRetention(wal, slots, self.config.retention, self.metrics)
        self._slots = slots
        self._book = slots.book
        self._registry = ReplicaRegistry(self._book.leader_epoch)
        self.commits = Commits(wal, self._registry, self._book, self.config, self.metrics)
        self._sweeping: asyncio.Task[None] | None = None
        self._is_closed = False
        slots.on_dropped = self._dropped_elsewhere
        slots.on_failure = self.commits.fail

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

        `Fenced` if a later leader has, `Refused` for an epoch that is no term, or that nobody can
        have reached since the last. Slots that cannot be read raise what is wrong with them;
        nothing is pruned then, since nobody can say what replicas still need. So does a table that
        is gone: a log that holds, or held, records has one, unless nobody has led it before, which
        is to be said with `must_exist=False`. Open the slots before the first record of a new log
        is written: a leader that dies in between leaves a log that an operator has to vouch for.
        """
        chosen = config or ReplicationConfig()
        if must_exist is None:
            must_exist = wal.current_lsn() > 0
        slots = await SlotKeeper.open(
            register,
            leader_epoch=leader_epoch,
            must_exist=must_exist,
            write_interval_s=chosen.slot_write_interval_s,
        )
        made = cls(wal, slots, chosen)
        made.retention.bring_back()
        # Before anything is written above them: a leader after this one, whose log has others of
        # those records, would take the slots for its own.
        await slots.settle()
        return made

    def start(self) -> None:
        """Write slots and look after replicas, every few seconds, until `close`."""
        self._slots.start()
        if self._sweeping is None:
            self._sweeping = runtime.spawn(self._sweep_on(), name="headwater-replicas")

    async def __aenter__(self) -> Self:
        """Started; the block's end closes it."""
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """See `close`."""
        await self.close()

    async def close(self) -> None:
        """Tell everybody who waits, store the slots, and end."""
        self._is_closed = True
        self.commits.stop()
        sweeping, self._sweeping = self._sweeping, None
        if sweeping is not None:
            sweeping.cancel()
            await asyncio.wait((sweeping,))
        await self._slots.close()

    @property
    def term(self) -> int:
        """The leader's epoch."""
        return self._book.leader_epoch

    def check_leading(self) -> None:
        """Raise `Fenced` once it is known that a newer leader took over, `Unavailable` once closed:
        what a replica is told after that is written down by nobody."""
        if isinstance(self._slots.failure, Fenced):
            self._slots.check()
        if self._is_closed:
            raise Unavailable("this leader was closed: ask the next one")

    # Who replicates

    @property
    def topology_epoch(self) -> int:
        """How often the set of replicas, or what they are good for, has changed."""
        return self._registry.topology_epoch

    @property
    def replica_count(self) -> int:
        """How many replicas are registered."""
        return len(self._registry)

    def replicas(self) -> list[ReplicaState]:
        """What is known of each."""
        return self._registry.replicas()

    def replica(self, name: str, *, session: str | None = None) -> ReplicaState:
        """What is known of one; `NotFound`, or `Fenced` if the name was registered again since."""
        return self._registry.get(name, session=session)

    def progress(self) -> ReplicationProgress | None:
        """How far they are together; None if there are none."""
        return ReplicationProgress.from_replicas(self._registry.replicas())

    def register_replica(
        self,
        name: str,
        *,
        region: str | None = None,
        position_lsn: int | None = None,
        by_pull: bool = False,
    ) -> Registration:
        """Add a replica, or take one back that comes again, with what it acknowledged.

        `position_lsn` is the last record that it has. Without it a new slot stands at the end of
        the log, for a copy that is about to be made; with it, where the replica is.
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
        """Forget a replica until it comes again; its slot stays, and so what it holds."""
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
        if self._book.find(name) is not None:
            self._book.touch(name)

    def acknowledge(
        self,
        name: str,
        *,
        applied_lsn: int,
        durable_lsn: int,
        apply_error_count: int = 0,
        divergence_count: int = 0,
    ) -> ReplicaState:
        """A replica has come so far. Numbers only rise; an older message changes nothing.

        `Refused` beyond what it can have: it would count for records that nobody has written yet.
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
        if self._book.find(name) is not None:
            self._book.advance(name, applied_lsn=applied_lsn, durable_lsn=durable_lsn)
        self.metrics.acknowledgements += 1
        self._evaluate()
        return state

    def check_known(self, name: str, lsn: int) -> None:
        """Refuse a position beyond what is in the log or was sent.

        Also where it came with the registration: what a log that ends below it will have there is
        not known to be what the replica has.
        """
        known_lsn = max(self._registry.get(name).last_sent_lsn, self.wal.current_lsn())
        if lsn > known_lsn:
            raise Refused(
                f"replica {name!r} speaks of LSN {lsn}, and there is nothing beyond {known_lsn}: "
                "it is not a copy of this log, unless the log gets there and it is compared"
            )

    def sweep(self) -> None:
        """Look after replicas and slots: who is silent, who is too far behind."""
        for state in self._registry.sweep(self.config.health_timeout_s):
            self.metrics.health_flips["healthy" if state.healthy else "unhealthy"] += 1
        self.enforce_retention_limits()
        self._evaluate()

    # What the log is kept for

    def slots(self) -> list[Slot]:
        """The slots as they are at this moment."""
        return self._book.slots()

    def slot(self, name: str) -> Slot:
        """One of them; `NotFound` if its replica has to register."""
        return self._book.get(name)

    def slot_views(self) -> list[SlotView]:
        """The slots in words: status, lag, and since when nobody uses them."""
        healthy = {one.name for one in self._registry.replicas() if one.healthy}
        return [
            self.retention.view(slot, is_active=slot.name in healthy) for slot in self._book.slots()
        ]

    def retention_floor_lsn(self) -> int | None:
        """The slowest valid slot: the log is kept above it. None if no slot asks for anything."""
        return self._book.wanted_floor_lsn()

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
        """Why a replica cannot go on from here; None if it can. A slot found lost is marked so."""
        return self.retention.rebootstrap_reason(name, position_lsn)

    def plan_replica_resume(self, name: str, position_lsn: int | None = None) -> ResumeMode:
        """How a replica that comes back goes on; counted, so that it can be seen."""
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
        """Forget a slot and its replica; whether there was one. It frees the log once stored."""
        self._registry.unregister(name)
        dropped = self._book.drop(name)
        self.metrics.slots_dropped += dropped
        self._evaluate()
        return dropped

    async def settle_slots(self) -> None:
        """Return once the slots, as they are now, would survive this leader."""
        await self._slots.settle()

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
        """Let a writer on, held up for a moment if replicas are far behind; for how long.

        `Fenced` once it is known that a newer leader took over.
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

    async def _sweep_on(self) -> None:
        while True:
            await runtime.sleep(self.config.sweep_interval_s)
            # A log that cannot tell how long it is today may be able to tomorrow; were the sweeps
            # to end, whatever the reason, a dead slot would hold it for ever.
            try:
                self.sweep()
            except HeadwaterError:
                self.metrics.sweeps_failed += 1
            except Exception:
                self.metrics.sweeps_failed += 1
                _log.exception("replicas and slots were not looked after, and will be again")
