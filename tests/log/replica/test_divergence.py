"""Another record under the same LSN: the replica stops, says so, and begins anew when told to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headwater.core.errors import Refused
from headwater.log import Bookmark, Diverged, GoElsewhere
from headwater.log.replica.contract import ReplicaPhase
from headwater.testing import MemoryWal
from headwater.testing.disk import FaultyDisk
from tests.log.leaders import Leader, leader, memory_store
from tests.log.replica.given import (
    Tampering,
    another,
    copied,
    fails,
    is_prefix,
    keyed,
    keyed_states,
    reaches,
    rows,
    standby,
)
from tests.store.scripted import virtual


async def diverged(disk: FaultyDisk) -> tuple[Leader, Tampering]:
    """A replica of a leader that is followed by one with another record under LSN 5."""
    first = await leader(epoch=1)
    first.wal.append(4)
    wrong = another(first.wal.append(1))
    source = Tampering(first.service)
    replica = await standby(source, disk, wait_s=1.0)
    await reaches(replica, 5)
    wal = MemoryWal()
    wal.append(4)
    wal.append_group(wrong)
    wal.append(3)
    second = await leader(wal=wal, store=first.store, epoch=2)
    source.to = second.service
    await fails(replica, "another record under LSN 5")
    assert replica.status().phase is ReplicaPhase.DIVERGED
    assert replica.target.applied_lsn == 5, "nothing more is applied"
    assert replica.metrics.divergences == 1
    assert second.replica("r1").divergence_count == 1, "and the leader knows"
    assert not second.replica("r1").is_counted
    await replica.close()
    return second, source


@virtual
async def test_two_leaders_are_compared_and_another_record_stops_the_replica() -> None:
    await diverged(FaultyDisk())


@virtual
async def test_a_diverged_replica_stays_so_after_a_restart_and_can_be_looked_at() -> None:
    disk = FaultyDisk()
    _, source = await diverged(disk)
    replica = await standby(source, disk, start=False)
    with pytest.raises(Diverged, match="LSN 5") as caught:
        await replica.run()
    assert caught.value.lsn == 5
    assert sum(map(len, await copied(replica))) == 5
    with pytest.raises(GoElsewhere, match="other records"):
        await replica.wait_for(Bookmark(1, 1))
    await replica.close()


@virtual
async def test_a_diverged_replica_begins_anew_when_told_to() -> None:
    disk = FaultyDisk()
    second, source = await diverged(disk)
    replica = await standby(source, disk, start=False)
    with pytest.raises(Diverged):
        await replica.run()
    await replica.rebootstrap()
    assert (replica.status().phase, replica.problem) == (ReplicaPhase.STOPPED, None)
    assert replica.target.applied_lsn == 8
    assert await is_prefix(replica, second.wal)
    assert second.replica("r1").divergence_count == 0
    replica.start()
    second.wal.append(2)
    await reaches(replica, 10)
    with pytest.raises(Refused, match="is running"):
        await replica.rebootstrap()
    await replica.close()


@virtual
async def test_images_that_may_hold_what_diverged_are_not_begun_with() -> None:
    store, disk = memory_store(), FaultyDisk()
    one = await leader(store=store)
    good, right = rows(1, (b"a", 0, b"1")), rows(2, (b"a", 1, b"2"))
    one.wal.append_group(good)
    one.wal.append_group(right)
    source = Tampering(one.service)
    wrong = rows(2, (b"a", 1, b"wrong"))
    source.on_pull = lambda pulled: replace(
        pulled, groups=[wrong if group.first_lsn == 2 else group for group in pulled.groups]
    )
    kind = keyed_states(store, image_records=1)
    replica = await standby(source, disk, targets=kind, wait_s=1.0, max_records=1)
    await reaches(replica, 2)
    source.on_pull = lambda pulled: replace(pulled, groups=[good, right], through_lsn=2)
    await fails(replica, "another record under LSN 2")
    await replica.close()

    source.on_pull = lambda pulled: pulled
    replica = await standby(source, disk, targets=kind, start=False)
    await replica.rebootstrap()
    record = keyed(replica).get(b"a")
    assert record is not None
    assert record["_value"] == b"2"
    assert [image.lsn for image in await keyed_states(store).images()] == [1, 2], (
        "the wrong one is gone"
    )
    await replica.close()
    replica = await standby(source, disk, targets=keyed_states(store), start=False)
    record = keyed(replica).get(b"a")
    assert record is not None
    assert record["_value"] == b"2"
    await replica.close()
