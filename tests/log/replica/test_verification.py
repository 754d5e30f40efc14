"""A copy is found again in its leader's log, by hash, before it takes anything after its end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from headwater.core import runtime
from headwater.log import (
    AckN,
    Bookmark,
    CommitUnknown,
    GoElsewhere,
    Group,
    LogCopy,
    PrimaryService,
    Replica,
    Spool,
    SpoolConfig,
)
from headwater.log.replica.contract import ReplicaPhase
from headwater.testing import MemoryWal
from headwater.testing.disk import CrashKind, FaultyDisk
from tests.log.leaders import Leader, leader
from tests.log.replica.given import (
    Tampering,
    fails,
    is_prefix,
    keyed_states,
    reaches,
    rows,
    standby,
)
from tests.store.scripted import virtual


def others(first_lsn: int, last_lsn: int) -> Group:
    """Records that the first leader never wrote."""
    values = pa.array([b"other %d" % lsn for lsn in range(first_lsn, last_lsn + 1)], pa.binary())
    return Group(2, first_lsn, last_lsn, pa.record_batch({"_value": values}))


async def shorter_successor(first: Leader, through_lsn: int) -> Leader:
    """The next leader; its log ends where the first one's was synced."""
    wal = MemoryWal()
    wal.append(through_lsn)
    return await leader(wal=wal, store=first.store, epoch=2)


async def followed(disk: FaultyDisk, **config: Any) -> tuple[Leader, Tampering, Replica]:
    """A leader of ten records and a copy of all of them, which its stored slot knows."""
    first = await leader(epoch=1)
    source = Tampering(first.service)
    replica = await standby(source, disk, wait_s=1.0, **config)
    first.wal.append(10)
    await reaches(replica, 10)
    await runtime.sleep(10.0)
    assert first.slot("r1").restart_lsn == 10
    await first.primary.slot_writer.wait_stored()
    return first, source, replica


@virtual
async def test_a_leader_that_lost_its_end_and_writes_other_records_there_is_noticed() -> None:
    first, source, replica = await followed(FaultyDisk())
    second = await shorter_successor(first, 5)
    source.to = second.service
    await fails(replica, "the log ends at LSN 5, and this copy at 10")
    assert second.slot("r1").restart_lsn == 5
    second.wal.append_group(others(6, 6))
    with pytest.raises(CommitUnknown):
        await second.primary.wait_committed(6, policy=AckN(1), timeout_s=5.0)
    await fails(replica, "another record under LSN 6")
    second.wal.append_group(others(7, 12))
    assert replica.phase is ReplicaPhase.DIVERGED
    assert replica.target.applied_lsn == 10, "nothing was taken after them"
    await replica.close()


@virtual
async def test_a_leader_that_derives_the_same_records_again_is_waited_for_and_followed() -> None:
    first, source, replica = await followed(FaultyDisk(), max_records=2)
    second = await shorter_successor(first, 5)
    source.to = second.service
    await fails(replica, "it waits until the log is there")
    second.wal.append(7)
    await reaches(replica, 12)
    assert replica.metrics.records_compared == 10
    assert await is_prefix(replica, second.wal)
    assert replica.problem is None
    await replica.close()


@virtual
async def test_a_leader_that_went_on_meanwhile_is_compared_with_all_that_it_wrote_anew() -> None:
    disk = FaultyDisk()
    first, source, replica = await followed(disk, compare_records=1)
    await replica.close()
    second = await shorter_successor(first, 5)
    second.wal.append_group(others(6, 9))
    second.wal.append(3)  # its LSN 10 is the same again
    assert await second.primary.prune_retained_wal_through(12) == 5
    source.to = second.service
    replica = await standby(source, disk, compare_records=1)
    await fails(replica, "another record under LSN 6")
    await replica.close()


@virtual
async def test_the_last_records_are_compared_also_where_the_slot_knows_all_of_them() -> None:
    first, source, replica = await followed(FaultyDisk())
    wal = MemoryWal()
    wal.append(7)
    wal.append_group(others(8, 12))
    second = await leader(wal=wal, store=first.store, epoch=2)
    assert second.slot("r1").restart_lsn == 10
    source.to = second.service
    await fails(replica, "another record under LSN 8")
    await replica.close()


