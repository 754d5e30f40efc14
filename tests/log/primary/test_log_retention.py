"""What the log is kept for: nothing that a valid slot needs goes, and dead slots hold it not."""

from __future__ import annotations

import asyncio

import pytest

from headwater.core import runtime
from headwater.core.errors import Damaged, Fenced, OutcomeUnknown, Refused, RolledBack
from headwater.log.primary.slot import FullRebootstrap, InvalidationCause, PartialResync, SlotStatus
from headwater.store import Store
from headwater.testing import MemoryWal
from tests.log.leaders import SLOTS_KEY, Away, leader, slot_register
from tests.store.scripted import virtual


@virtual
async def test_without_slots_the_log_goes_as_far_as_it_is_archived() -> None:
    one = await leader()
    one.wal.append(9)
    assert await one.primary.prune_retained_wal_through(7) == 7
    assert await one.primary.prune_retained_wal_through(99) == 9, "there is no more"
    assert await one.primary.prune_retained_wal_through(3) == 9, "and nothing comes back"


@virtual
async def test_what_is_pruned_would_be_allowed_by_the_next_leader_as_well() -> None:
    backend = Away()
    one = await leader(store=Store(backend))
    one.wal.append(9)
    one.primary.register_replica("r1", position_lsn=2)
    one.acknowledge("r1", 2)
    await one.primary.slot_writer.wait_stored()
    one.acknowledge("r1", 8)
    backend.is_away = True
    assert await one.primary.prune_retained_wal_through(9) == 2, "the store does not know of 8"
    assert one.primary.metrics.prunes_cut_short == 1
    backend.is_away = False
    assert await one.primary.prune_retained_wal_through(9) == 8
    stored = await slot_register(one.store).read()
    assert stored is not None
    assert stored.slots[0].restart_lsn == 8


@virtual
async def test_a_write_that_may_have_landed_counts_as_one_that_has() -> None:
    backend = Away()
    one = await leader(store=Store(backend))
    one.wal.append(9)
    await one.service.register("r1", 0)
    one.acknowledge("r1", 9)
    await one.primary.slot_writer.wait_stored()

    backend.goes_away_after_write = True
    with pytest.raises(OutcomeUnknown):
        await one.service.register("r1", 2)  # it lost its disk; its slot is stored at 2
    one.acknowledge("r1", 9)
    assert await one.primary.prune_retained_wal_through(9) == 2
    backend.is_away = False
    assert await one.primary.prune_retained_wal_through(9) == 9


@virtual
async def test_a_slot_is_given_up_for_the_next_leader_before_its_log_goes() -> None:
    backend = Away()
    one = await leader(store=Store(backend), max_lag_lsn=3)
    one.primary.register_replica("slow", position_lsn=0)
    await one.primary.slot_writer.wait_stored()
    one.wal.append(9)
    backend.is_away = True
    assert await one.primary.prune_retained_wal_through(9) == 0
    assert one.wal.oldest_lsn() == 1
    backend.is_away = False
    assert await one.primary.prune_retained_wal_through(9) == 9


@virtual
async def test_a_leader_that_was_overtaken_prunes_nothing() -> None:
    one = await leader(epoch=1)
    one.wal.append(9)
    one.primary.register_replica("r1", position_lsn=0)
    await one.primary.slot_writer.wait_stored()
    await slot_register(one.store).stamp(2)
    one.acknowledge("r1", 9)
    for _ in range(2):
        with pytest.raises(Fenced):
            await one.primary.prune_retained_wal_through(9)
    assert one.wal.oldest_lsn() == 1
    with pytest.raises(Fenced):
        one.primary.register_replica("r2")


@virtual
async def test_a_leader_that_knows_it_prunes_nothing_although_its_slots_would_allow_it() -> None:
    one = await leader(epoch=1)
    one.wal.append(9)
    await one.service.register("r1", 5)
    await slot_register(one.store).stamp(2)
    one.acknowledge("r1", 6)
    with pytest.raises(Fenced):
        await one.primary.slot_writer.wait_stored()
    with pytest.raises(Fenced):
        await one.primary.prune_retained_wal_through(3)
    assert one.wal.oldest_lsn() == 1


