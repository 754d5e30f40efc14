"""A replica's copy of the log that begins in the tier and goes on from the leader's log."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

from headwater.core import runtime
from headwater.log import Group, LogCopies, LogCopy, Replica, Spool, range_hash
from headwater.log.replica import ReplicaPhase
from headwater.store import MemoryBackend, Store
from headwater.testing import MemoryWal, Simulation, simulate
from headwater.testing.disk import CrashKind, FaultyDisk
from headwater.tier import TopicIdPartition
from headwater.tier.eventlog import InProcessEventLog
from headwater.tier.jobs import Leader, LedPartition, LogStartRegister, TierConfig, TierManager
from headwater.tier.jobs.retention import unlist_below_log_start
from headwater.tier.reader import LogReader, TierArchive
from headwater.tier.segments import ObjectCache, ObjectStorage, ParquetSegments
from tests.log import leaders
from tests.log.leaders import STREAM, STREAM_ID
from tests.log.replica.given import copied, fails, reaches, standby
from tests.store.scripted import virtual
from tests.tier.jobs.followed import FollowedPartition
from tests.tier.jobs.sealed_wal import SealedWal
from tests.tier.segments.given import lost, lsns, orders

ORDERS = TopicIdPartition(uuid.UUID(STREAM_ID), STREAM, 0)
FAR = 1 << 40
HOUR_MS = 3_600_000
Hook = Callable[[Group], Awaitable[None]]


class Watched(TierArchive):
    """An archive in the middle of which a test does something."""

    on_group: Hook | None = None
    reads = 0

    async def read(self, first_lsn: int, end_lsn: int) -> AsyncGenerator[Group, None]:
        self.reads += 1
        async for group in super().read(first_lsn, end_lsn):
            yield group
            if self.on_group is not None:
                await self.on_group(group)


class Tiered:
    """A leader that keeps slots, and copies its log to the tier."""

    def __init__(self, primary: leaders.Leader, wal: SealedWal, config: TierConfig) -> None:
        self.leader = primary
        self.wal = wal
        self.groups: list[Group] = []
        self._store = primary.store
        self._events = InProcessEventLog(1)
        self.tier = TierManager(
            LedPartition(
                Leader(ORDERS, 1, 1, committed_lsn=wal.current_lsn, slot_floor_lsn=lambda: FAR),
                metadata=FollowedPartition(self._events, ORDERS),
                storage=ParquetSegments(self._store, ORDERS),
                local=wal,
                log_start=LogStartRegister(self._store, ORDERS),
                config=config,
            )
        )

    @classmethod
    async def made(cls, **config: Any) -> Tiered:
        """With LSNs 1 to 100 in the tier, of which 1 to 30 were given up, and 101 to 107 not."""
        wal = SealedWal()
        primary = await leaders.leader(wal=wal, store=Store(MemoryBackend()))
        # What the log is pruned of goes by its slots, and not by the jobs alone.
        kept = TierConfig(merge_below_bytes=0, local_retention_bytes=FAR, **config)
        made = cls(primary, wal, kept)
        for _ in range(5):
            made.write(20)
        await made.copy()
        await made.give_up(31)
        await made.prune()
        made.write(7)
        return made

    def write(self, count: int) -> None:
        """A sealed part of the log, some of it lost."""
        first = self.wal.current_lsn() + 1
        self.groups.append(self.wal.append_group(orders(first, count - 2)))
        self.groups.append(self.wal.append_group(lost(first + count - 2, first + count - 1)))
        self.wal.seal()

    async def copy(self) -> None:
        """Everything that is written goes to the tier."""
        await self.tier.run_once()
        assert not self.tier.problems

    async def give_up(self, first_lsn: int) -> None:
        """The log begins here from now on."""
        await self.tier.led.move_log_start(first_lsn)
        await unlist_below_log_start(self.tier.led)

    async def prune(self) -> None:
        """The log goes, as far as it is in the tier and no slot needs it."""
        tiered_lsn = self.tier.led.tiered_lsn()
        await self.leader.primary.prune_retained_wal_through(tiered_lsn)

    def archive(self, parallel: int = 4) -> Watched:
        """As a replica sees it, which hears of nothing by itself."""
        storage = ObjectStorage(self._store, ObjectCache())
        cover = FollowedPartition(self._events, ORDERS).refreshed_cover
        start = LogStartRegister(self._store, ORDERS)
        return Watched("the tier", LogReader(storage, cover, start.first_lsn, parallel=parallel))

    async def replica(self, disk: FaultyDisk, archive: Watched | None = None) -> Replica:
        kind = LogCopies(disk=disk, archive=archive or self.archive())
        return await standby(self.leader.service, disk, targets=kind)

    async def check(self, replica: Replica, first_lsn: int, last_lsn: int) -> None:
        """A copy is the log from the one LSN to the other."""
        found = await copied(replica)
        wanted = [part for one in self.groups if (part := one.between(first_lsn, last_lsn))]
        assert lsns(found) == list(range(first_lsn, last_lsn + 1))
        assert range_hash(found) == range_hash(wanted)
        assert spool(replica).oldest_lsn() == first_lsn


def spool(replica: Replica) -> Spool:
    assert isinstance(replica.target, LogCopy)
    return replica.target.spool


@virtual
async def test_a_copy_begins_at_the_log_start_and_goes_on_from_the_log_without_a_gap() -> None:
    place = await Tiered.made()
    assert place.wal.oldest_lsn() == 101
    disk = FaultyDisk()
    replica = await place.replica(disk)
    await reaches(replica, 107)
    await place.check(replica, 31, 107)
    await runtime.sleep(1)
    assert replica.metrics.bootstraps == {"image": 1}
    assert place.leader.slot("r1").is_valid
    place.write(5)
    await reaches(replica, 112)
    await replica.close()
    # What it has is what it goes on from.
    archive = place.archive()
    replica = await place.replica(disk, archive)
    place.write(5)
    await reaches(replica, 117)
    await place.check(replica, 31, 117)
    assert archive.reads == 0
    await replica.close()


@virtual
async def test_with_neither_tier_nor_the_beginning_of_the_log_it_refuses_and_says_why() -> None:
    place = await Tiered.made()
    replica = await standby(place.leader.service, FaultyDisk())
    await fails(replica, "the log begins at LSN 101, and without an image")
    await replica.close()
    for segment in place.tier.led.metadata.state().segments_in(0, 1 << 62):
        await place.tier.led.unlist(segment)
    replica = await place.replica(FaultyDisk())
    await fails(replica, "the log begins at LSN 101, and the image ends at 30")
    assert replica.target.applied_lsn == 0
    await replica.close()


@virtual
async def test_a_tier_that_does_not_reach_the_log_is_not_begun_from() -> None:
    place = await Tiered.made()
    await place.tier.led.unlist(place.tier.led.metadata.state().segments_in(0, 1 << 62)[-2])
    replica = await place.replica(FaultyDisk())
    await fails(replica, "the image ends at 60: records 61 to 100 are in neither")
    await replica.close()


@virtual
async def test_where_all_before_the_log_was_given_up_a_copy_begins_with_the_log() -> None:
    place = await Tiered.made()
    await place.give_up(101)
    assert not place.tier.led.metadata.state().cover(0, FAR)
    replica = await place.replica(FaultyDisk())
    await reaches(replica, 107)
    await place.check(replica, 101, 107)
    await replica.close()


@virtual
async def test_the_log_is_kept_from_where_the_copy_will_go_on() -> None:
    place = await Tiered.made()
    archive = place.archive()

    async def prune(_: Group) -> None:
        place.write(9)
        await place.copy()
        await place.prune()

    archive.on_group = prune
    replica = await place.replica(FaultyDisk(), archive)
    await reaches(replica, 107)
    assert place.wal.oldest_lsn() == 101
    last_lsn = place.wal.current_lsn()
    assert last_lsn > 140
    await reaches(replica, last_lsn)
    await place.check(replica, 31, last_lsn)
    await replica.close()


@virtual
async def test_what_is_expired_meanwhile_is_read_as_long_as_its_objects_stay() -> None:
    place = await Tiered.made(delete_delay_ms=24 * HOUR_MS)
    archive = place.archive(parallel=1)

    async def expire(group: Group) -> None:
        if group.first_lsn == 31:
            await place.give_up(81)
            await runtime.sleep(23 * 3600)
            await place.copy()

    archive.on_group = expire
    replica = await place.replica(FaultyDisk(), archive)
    await runtime.sleep(23 * 3600)
    await reaches(replica, 107)
    await place.check(replica, 31, 107)
    assert archive.reads == 1
    await replica.close()


@virtual
async def test_where_they_are_gone_it_begins_again_at_the_later_log_start() -> None:
    place = await Tiered.made(delete_delay_ms=HOUR_MS)
    archive = place.archive(parallel=1)

    async def expire(group: Group) -> None:
        if group.first_lsn == 31:
            await place.give_up(81)
            await runtime.sleep(2 * 3600)
            await place.copy()

    archive.on_group = expire
    replica = await place.replica(FaultyDisk(), archive)
    await runtime.sleep(2 * 3600)
    await fails(replica, "the tier cannot be read, and is tried again")
    await reaches(replica, 107)
    await place.check(replica, 81, 107)
    assert archive.reads == 2
    await replica.close()


@pytest.mark.parametrize("kind", CrashKind)
@pytest.mark.parametrize("at_lsn", [31, 61, 100])
def test_a_crash_in_the_middle_leaves_nothing_that_counts(kind: CrashKind, at_lsn: int) -> None:
    async def main(simulation: Simulation) -> None:
        place = await Tiered.made()
        disk, archive, process = FaultyDisk(), place.archive(), simulation.process("replica")

        async def die(group: Group) -> None:
            if group.first_lsn <= at_lsn <= group.last_lsn:
                disk.crash()
                process.kill()
                await runtime.sleep(1)

        archive.on_group = die
        process.spawn(place.replica(disk, archive))
        while process.alive:
            await runtime.sleep(1)
        disk = disk.after_crash(random.Random(at_lsn), kind)
        # The world goes on meanwhile.
        place.write(20)
        await place.copy()
        await place.give_up(51)
        await place.prune()
        replica = await place.replica(disk)
        await reaches(replica, 127)
        await place.check(replica, 51, 127)
        await replica.close()

    simulate(main, seed=at_lsn, stall_max_s=0)


@virtual
async def test_a_tier_with_other_records_than_the_log_is_found_out() -> None:
    place = await Tiered.made()
    wal = MemoryWal(first_lsn=91)
    wal.append(17)
    other = await leaders.leader(wal=wal)
    disk = FaultyDisk()
    archive = place.archive()
    kind = LogCopies(disk=disk, archive=archive)
    replica = await standby(other.service, disk, targets=kind)
    await fails(replica, "the log begins at LSN 91, and without an image")
    # Not what lies below the log, either: nobody could compare it.
    await runtime.sleep(300)
    assert replica.phase is not ReplicaPhase.FOLLOWING
    assert replica.target.applied_lsn == 0
    assert replica.metrics.bootstraps["image"] == 0
    # It is looked at again when somebody may have mended it, and not all the time.
    assert archive.reads == 1
    await runtime.sleep(600)
    assert archive.reads == 2
    await replica.close()