@virtual
async def test_what_a_copy_says_of_itself_is_not_what_its_slot_knows() -> None:
    disk = FaultyDisk()
    _, _, replica = await followed(disk)
    await replica.close()
    wal = MemoryWal()
    wal.append(2)
    wal.append_group(others(3, 3))
    wal.append(9)
    stranger = await leader(wal=wal, epoch=2)
    replica = await standby(stranger.service, disk, compare_records=1)
    await fails(replica, "another record under LSN 3")
    await replica.close()


@virtual
async def test_what_is_not_compared_is_not_shown_to_readers_of_the_new_leader() -> None:
    first, source, replica = await followed(FaultyDisk())
    second = await shorter_successor(first, 5)
    source.to = second.service
    await fails(replica, "it waits until the log is there")
    with pytest.raises(GoElsewhere):
        await replica.wait_for(Bookmark(2, 6), timeout_s=5.0)
    assert (await replica.wait_for(Bookmark(2, 5), timeout_s=5.0)).lsn == 10
    assert await replica.wait_for(Bookmark(1, 10), timeout_s=5.0) == Bookmark(1, 10)
    second.wal.append(5)
    assert await replica.wait_for(Bookmark(2, 10), timeout_s=30.0) == Bookmark(2, 10)
    await replica.close()


@virtual
async def test_an_answer_that_leaves_out_what_is_to_be_compared_is_a_gap() -> None:
    first, source, replica = await followed(FaultyDisk())
    wal = MemoryWal()
    for _ in range(12):
        wal.append(1)
    second = await leader(wal=wal, store=first.store, epoch=2)
    source.on_pull = lambda pulled: replace(pulled, groups=pulled.groups[4:])
    source.to = second.service
    await fails(replica, "was sent next")
    assert replica.target.applied_lsn == 10
    source.on_pull = lambda pulled: pulled
    await reaches(replica, 12)
    await replica.close()


@virtual
async def test_nothing_is_handed_out_that_a_power_loss_could_take_back() -> None:
    disk = FaultyDisk()
    spool = Spool.open("/leader", config=SpoolConfig(sync="none"), disk=disk)
    one = await leader(wal=spool)  # type: ignore[arg-type]
    session = (await one.service.register("r1", 0)).session
    batch = pa.record_batch({"_value": pa.array([b"a", b"b"], pa.binary())})
    await spool.append(batch, term=1)
    assert spool.synced_lsn == 0
    pulled = await PrimaryService(one.primary).pull("r1", 0, session=session)
    assert pulled.through_lsn == 2
    disk.crash()
    after = disk.after_crash(runtime.random(), CrashKind.POWER_LOSS)
    assert Spool.open("/leader", disk=after).current_lsn() == 2


@virtual
async def test_a_keyed_state_is_compared_by_the_hashes_in_its_image() -> None:
    first = await leader(epoch=1)
    disk, states = FaultyDisk(), keyed_states(first.store, image_records=1)
    source = Tampering(first.service)
    replica = await standby(source, disk, targets=states, wait_s=1.0)
    first.wal.append_group(rows(1, (b"a", 0, b"1"), (b"b", 0, b"2"), (b"a", 2, None)))
    await reaches(replica, 3)
    await runtime.sleep(10.0)
    assert first.slot("r1").restart_lsn == 3
    await replica.close()
    wal = MemoryWal()
    wal.append_group(rows(1, (b"a", 0, b"1"), (b"b", 0, b"2"), (b"b", 2, None), (b"c", 0, b"4")))
    second = await leader(wal=wal, store=first.store, epoch=2)
    source.to = second.service
    replica = await standby(source, disk, targets=keyed_states(first.store), wait_s=1.0)
    assert replica.target.applied_lsn == 3
    await fails(replica, "another record under LSN 3")
    await replica.close()


@virtual
async def test_a_copy_that_was_pruned_through_its_end_is_still_compared() -> None:
    one = await leader(epoch=1)
    one.wal.append(10)
    disk = FaultyDisk()
    replica = await standby(one.service, disk)
    await reaches(replica, 10)
    assert isinstance(replica.target, LogCopy)
    assert await replica.target.spool.prune_through(10) == 9, (
        "by its last record it is found in a log"
    )
    await replica.close()

    wal = MemoryWal()
    wal.append_group(others(1, 12))
    two = await leader(wal=wal, store=one.store, epoch=2)
    replica = await standby(two.service, disk)
    await fails(replica, "another record under LSN 10")
    await replica.close()
