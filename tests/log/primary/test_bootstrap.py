"""Making a fresh copy: the log is kept for it, and a completed one renews the slot."""

from __future__ import annotations

import pytest

from headwater.core.errors import NotFound, Refused
from headwater.log import AckN
from headwater.log.primary.registry import Acknowledgement
from headwater.log.primary.slot import (
    FullRebootstrap,
    InvalidationCause,
    PartialResync,
    Slot,
)
from headwater.testing import MemoryWal
from tests.log.leaders import Leader, leader, slot_register
from tests.store.scripted import virtual


async def with_a_lost_slot() -> tuple[Leader, str]:
    """The slot of r1 was given up at 0, and the log begins at 8; r1 has registered again."""
    one = await leader(max_lag_lsn=3)
    await one.service.register("r1", 0)
    one.wal.append(8)
    await one.primary.prune_retained_wal_through(7)
    registered = await one.service.register("r1", 0)
    assert registered.resume == FullRebootstrap(InvalidationCause.HORIZON)
    return one, registered.session


@virtual
async def test_a_completed_rebootstrap_renews_the_slot() -> None:
    one, session = await with_a_lost_slot()
    begun = await one.service.begin_bootstrap("r1", image_lsn=7, session=session)
    assert (begun.after_lsn, begun.current_lsn) == (7, 8)
    done = await one.service.complete_bootstrap("r1", 7, session=session)
    assert (done.restart_lsn, done.invalidation) == (7, None)
    assert one.slot("r1").is_valid
    assert one.primary.metrics.slots_renewed == 1

    assert (await one.service.register("r1", 7)).resume == PartialResync(7)
    second = await leader(wal=one.wal, store=one.store, epoch=2)
    assert (await second.service.register("r1", 7)).resume == PartialResync(7)


@virtual
async def test_both_ends_of_a_bootstrap_are_stored_before_they_are_told() -> None:
    one, session = await with_a_lost_slot()

    async def stored() -> Slot:
        table = await slot_register(one.store).read()
        assert table is not None
        return table.slots[0]

    await one.service.begin_bootstrap("r1", image_lsn=7, session=session)
    assert (await stored()).restart_lsn == 7
    assert (await stored()).bootstrapping
    await one.service.complete_bootstrap("r1", 8, session=session)
    assert (await stored()).restart_lsn == 8
    assert not (await stored()).bootstrapping


@virtual
async def test_the_log_is_kept_while_a_bootstrap_goes_on() -> None:
    one, session = await with_a_lost_slot()
    await one.service.begin_bootstrap("r1", image_lsn=7, session=session)
    one.wal.append(2)
    assert await one.primary.prune_retained_wal_through(10) == 7
    pulled = await one.service.pull("r1", 7, session=session)
    assert pulled.through_lsn == 10, "what follows the image may be pulled before it is swapped in"


@virtual
async def test_a_bootstrap_that_was_not_completed_is_begun_again_also_elsewhere() -> None:
    one, session = await with_a_lost_slot()
    await one.service.begin_bootstrap("r1", image_lsn=7, session=session)
    again = FullRebootstrap(InvalidationCause.NOT_BOOTSTRAPPED)
    assert (await one.service.register("r1", 8)).resume == again, "the data it was to replace"
    assert (await one.service.pull("r1", 6)).rebootstrap == again
    second = await leader(wal=one.wal, store=one.store, epoch=2)
    assert (await second.service.register("r1", 8)).resume == again
    assert (await second.service.pull("r2", 8)).rebootstrap is None


@virtual
async def test_a_copy_that_is_being_replaced_counts_for_nothing_until_it_is_done() -> None:
    one, session = await with_a_lost_slot()
    epoch = one.primary.registry.topology_epoch
    await one.service.begin_bootstrap("r1", image_lsn=7, session=session)
    assert one.replica("r1").rebootstrapping
    assert one.primary.registry.topology_epoch > epoch
    await one.service.acknowledge("r1", Acknowledgement(8, 8), session=session)
    assert one.primary.replicated_lsn(AckN(1)) == 0
    await one.service.complete_bootstrap("r1", 8, session=session)
    assert not one.replica("r1").rebootstrapping
    assert one.primary.replicated_lsn(AckN(1)) == 0, "it has not been compared with the log yet"
    await one.service.acknowledge("r1", Acknowledgement(8, 8), session=session)
    assert one.primary.replicated_lsn(AckN(1)) == 8


@virtual
async def test_what_the_copy_before_acknowledges_frees_nothing_of_the_one_to_come() -> None:
    one = await leader()
    one.wal.append(20)
    session = (await one.service.register("r1", 0)).session
    await one.service.begin_bootstrap("r1", image_lsn=12, session=session)
    await one.service.acknowledge("r1", Acknowledgement(20, 20), session=session)
    assert await one.primary.prune_retained_wal_through(20) == 12
    await one.service.complete_bootstrap("r1", 12, session=session)
    assert (await one.service.pull("r1", 12, session=session)).through_lsn == 20


@virtual
async def test_a_copy_counts_for_what_it_has_and_not_for_what_the_one_before_had() -> None:
    one = await leader()
    one.wal.append(20)
    await one.service.register("r1", 0)
    await one.service.acknowledge("r1", Acknowledgement(20, 20))
    await one.service.begin_bootstrap("r1", image_lsn=12)
    await one.service.complete_bootstrap("r1", 12)
    await one.service.acknowledge("r1", Acknowledgement(12, 12))
    assert one.primary.replicated_lsn(AckN(1)) == 12
    assert one.primary.retention.slots.wanted_floor_lsn() == 12, "a new generation, further back"


@virtual
async def test_a_bootstrap_without_an_image_takes_the_whole_log_while_there_is_one() -> None:
    one = await leader()
    one.wal.append(5)
    await one.service.register("r1", 5)
    begun = await one.service.begin_bootstrap("r1")
    assert (begun.after_lsn, begun.current_lsn) == (0, 5)

    late = await leader(wal=MemoryWal(first_lsn=50))
    late.wal.append(5)
    await late.service.register("r1", 0)
    with pytest.raises(Refused, match="begins at LSN 50"):
        await late.service.begin_bootstrap("r1")
    with pytest.raises(Refused, match="records 41 to 49"):
        await late.service.begin_bootstrap("r1", image_lsn=40)
    with pytest.raises(NotFound):
        await late.service.begin_bootstrap("stranger", image_lsn=49)


@virtual
async def test_a_copy_that_took_too_long_is_taken_if_the_log_goes_on_from_it() -> None:
    one, session = await with_a_lost_slot()
    await one.service.begin_bootstrap("r1", image_lsn=7, session=session)
    one.wal.append(9)
    one.archive()
    one.primary.retention.enforce_limits()
    assert not one.slot("r1").is_valid, "its limits hold for a bootstrap, too"
    await one.service.complete_bootstrap("r1", 17, session=session)
    assert one.slot("r1").is_valid


@virtual
async def test_a_copy_that_the_log_does_not_continue_is_refused() -> None:
    one, session = await with_a_lost_slot()
    await one.service.begin_bootstrap("r1", image_lsn=7, session=session)
    one.wal.append(9)
    await one.primary.prune_retained_wal_through(17)
    with pytest.raises(Refused, match="from a newer image"):
        await one.service.complete_bootstrap("r1", 7, session=session)
    assert not one.slot("r1").is_valid