@virtual
async def test_slots_that_cannot_be_read_free_nothing() -> None:
    one = await leader()
    one.wal.append(9)
    one.primary.register_replica("r1", position_lsn=2)
    await one.primary.slot_writer.wait_stored()
    await one.store.put(SLOTS_KEY, b"{}")
    one.acknowledge("r1", 9)
    for _ in range(2):
        with pytest.raises(Damaged):
            await one.primary.prune_retained_wal_through(9)
    with pytest.raises(Damaged):
        await leader(wal=one.wal, store=one.store, epoch=2)
    assert one.wal.oldest_lsn() == 1


@virtual
async def test_whoever_registers_while_the_log_is_pruned_does_not_count_on_what_goes() -> None:
    one = await leader()
    one.wal.append(9)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        begun.set()
        await go_on.wait()

    one.wal.pruning = hold
    pruning = runtime.spawn(one.primary.prune_retained_wal_through(6), name="prune")
    await begun.wait()
    registering = runtime.spawn(one.service.register("r1", 3), name="register")
    await runtime.sleep(1.0)
    go_on.set()
    await pruning

    assert one.wal.oldest_lsn() == 7
    told = (await registering).resume
    assert told == FullRebootstrap(InvalidationCause.NOT_BOOTSTRAPPED)


@virtual
async def test_a_slot_of_many_records_bytes_or_days_is_given_up() -> None:
    by_bytes = await leader(max_lag_bytes=100)
    by_bytes.primary.register_replica("r1")
    by_bytes.wal.append(2)
    by_bytes.archive()
    assert by_bytes.primary.retention.enforce_limits() == []
    by_bytes.wal.append(100)
    by_bytes.archive()
    assert by_bytes.primary.retention.enforce_limits() == [("r1", InvalidationCause.HORIZON)]

    by_time = await leader(max_lag_s=60.0)
    by_time.primary.register_replica("r1")
    by_time.wal.append(1)
    by_time.archive()
    for _ in range(7):
        await runtime.sleep(10.0)
        by_time.primary.note_replica_pull("r1", 0)
        assert by_time.primary.retention.enforce_limits() == []
    await runtime.sleep(1.0)
    assert by_time.primary.retention.enforce_limits() == [("r1", InvalidationCause.HORIZON)]


@virtual
async def test_what_is_kept_anyway_costs_a_slot_nothing() -> None:
    one = await leader(max_lag_lsn=5, max_lag_bytes=100, max_lag_s=60.0)
    one.primary.register_replica("r1", position_lsn=0)
    one.wal.append(1000)
    one.primary.retention.enforce_limits()
    await runtime.sleep(600.0)
    assert one.primary.retention.enforce_limits() == []
    (view,) = one.primary.slot_views()
    assert (view.status, view.lag_lsn) == (SlotStatus.RESERVED, 1000)

    assert await one.primary.prune_retained_wal_through(0) == 0
    assert one.slot("r1").is_valid
    assert await one.primary.prune_retained_wal_through(1) == 1, "for ten minutes: too long"
    assert one.slot("r1").invalidation is not None


@virtual
async def test_a_slot_holds_as_much_of_what_is_archived_as_its_limit_and_no_more() -> None:
    one = await leader(max_lag_lsn=5)
    one.primary.register_replica("r1", position_lsn=0)
    one.wal.append(1000)
    assert await one.primary.prune_retained_wal_through(5) == 0
    assert one.primary.slot_views()[0].status is SlotStatus.EXTENDED
    assert await one.primary.prune_retained_wal_through(6) == 6


@virtual
async def test_a_slot_that_has_everything_is_never_late() -> None:
    one = await leader(max_lag_s=60.0)
    one.primary.register_replica("r1", position_lsn=0)
    one.wal.append(9)
    one.archive()
    one.primary.retention.enforce_limits()
    one.acknowledge("r1", 9)
    await runtime.sleep(600.0)
    assert one.primary.retention.enforce_limits() == []


