"""Following, being made anew and closing exclude each other."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest

from headwater.core import runtime
from headwater.core.errors import Refused, Unavailable
from headwater.log import LogCopies, LogCopy, Replica
from headwater.testing.disk import FaultyDisk
from tests.log.leaders import Leader, leader
from tests.log.replica.given import is_prefix, reaches, standby
from tests.store.scripted import virtual


async def made_anew(disk: FaultyDisk) -> tuple[Leader, Replica, asyncio.Task[None]]:
    """A copy of ten records that is being made anew, and has to wait for its last five."""
    first, second = await leader(epoch=1), await leader(epoch=2)
    first.wal.append(10)
    replica = await standby(first.service, disk)
    await reaches(replica, 10)
    await replica.close()
    second.wal.append(5)
    replica = await standby(second.service, disk, start=False, wait_s=1.0)
    making = runtime.spawn(replica.rebootstrap(), name="rebootstrap")
    await runtime.sleep(10.0)
    assert not making.done()
    return second, replica, making


@virtual
async def test_nothing_else_is_begun_while_a_copy_is_made_anew() -> None:
    one, replica, making = await made_anew(FaultyDisk())
    with pytest.raises(Refused, match="is rebootstrapping: wait"):
        replica.start()
    with pytest.raises(Refused, match="is rebootstrapping: wait"):
        await replica.rebootstrap()
    with pytest.raises(Refused, match="is rebootstrapping: wait"):
        await replica.run()
    one.wal.append(5)
    await making
    replica.start()
    one.wal.append(2)
    await reaches(replica, 12)
    assert await is_prefix(replica, one.wal)
    await replica.close()


@virtual
async def test_the_folder_is_free_only_when_nothing_is_made_there_any_more() -> None:
    disk = FaultyDisk()
    one, replica, making = await made_anew(disk)
    discard = LogCopies.discard

    async def slowly(self: LogCopies, path: str) -> None:
        await runtime.sleep(60.0)
        await discard(self, path)

    with mock.patch.object(LogCopies, "discard", slowly):
        await replica.close()
    assert disk.list_dir("/standby/copy-2") == [], "what was begun is removed by who began it"
    with pytest.raises(Unavailable, match="was closed meanwhile"):
        await making
    following = await standby(one.service, disk, start=False)
    assert following.target.applied_lsn == 10
    await following.close()


@virtual
async def test_whoever_waits_for_it_and_is_stopped_stops_it() -> None:
    _, replica, making = await made_anew(FaultyDisk())
    making.cancel()
    await asyncio.wait((making,))
    assert making.cancelled()
    replica.start()
    await replica.close()


@virtual
async def test_one_that_runs_is_made_anew_after_it_was_opened_again() -> None:
    one, disk = await leader(), FaultyDisk()
    one.wal.append(3)
    replica = await standby(one.service, disk)
    replica.start()
    with pytest.raises(Refused, match="close it, open it again, and rebootstrap it before start"):
        await replica.rebootstrap()
    await asyncio.gather(replica.close(), replica.close())
    for refused in (replica.run, replica.rebootstrap):
        with pytest.raises(Refused, match="is closed: open it again"):
            await refused()
    with pytest.raises(Refused, match="is closed: open it again"):
        replica.start()
    replica = await standby(one.service, disk, start=False)
    await replica.rebootstrap()
    assert await is_prefix(replica, one.wal)
    await replica.close()


@virtual
async def test_a_replica_that_stops_over_a_mistake_of_its_target_leaves_no_stray_task() -> None:
    one = await leader(epoch=1)
    one.wal.append(1)
    replica = await standby(one.service, FaultyDisk(), start=False)
    with mock.patch.object(LogCopy, "apply", side_effect=RuntimeError("no such kernel")):
        replica.start()
        task = replica._task
        assert task is not None
        await asyncio.wait((task,))
    assert not task._log_traceback, "nobody else asks for it"
    assert "no such kernel" in (replica.problem or "")
    await replica.close()
