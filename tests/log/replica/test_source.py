"""What goes wrong at the source, or on the way to it, is told and tried again."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headwater.core.errors import Bug, Damaged
from headwater.log import Spool, SpoolConfig
from headwater.log.primary.service import PullResponse
from headwater.log.replica.contract import ReplicaPhase
from headwater.testing import MemoryWal
from headwater.testing.disk import FaultyDisk
from tests.log.given import segment_path
from tests.log.leaders import leader
from tests.log.replica.given import Tampering, fails, reaches, standby
from tests.store.scripted import virtual


@pytest.mark.parametrize(
    "error", [ConnectionResetError("peer reset"), Damaged("LSN 14"), Bug("odd"), KeyError("wire")]
)
def test_whatever_a_source_raises_is_told_and_asked_again(error: Exception) -> None:
    @virtual
    async def run() -> None:
        one = await leader()
        one.wal.append(3)
        source = Tampering(one.service)

        def fail(pulled: PullResponse) -> PullResponse:
            raise error

        source.on_pull = fail
        async with await standby(source, FaultyDisk(), wait_s=1.0) as replica:
            await fails(replica, "the source failed, and is tried again")
            source.on_pull = lambda pulled: pulled
            await reaches(replica, 3)
            assert replica.problem is None

    run()


def rewrite(disk: FaultyDisk, path: str, data: bytes) -> None:
    with disk.open(path, write=True) as file:
        file.truncate(0)
        file.append(data)
        file.sync()


@virtual
async def test_damage_on_the_leader_stops_a_replica_before_it_and_only_until_it_is_mended() -> None:
    disk = FaultyDisk()
    config = SpoolConfig(segment_bytes=500, tail_bytes=1)
    spool = Spool.open("/leader", config=config, disk=disk)
    for number in range(20):
        value = pa.array([b"record %d" % number], pa.binary())
        await spool.append(pa.record_batch({"_value": value}), term=1)
    segment = spool.segments()[2]
    path = segment_path(spool, segment)
    with disk.open(path) as file:
        whole = file.read_at(0, file.stat().size_bytes)
    await spool.close()
    rewrite(disk, path, whole[:-9] + bytes(9))
    damaged = Spool.open("/leader", config=config, disk=disk)
    assert (await damaged.read_since(0))[-1].last_lsn >= segment.first_lsn - 1
    one = await leader(wal=damaged)  # type: ignore[arg-type]
    async with await standby(one.service, FaultyDisk(), wait_s=1.0) as replica:
        await fails(replica, "the source failed, and is tried again")
        assert replica.target.applied_lsn >= segment.first_lsn - 1
        assert replica.phase is not ReplicaPhase.STOPPED
        rewrite(disk, path, whole)
        await reaches(replica, 20)


@virtual
async def test_a_replica_that_cannot_begin_says_how_far_it_is_behind() -> None:
    wal = MemoryWal(first_lsn=51)
    wal.append(50)
    one = await leader(wal=wal)
    async with await standby(one.service, FaultyDisk(), wait_s=1.0) as replica:
        await fails(replica, "begins at LSN 51")
        assert replica.status().lag_lsn == 100