@virtual
async def test_a_leader_that_lost_its_disk_sends_no_one_over_the_gap() -> None:
    first = await leader(epoch=1)
    first.wal.append(600)
    first.primary.register_replica("r1", position_lsn=0)
    first.acknowledge("r1", 500)
    await first.primary.close()

    empty = await leader(wal=MemoryWal(first_lsn=1001), store=first.store, epoch=2)
    planned = empty.primary.retention.plan_resume("r1", 500)
    assert planned == FullRebootstrap(InvalidationCause.WAL_REMOVED)
    assert (await empty.service.register("r1", 500)).resume == planned, "and it stays so"


@virtual
async def test_a_replica_that_is_ahead_of_a_leader_which_derives_again_waits_for_it() -> None:
    one = await leader()
    one.wal.append(3)
    told = await one.service.register("r1", 8)
    assert told.resume == PartialResync(3), "what it has beyond may be other records"
    assert (told.confirmed_lsn, told.oldest_lsn, told.current_lsn) == (0, 1, 3)
    with pytest.raises(Refused, match="the log ends at 3"):
        await one.service.pull("r1", 8)
    assert (await one.service.pull("r1", 3, wait_s=1.0)).groups == []
    one.wal.append(6)
    assert await one.primary.prune_retained_wal_through(9) == 2, "kept until they are compared"
    pulled = await one.service.pull("r1", 3)
    assert [group.first_lsn for group in pulled.groups] == [4]


@virtual
async def test_a_slot_above_the_log_is_stored_as_brought_back_before_anybody_writes() -> None:
    one = await leader()
    one.wal.append(10)
    one.primary.register_replica("r1", position_lsn=0)
    one.acknowledge("r1", 10)
    await one.primary.slot_writer.wait_stored()
    shorter = MemoryWal()
    shorter.append(5)
    await leader(wal=shorter, store=one.store, epoch=2)
    stored = await slot_register(one.store).read()
    assert stored is not None
    (slot,) = stored.slots
    assert (slot.restart_lsn, slot.confirmed_lsn) == (5, 5), "whoever leads next knows it, too"


@virtual
async def test_a_slot_above_the_end_of_the_log_is_brought_back_to_it() -> None:
    first = await leader(epoch=1)
    first.wal.append(9)
    await first.service.register("r1", 9)
    first.acknowledge("r1", 9)
    seen_ms = first.slot("r1").last_seen_ms
    await first.primary.close()
    shorter = MemoryWal()
    shorter.append(5)
    await runtime.sleep(60.0)
    second = await leader(wal=shorter, store=first.store, epoch=2)
    assert second.slot("r1").restart_lsn == 5
    assert second.slot("r1").last_seen_ms == seen_ms, "nobody was heard of since"
    shorter.append(7)
    assert await second.primary.prune_retained_wal_through(12) == 5, "its replica has not compared"


@virtual
async def test_what_was_pruned_while_a_replica_compares_costs_it_no_slot() -> None:
    one = await leader()
    one.wal.append(9)
    session = (await one.service.register("r1", 9)).session
    await one.primary.prune_retained_wal_through(7)
    with pytest.raises(Refused, match="register again"):
        await one.service.pull("r1", 4, session=session)
    assert one.slot("r1").is_valid
    assert (await one.service.register("r1", 9)).oldest_lsn == 8


@virtual
async def test_unregistering_keeps_the_slot_and_dropping_it_frees_the_log() -> None:
    one = await leader()
    one.wal.append(9)
    one.primary.register_replica("r1", position_lsn=2)
    one.acknowledge("r1", 2)
    assert one.primary.unregister_replica("r1")
    assert await one.primary.prune_retained_wal_through(9) == 2

    epoch = one.primary.registry.topology_epoch
    assert one.primary.drop_slot("r1")
    assert one.primary.registry.topology_epoch == epoch, "it was not registered any more"
    assert not one.primary.drop_slot("r1")
    assert await one.primary.prune_retained_wal_through(9) == 9
    assert one.primary.metrics.slots_dropped == 1


