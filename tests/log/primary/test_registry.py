"""Who replicates: sessions, health, the topology epoch, what a replica counts for."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

import pytest

from headwater.core import runtime
from headwater.core.errors import Fenced, NotFound, Refused, Unavailable
from headwater.log import AckN, PrimaryService
from headwater.log.primary.registry import Acknowledgement
from tests.log.leaders import leader
from tests.store.scripted import virtual


@virtual
async def test_a_replica_that_has_only_just_come_counts_for_nothing() -> None:
    one = await leader()
    one.wal.append(9)
    one.primary.register_replica("r1")
    assert one.replica("r1").last_durable_lsn == 0
    assert one.primary.replicated_lsn(AckN(1)) == 0
    one.primary.register_replica("r2", position_lsn=9)
    assert one.primary.replicated_lsn(AckN(1)) == 0, "what it says it has is not acknowledged"
    one.acknowledge("r2", 9)
    assert one.primary.replicated_lsn(AckN(1)) == 9


@virtual
async def test_a_replica_that_comes_back_with_less_no_longer_counts_for_the_rest() -> None:
    one = await leader()
    one.wal.append(9)
    one.primary.register_replica("r1", position_lsn=0)
    one.acknowledge("r1", 9)
    one.primary.register_replica("r1", position_lsn=4)
    assert one.primary.replicated_lsn(AckN(1)) == 4
    assert one.replica("r1").last_acked_lsn == 4


@virtual
async def test_the_log_is_kept_for_what_such_a_replica_is_sent_again() -> None:
    one = await leader()
    one.wal.append(9)
    one.primary.register_replica("r1", position_lsn=0)
    one.acknowledge("r1", 9)
    assert one.primary.register_replica("r1", position_lsn=4).restart_lsn == 4
    assert await one.primary.prune_retained_wal_through(9) == 4


@virtual
async def test_an_acknowledgement_only_raises() -> None:
    one = await leader()
    one.wal.append(9)
    one.primary.register_replica("r1")
    one.acknowledge("r1", 8, 6)
    one.acknowledge("r1", 5, 9)
    state = one.replica("r1")
    assert (state.last_acked_lsn, state.last_durable_lsn) == (8, 9)
    with pytest.raises(Refused):
        one.acknowledge("r1", -1)


@virtual
async def test_what_nobody_has_written_or_sent_cannot_be_acknowledged() -> None:
    one = await leader()
    one.wal.append(5)
    await one.service.register("r1", 5)
    with pytest.raises(Refused, match="not a copy"):
        one.acknowledge("r1", 5, 6)
    with pytest.raises(Refused, match="not a copy"):
        one.acknowledge("r1", 6, 5)
    with pytest.raises(Refused, match="not a copy"):
        await one.service.pull("r1", 6)
    assert one.slot("r1").restart_lsn == 5
    one.wal.append(1)
    assert one.primary.replicated_lsn(AckN(1)) == 0

    await one.service.register("ahead", 9)
    with pytest.raises(Refused, match="the log ends at 6"):
        one.acknowledge("ahead", 9)
    assert one.primary.replicated_lsn(AckN(1)) == 0, "what it has there may be other records"


@virtual
async def test_whoever_is_not_registered_acknowledges_nothing_and_makes_no_slot() -> None:
    one = await leader()
    with pytest.raises(NotFound, match="register"):
        one.acknowledge("stranger", 5)
    with pytest.raises(NotFound, match="register"):
        one.primary.note_replica_pull("stranger", 5)
    assert one.primary.slots.all() == []


@virtual
async def test_of_two_replicas_of_one_name_the_earlier_is_refused() -> None:
    one = await leader()
    one.wal.append(9)
    first = await one.service.register("r1", 0)
    second = await one.service.register("r1", 0)
    with pytest.raises(Fenced, match="share a name"):
        await one.service.acknowledge("r1", Acknowledgement(9, 9), session=first.session)
    with pytest.raises(Fenced):
        await one.service.pull("r1", 0, session=first.session)
    await one.service.acknowledge("r1", Acknowledgement(3, 3), session=second.session)
    assert one.replica("r1").last_durable_lsn == 3


@pytest.mark.parametrize("epoch", [2, 1], ids=["a newer epoch", "the same epoch once more"])
def test_a_session_of_another_leader_counts_for_nothing_whoever_has_the_name_here(
    epoch: int,
) -> None:
    """Two processes share a name, and one of them has not heard that the leader changed."""

    @virtual
    async def main() -> None:
        first = await leader(epoch=1)
        first.wal.append(9)
        old = (await first.service.register("r1", 0)).session
        second = await leader(epoch=epoch, wal=first.wal, store=first.store)
        new = (await second.service.register("r1", 0)).session
        assert new != old
        asked: list[Callable[[], Awaitable[object]]] = [
            lambda: second.service.acknowledge("r1", Acknowledgement(9, 9), session=old),
            lambda: second.service.pull("r1", 0, session=old),
            lambda: second.service.begin_bootstrap("r1", session=old),
            lambda: second.service.complete_bootstrap("r1", 9, session=old),
            lambda: second.service.unregister("r1", session=old),
        ]
        for ask in asked:
            with pytest.raises(NotFound if epoch == 2 else Fenced):
                await ask()
        assert second.slot("r1").restart_lsn == second.replica("r1").last_durable_lsn == 0
        assert (await second.service.pull("r1", 0, session=new)).through_lsn == 9

    main()


@virtual
async def test_who_shares_a_name_cannot_do_without_a_session() -> None:
    one = await leader()
    one.wal.append(9)
    service = PrimaryService(one.primary)
    session = (await service.register("r1", 0)).session
    with pytest.raises(Refused, match="session"):
        await service.acknowledge("r1", Acknowledgement(9, 9))
    with pytest.raises(Refused, match="session"):
        await service.complete_bootstrap("r1", 9)
    with pytest.raises(Refused, match="session"):
        await service.unregister("r1")
    with pytest.raises(Refused, match="session"):
        await service.pull("r1", 0)
    assert one.slot("r1").restart_lsn == 0
    await service.acknowledge("r1", Acknowledgement(9, 9), session=session)


@virtual
async def test_the_health_sweep_flips_replicas_and_bumps_the_topology_epoch() -> None:
    one = await leader(health_timeout_s=10.0)
    one.primary.register_replica("quiet")
    one.primary.register_replica("lively")
    epoch = one.primary.registry.topology_epoch
    await runtime.sleep(9.0)
    one.acknowledge("lively", 0)
    one.primary.sweep()
    assert one.primary.registry.topology_epoch == epoch, "nothing changed"

    await runtime.sleep(2.0)
    one.primary.sweep()
    assert [one.replica(name).healthy for name in ("quiet", "lively")] == [False, True]
    assert one.primary.registry.topology_epoch == epoch + 1

    one.primary.note_replica_pull("quiet", 0)
    one.primary.sweep()
    assert one.replica("quiet").healthy
    assert one.primary.registry.topology_epoch == epoch + 2
    assert one.primary.metrics.health_flips == {"unhealthy": 1, "healthy": 1}


@virtual
async def test_sweeps_go_on_by_themselves_until_the_leader_ends() -> None:
    one = await leader(health_timeout_s=10.0)
    one.primary.register_replica("quiet")
    one.primary.start()
    await runtime.sleep(60.0)
    assert not one.replica("quiet").healthy
    await one.primary.close()


@pytest.mark.parametrize("error", [Unavailable("the log is being opened"), KeyError("a mistake")])
def test_a_sweep_that_failed_is_counted_and_not_the_last_one(error: Exception) -> None:
    virtual(functools.partial(_sweeps_after, error))()


async def _sweeps_after(error: Exception) -> None:
    one = await leader(health_timeout_s=10.0)
    one.primary.register_replica("quiet")
    measure = one.wal.bytes_since

    def broken(lsn: int) -> int:
        raise error

    one.wal.bytes_since = broken  # type: ignore[method-assign]
    one.primary.start()
    await runtime.sleep(30.0)
    assert one.primary.metrics.sweeps_failed >= 5
    one.wal.bytes_since = measure  # type: ignore[method-assign]
    failed = one.primary.metrics.sweeps_failed
    await runtime.sleep(30.0)
    assert one.primary.metrics.sweeps_failed == failed
    await one.primary.close()


@virtual
async def test_the_flag_of_a_rebootstrap_changes_the_topology() -> None:
    one = await leader()
    one.primary.register_replica("r1")
    epoch = one.primary.registry.topology_epoch
    assert one.primary.set_replica_rebootstrapping("r1", True)
    assert one.primary.set_replica_rebootstrapping("r1", True)
    assert one.primary.registry.topology_epoch == epoch + 1
    assert one.replica("r1").rebootstrapping
    assert not one.primary.set_replica_rebootstrapping("ghost", True)


@virtual
async def test_errors_and_divergence_are_kept_and_a_diverged_copy_counts_for_nothing() -> None:
    one = await leader()
    one.wal.append(9)
    one.primary.register_replica("r1", position_lsn=0)
    one.primary.acknowledge("r1", Acknowledgement(9, 9, apply_error_count=2, divergence_count=1))
    one.primary.register_replica("r1")
    assert one.replica("r1").apply_error_count == 2
    assert one.primary.replicated_lsn(AckN(1)) == 0
    one.primary.begin_rebootstrap("r1")
    one.primary.complete_rebootstrap("r1", 9)
    one.acknowledge("r1", 9)
    assert one.primary.replicated_lsn(AckN(1)) == 9


@virtual
async def test_names_and_regions() -> None:
    one = await leader()
    one.primary.register_replica("r1", region="eu")
    one.primary.register_replica("r1")
    assert one.replica("r1").region == "eu"
    one.primary.register_replica("r1", region="us")
    assert one.replica("r1").region == "us"
    with pytest.raises(Refused, match="name"):
        one.primary.register_replica("../r1")
