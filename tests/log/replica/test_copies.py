"""Putting a fresh copy in the place of the old one, through crashes and disks that fail."""

from __future__ import annotations

import asyncio
import errno
import random
from typing import Any
from unittest import mock

import pytest

from headwater.core import runtime
from headwater.core.errors import DiskFailed, HeadwaterError, NoSpace, Refused
from headwater.log import ReplicationSource
from headwater.log.primary.service import AcknowledgeResponse
from headwater.log.replica.copies import SavedState, SavedStateFile
from headwater.testing import Process, Simulation, simulate
from headwater.testing.disk import CrashKind, FaultyDisk
from tests.log.leaders import leader
from tests.log.replica.given import PATH, Tampering, fails, is_prefix, reaches, standby
from tests.store.scripted import virtual


class Apart:
    """A source in a process of its own."""

    def __init__(self, process: Process, source: ReplicationSource) -> None:
        self._process = process
        self._source = source

    def __getattr__(self, name: str) -> Any:
        async def ask(*args: Any, **options: Any) -> Any:
            reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

            async def answer() -> None:
                try:
                    reply.set_result(await getattr(self._source, name)(*args, **options))
                except HeadwaterError as error:
                    reply.set_exception(error)

            self._process.spawn(answer())
            return await reply

        return ask


def test_a_crash_at_any_point_of_beginning_anew_leaves_one_whole_copy() -> None:
    async def main(simulation: Simulation) -> None:
        for moment in range(200):
            if await begins_anew_until(simulation, moment * 0.01, random.Random(moment)):
                return
        raise AssertionError("never came through")

    simulate(main, stall_max_s=0)


async def begins_anew_until(simulation: Simulation, after_s: float, chance: random.Random) -> bool:
    """A replica that begins anew when the power fails, and what is found; whether it was done."""
    one = await leader(epoch=2)
    one.wal.append(6)
    disk = FaultyDisk(seed=chance.getrandbits(32))
    replica = await standby(one.service, disk, max_records=4)
    await reaches(replica, 6)
    await replica.close()
    replica = await standby(one.service, disk, start=False, max_records=4)
    # Processes share no lock: the leader answers in one of its own.
    replica._link._source = Apart(simulation.process("leader"), one.service)
    process = simulation.process("replica")
    beginning = process.spawn(replica.rebootstrap())
    await runtime.sleep(after_s)
    done = beginning.done()
    process.kill()
    disk.crash()

    disk = disk.after_crash(chance)
    replica = await standby(one.service, disk, wait_s=1.0)
    assert (replica.target.applied_lsn, replica.term) == (6, 2)
    copies = [disk.list_dir(f"{PATH}/copy-{number}") for number in (1, 2)]
    assert [] in copies, "nothing is left of the other one"
    assert await is_prefix(replica, one.wal)
    one.wal.append(2)
    await reaches(replica, 8)
    assert await is_prefix(replica, one.wal)
    await runtime.sleep(5.0)
    assert one.slot("r1").is_valid
    assert not one.slot("r1").bootstrapping
    await replica.close()
    return done


@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE])
def test_a_disk_that_fails_at_the_swap_leaves_both_copies(error: int) -> None:
    @virtual
    async def run() -> None:
        one = await leader()
        one.wal.append(10)
        disk = FaultyDisk(seed=error)
        replica = await standby(one.service, disk)
        await reaches(replica, 10)
        await replica.close()
        replica = await standby(one.service, disk, start=False)
        write = SavedStateFile.write

        def fails(self: SavedStateFile, kept: SavedState) -> None:
            disk.fail_next("sync_dir", error)
            write(self, kept)

        with (
            mock.patch.object(SavedStateFile, "write", fails),
            pytest.raises(DiskFailed, match="may not survive"),
        ):
            await replica.rebootstrap()
        for kind in CrashKind:
            left = disk.after_crash(random.Random(error), kind)
            replica = await standby(one.service, left, start=False)
            assert await is_prefix(replica, one.wal)
            assert replica.target.applied_lsn == 10, "whichever counts has everything"
            await replica.close()

    run()


@virtual
async def test_a_full_disk_at_the_swap_leaves_the_old_copy_alone() -> None:
    one = await leader()
    one.wal.append(10)
    disk = FaultyDisk()
    replica = await standby(one.service, disk)
    await reaches(replica, 10)
    await replica.close()
    replica = await standby(one.service, disk, start=False)
    write = SavedStateFile.write

    def is_full(self: SavedStateFile, kept: SavedState) -> None:
        disk.fail_next("create", errno.ENOSPC)
        write(self, kept)

    with mock.patch.object(SavedStateFile, "write", is_full), pytest.raises(NoSpace):
        await replica.rebootstrap()
    assert disk.list_dir(f"{PATH}/copy-2") == [], "nothing is left of the fresh one"
    await replica.rebootstrap()
    assert await is_prefix(replica, one.wal)
    await replica.close()


@virtual
async def test_who_is_stopped_at_the_swap_knows_which_copy_counts() -> None:
    one = await leader()
    one.wal.append(10)
    disk = FaultyDisk()
    replica = await standby(one.service, disk)
    await reaches(replica, 10)
    await replica.close()
    replica = await standby(one.service, disk, start=False)
    write = SavedStateFile.write

    def cancels(self: SavedStateFile, kept: SavedState) -> None:
        beginning.cancel()
        write(self, kept)

    with mock.patch.object(SavedStateFile, "write", cancels):
        beginning = runtime.spawn(replica.rebootstrap(), name="rebootstrap")
        await asyncio.wait((beginning,))
    assert beginning.cancelled()
    assert await is_prefix(replica, one.wal)
    await replica.close()
    replica = await standby(one.service, disk, start=False)
    assert replica.target.applied_lsn == 10
    await replica.close()


@virtual
async def test_a_bootstrap_whose_end_was_not_heard_of_is_completed_by_the_next_life() -> None:
    one = await leader(max_lag_lsn=5)
    one.wal.append(9)

    class Deaf(Tampering):
        async def complete_bootstrap(self, *args: object, **options: object) -> AcknowledgeResponse:
            raise Refused("not now")

    disk = FaultyDisk()
    await one.service.register("r1", 0)
    one.archive()
    one.primary.retention.enforce_limits()
    replica = await standby(Deaf(one.service), disk)
    await fails(replica, "not now")
    await replica.close()
    assert one.slot("r1").bootstrapping
    replica = await standby(one.service, disk)
    await reaches(replica, 9)
    assert not one.slot("r1").bootstrapping
    await replica.close()