@virtual
async def test_a_slot_that_was_dropped_from_outside_frees_the_log_and_its_replica_comes_anew() -> (
    None
):
    one = await leader()
    one.wal.append(9)
    session = (await one.service.register("r1", 2)).session
    await slot_register(one.store).drop("r1")
    one.primary.start()
    await runtime.sleep(120.0)
    assert len(one.primary.registry.replicas()) == 0
    assert await one.primary.prune_retained_wal_through(9) == 9
    again = await one.service.register("r1", 9)
    assert again.resume == FullRebootstrap(InvalidationCause.NOT_BOOTSTRAPPED), "nothing to compare"
    assert again.session != session
    one.wal.append(1)
    assert (await one.service.register("r2", 10)).resume == PartialResync(10)
    await one.primary.close()


@virtual
async def test_status_lag_and_silence_can_be_seen() -> None:
    one = await leader(max_lag_lsn=50, health_timeout_s=10.0)
    one.wal.append(20)
    one.primary.register_replica("r1", position_lsn=0)
    one.acknowledge("r1", 15, 10)
    (view,) = one.primary.slot_views()
    assert (view.status, view.lag_lsn, view.inactive_since_ms) == (SlotStatus.RESERVED, 10, None)
    assert (view.restart_lsn, view.confirmed_lsn) == (10, 15)
    assert view.lag_bytes > 0

    heard_ms = runtime.wall_ms()
    await one.primary.prune_retained_wal_through(20)
    await runtime.sleep(11.0)
    one.primary.sweep()
    (view,) = one.primary.slot_views()
    assert view.status is SlotStatus.EXTENDED
    assert view.inactive_since_ms == heard_ms

    one.wal.append(100)
    assert one.primary.slot_views()[0].status is SlotStatus.EXTENDED, "what is new is kept anyway"
    one.archive()
    assert one.primary.slot_views()[0].status is SlotStatus.UNRESERVED
    one.primary.sweep()
    (view,) = one.primary.slot_views()
    assert (view.status, view.cause) == (SlotStatus.LOST, InvalidationCause.HORIZON)
    assert one.primary.metrics.slots_invalidated == {"horizon": 1}


@virtual
async def test_slots_that_are_gone_do_not_free_a_log_that_holds_records() -> None:
    one = await leader(must_exist=None)
    one.wal.append(9)
    await one.service.register("away", 3)
    await one.store.delete(SLOTS_KEY)
    with pytest.raises(RolledBack, match="slot reset"):
        await leader(wal=one.wal, store=one.store, epoch=2, must_exist=None)
    await slot_register(one.store).reset_damaged()
    second = await leader(wal=one.wal, store=one.store, epoch=2, must_exist=None)
    assert second.primary.slots.all() == []


@virtual
async def test_a_replica_that_comes_with_a_copy_is_behind_by_what_follows_it() -> None:
    one = await leader()
    one.wal.append(100)
    await one.service.register("standby", 90)
    (view,) = one.primary.slot_views()
    assert (view.confirmed_lsn, view.lag_lsn) == (0, 10), "though nobody has compared the copy yet"


@virtual
async def test_the_last_record_of_a_copy_stays_in_the_log_until_it_was_compared() -> None:
    one = await leader()
    one.wal.append(9)
    await one.service.register("r1", 9)
    assert await one.primary.prune_retained_wal_through(9) == 8
    assert (await one.service.register("r1", 9)).resume == PartialResync(9)
    one.acknowledge("r1", 9)
    assert await one.primary.prune_retained_wal_through(9) == 9


@virtual
async def test_what_a_bootstrap_begins_from_is_not_taken_for_acknowledged() -> None:
    one = await leader()
    one.wal.append(100)
    await one.service.register("standby", 40)
    one.acknowledge("standby", 60)
    await one.service.begin_bootstrap("standby", image_lsn=90)
    assert one.slot("standby").restart_lsn == 90
    assert (await one.service.register("standby", 90)).confirmed_lsn == 60


@virtual
async def test_a_replica_that_has_nothing_is_behind_by_the_whole_log() -> None:
    one = await leader(wal=MemoryWal(first_lsn=51))
    one.wal.append(50)
    await one.service.register("late", 0)
    (view,) = one.primary.slot_views()
    assert view.bootstrapping
    assert (view.confirmed_lsn, view.lag_lsn) == (0, 100)
