"""The published behaviour of a leader, behaviour by behaviour.

Where the reference is safe only by luck, ours differs, and the other tests of this folder say how:
a replica that has only just registered counts for nothing, and slots are stored before they free
anything.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from headwater.core import runtime
from headwater.log import PrimaryReplication, PrimaryService, ReplicationConfig, Spool
from headwater.log.primary.registry import Acknowledgement, ReplicaState, ReplicationProgress
from headwater.log.primary.slot import FullRebootstrap, InvalidationCause, PartialResync
from headwater.store import open_store
from headwater.testing import MemoryWal
from tests.log.given import values
from tests.log.leaders import Leader, leader, slot_register
from tests.store.scripted import virtual


def retained(one: Leader) -> list[int]:
    return one.wal.retained_lsns()


@virtual
async def test_topology_epoch_monotonic_on_register_and_unregister() -> None:
    primary = (await leader()).primary
    epochs = [primary.registry.topology_epoch]
    primary.register_replica("r1")
    epochs.append(primary.registry.topology_epoch)
    primary.register_replica("r2")
    epochs.append(primary.registry.topology_epoch)
    assert primary.unregister_replica("r1")
    epochs.append(primary.registry.topology_epoch)
    assert epochs == sorted(set(epochs))
    assert not primary.unregister_replica("ghost")
    assert primary.registry.topology_epoch == epochs[-1]


@virtual
async def test_register_replica_is_idempotent_on_reconnect() -> None:
    one = await leader()
    one.primary.register_replica("r1")
    assert len(one.primary.registry.replicas()) == 1
    epoch = one.primary.registry.topology_epoch
    one.primary.note_replica_pull("r1", 42)
    one.acknowledge("r1", 40)

    again = one.primary.register_replica("r1")

    assert len(one.primary.registry.replicas()) == 1
    assert one.primary.registry.topology_epoch == epoch
    after = one.replica("r1")
    assert (after.last_sent_lsn, after.last_acked_lsn, after.last_durable_lsn) == (42, 40, 40)
    assert again.restart_lsn == 40, "the slot's position, not the last one sent"


def test_replica_slot_persists_and_reconnect_resumes_from_restart_lsn(tmp_path: Path) -> None:
    """On files, and of a leader that is not closed: what is there is copied while it runs."""

    async def open_leader(root: Path, epoch: int) -> tuple[Spool, PrimaryReplication]:
        spool = Spool.open(str(root / "log"))
        register = slot_register(open_store(f"file://{root}/store"))
        return spool, await PrimaryReplication.open(
            spool, register, leader_epoch=epoch, must_exist=epoch > 1
        )

    async def main() -> None:
        spool, primary = await open_leader(tmp_path / "running", 1)
        service = PrimaryService(primary)
        session = (await service.register("r1", 0)).session
        await spool.append(values(*[b"%d" % lsn for lsn in range(1, 13)]), term=1)
        assert (await service.pull("r1", 0, session=session)).through_lsn == 12
        acknowledged = Acknowledgement(applied_lsn=10, durable_lsn=8)
        await service.acknowledge("r1", acknowledged, session=session)
        assert (primary.slots.get("r1").restart_lsn, primary.slots.get("r1").confirmed_lsn) == (
            8,
            10,
        )
        shutil.copytree(tmp_path / "running", tmp_path / "crashed-early")
        await primary.slot_writer.wait_stored()
        shutil.copytree(tmp_path / "running", tmp_path / "crashed")

        copied, reopened = await open_leader(tmp_path / "crashed", 2)
        assert (reopened.slots.get("r1").restart_lsn, reopened.slots.get("r1").confirmed_lsn) == (
            8,
            10,
        )
        assert reopened.register_replica("r1").restart_lsn == 8
        registered = await PrimaryService(reopened).register("r1", 8)
        assert registered.resume == PartialResync(8)
        pulled = await PrimaryService(reopened).pull("r1", 8, session=registered.session)
        assert pulled.through_lsn == 12
        assert copied.current_lsn() == 12

        # Before it was stored, the slot keeps more than the replica needs, and never less.
        _, early = await open_leader(tmp_path / "crashed-early", 2)
        assert (early.slots.get("r1").restart_lsn, early.slots.get("r1").confirmed_lsn) == (0, 0)
        assert (await PrimaryService(early).register("r1", 8)).resume == PartialResync(8)

    asyncio.run(main())


@virtual
async def test_a_leader_that_is_never_closed_stores_what_was_acknowledged_by_itself() -> None:
    first = await leader(epoch=1)
    first.primary.start()
    await first.service.register("r1", 0)
    first.wal.append(12)
    first.primary.note_replica_pull("r1", 12)
    first.acknowledge("r1", 10, 8)
    await runtime.sleep(first.primary.config.slot_write_interval_s + 1)

    reopened = await leader(wal=first.wal, store=first.store, epoch=2)
    assert (reopened.slot("r1").restart_lsn, reopened.slot("r1").confirmed_lsn) == (8, 10)
    assert reopened.primary.register_replica("r1").restart_lsn == 8


@virtual
async def test_retention_floor_follows_slowest_slot_and_prunes_wal() -> None:
    one = await leader()
    one.primary.register_replica("fast")
    one.primary.register_replica("slow")
    one.wal.append(6)
    one.acknowledge("fast", 5)
    one.acknowledge("slow", 3, 2)

    assert one.primary.retention.slots.wanted_floor_lsn() == 2
    assert await one.primary.prune_retained_wal_through(6) == 2
    assert retained(one) == [3, 4, 5, 6]

    one.acknowledge("slow", 6)
    assert one.primary.retention.slots.wanted_floor_lsn() == 5
    assert await one.primary.prune_retained_wal_through(6) == 5
    assert retained(one) == [6]


@virtual
async def test_bootstrap_slot_pin_prevents_wal_removed_rebootstrap_after_prune() -> None:
    one = await leader()
    one.wal.append(5)
    assert one.primary.register_replica("bootstrapping").restart_lsn == 5
    one.wal.append(3)

    assert await one.primary.prune_retained_wal_through(8) == 5
    assert retained(one) == [6, 7, 8]
    assert one.primary.retention.rebootstrap_reason("bootstrapping", None) is None
    assert one.primary.retention.rebootstrap_reason("bootstrapping", 5) is None


def test_default_config_enables_finite_slot_retention_cap() -> None:
    retention = ReplicationConfig().retention
    assert retention.max_lag_lsn is not None
    assert retention.max_lag_bytes is not None
    assert retention.max_lag_s is not None
    assert retention.idle_timeout_s is not None


@virtual
async def test_retention_cap_invalidates_slow_slot_and_releases_wal_floor() -> None:
    one = await leader(max_lag_lsn=3)
    one.primary.register_replica("fast")
    one.primary.register_replica("slow")
    one.wal.append(6)
    one.acknowledge("fast", 6)

    assert await one.primary.prune_retained_wal_through(6) == 6
    slow = one.slot("slow").invalidation
    assert slow is not None
    assert slow.cause is InvalidationCause.HORIZON
    assert retained(one) == []


@virtual
async def test_slot_invalidation_cause_codes_cover_wal_removed_horizon_and_idle_timeout() -> None:
    wal = MemoryWal()
    removed = await leader(wal=wal, max_lag_lsn=3, idle_timeout_s=0.010)
    removed.primary.register_replica("wal")
    wal.append(1)
    await wal.prune_through(1)
    assert (
        removed.primary.retention.rebootstrap_reason("wal", None) is InvalidationCause.WAL_REMOVED
    )

    horizon = await leader(max_lag_lsn=3)
    horizon.primary.register_replica("horizon")
    horizon.wal.append(4)
    horizon.archive()
    assert horizon.primary.retention.enforce_limits() == [("horizon", InvalidationCause.HORIZON)]

    idle = await leader(idle_timeout_s=0.010)
    idle.primary.register_replica("idle")
    await runtime.sleep(0.009)
    assert idle.primary.retention.enforce_limits() == []
    await runtime.sleep(0.002)
    assert idle.primary.retention.enforce_limits() == [("idle", InvalidationCause.IDLE_TIMEOUT)]

    assert [cause.value for cause in InvalidationCause][:3] == [
        "wal-removed",
        "horizon",
        "idle-timeout",
    ]


@virtual
async def test_plan_replica_resume_partial_within_window_full_past_cap() -> None:
    within = await leader()
    within.primary.register_replica("blip")
    within.wal.append(5)
    assert within.primary.retention.plan_resume("blip", 2) == PartialResync(2)
    assert within.primary.metrics.partial_resyncs == 1

    past_cap = await leader(max_lag_lsn=3)
    past_cap.primary.register_replica("slow")
    past_cap.wal.append(6)
    past_cap.archive()
    past_cap.primary.retention.enforce_limits()
    planned = past_cap.primary.retention.plan_resume("slow", 0)
    assert planned == FullRebootstrap(InvalidationCause.HORIZON)
    assert past_cap.primary.metrics.partial_resyncs == 0
    assert past_cap.primary.metrics.full_rebootstraps == {"horizon": 1}


@virtual
async def test_ensure_replica_registered_self_registers_then_is_a_noop() -> None:
    one = await leader()
    assert one.primary.ensure_replica_registered("r1")
    assert len(one.primary.registry.replicas()) == 1
    epoch = one.primary.registry.topology_epoch
    one.primary.note_replica_pull("r1", 7)
    assert one.replica("r1").last_sent_lsn == 7

    assert not one.primary.ensure_replica_registered("r1")
    assert len(one.primary.registry.replicas()) == 1
    assert one.primary.registry.topology_epoch == epoch
    assert one.replica("r1").last_sent_lsn == 7


def test_replication_progress_uses_sent_applied_and_durable_registry_lsns() -> None:
    fast = ReplicaState("fast", last_acked_lsn=90, last_sent_lsn=120, last_durable_lsn=80)
    slow = ReplicaState("slow", last_acked_lsn=70, last_sent_lsn=100, last_durable_lsn=60)
    assert ReplicationProgress.from_replicas([fast, slow]) == ReplicationProgress(50, 60)
    assert ReplicationProgress.from_replicas([]) is None
