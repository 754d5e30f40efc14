"""Copies that were replaced, and those who still read them."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest

from headwater.core import runtime
from headwater.log import Bookmark, LogCopies
from headwater.testing import MemoryWal
from headwater.testing.disk import FaultyDisk
from tests.log.leaders import leader
from tests.log.replica.given import (
    Tampering,
    copied,
    reaches,
    replica_disk,
    standby,
)
from tests.store.scripted import virtual


@virtual
async def test_a_reader_that_is_stopped_while_it_leaves_a_copy_is_in_nobodys_way() -> None:
    one = await leader()
    one.wal.append(10)
    replica = await standby(one.service, FaultyDisk())
    await reaches(replica, 10)
    await replica.close()
    replica = await standby(one.service, replica_disk(replica), start=False)

    async def stopped(self: LogCopies, path: str) -> None:
        raise asyncio.CancelledError

    reading = replica.reading()
    await reading.__aenter__()
    await replica.rebootstrap()
    with mock.patch.object(LogCopies, "discard", stopped), pytest.raises(asyncio.CancelledError):
        await reading.__aexit__(None, None, None)
    await replica.rebootstrap()
    assert sum(map(len, await copied(replica))) == 10
    await replica.close()


@virtual
async def test_a_reader_that_outlives_its_replica_removes_nothing_of_the_next_ones() -> None:
    one = await leader()
    one.wal.append(10)
    replica = await standby(one.service, FaultyDisk())
    await reaches(replica, 10)
    await replica.close()
    disk = replica_disk(replica)
    replica = await standby(one.service, disk, start=False)
    reading = replica.reading()
    await reading.__aenter__()
    await replica.rebootstrap()
    await replica.close()
    following = await standby(one.service, disk, start=False)
    await following.rebootstrap()
    assert sum(map(len, await copied(following))) == 10, "in the folder that was read"
    await reading.__aexit__(None, None, None)
    await following.close()
    following = await standby(one.service, disk, start=False)
    assert following.target.applied_lsn == 10
    await following.close()


@virtual
async def test_a_replica_is_closed_only_when_nothing_is_removed_any_more() -> None:
    one = await leader()
    one.wal.append(10)
    replica = await standby(one.service, FaultyDisk())
    await reaches(replica, 10)
    await replica.close()
    disk = replica_disk(replica)
    replica = await standby(one.service, disk, start=False)
    discard, removed = LogCopies.discard, asyncio.Event()

    async def slowly(self: LogCopies, path: str) -> None:
        await runtime.sleep(60.0)
        await discard(self, path)
        removed.set()

    reading = replica.reading()
    await reading.__aenter__()
    await replica.rebootstrap()
    with mock.patch.object(LogCopies, "discard", slowly):
        leaving = runtime.spawn(reading.__aexit__(None, None, None), name="leave")
        await runtime.sleep(1.0)
        leaving.cancel()
        await replica.close()
    assert removed.is_set()


@virtual
async def test_a_copy_of_a_new_leaders_log_is_never_read_as_one_of_the_old_leaders() -> None:
    old = await leader(epoch=3)
    old.wal.append(10)
    source = Tampering(old.service)
    replica = await standby(source, FaultyDisk(), wait_s=1.0)
    await reaches(replica, 10)
    await replica.close()
    replica = await standby(source, replica_disk(replica), start=False)
    await replica.rebootstrap()
    assert replica.bookmark == Bookmark(3, 10)
    new = await leader(wal=MemoryWal(), store=old.store, epoch=4)
    new.wal.append(10)
    source.to = new.service
    discard, seen = LogCopies.discard, list[Bookmark]()

    async def looked_at(self: LogCopies, path: str) -> None:
        seen.append(replica.bookmark)
        await discard(self, path)

    with mock.patch.object(LogCopies, "discard", looked_at):
        await replica.rebootstrap()
    assert replica.bookmark == Bookmark(4, 10)
    assert seen[-1] == Bookmark(4, 10), "while the one before it is removed"
    await replica.close()
