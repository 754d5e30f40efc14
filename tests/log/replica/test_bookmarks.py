"""Reading by bookmark: wait for what was seen elsewhere, or go elsewhere."""

from __future__ import annotations

import pytest

from headwater.core import runtime
from headwater.core.errors import Refused
from headwater.log import Bookmark, GoElsewhere
from headwater.testing import MemoryWal
from headwater.testing.disk import FaultyDisk
from tests.log.leaders import leader
from tests.log.replica.given import Tampering, reaches, standby
from tests.store.scripted import virtual


def test_a_bookmark_is_a_term_and_an_lsn() -> None:
    assert str(Bookmark(7, 120)) == "7:120"
    assert Bookmark.parse(" 7:120 ") == Bookmark(7, 120)
    assert Bookmark(7, 120) < Bookmark(8, 1)
    for wrong in ("", "7", "7:", ":7", "a:1", "1:-2", "1:2:3", "²:1"):
        with pytest.raises(Refused, match="7:120"):
            Bookmark.parse(wrong)


@virtual
async def test_a_reader_waits_for_what_it_has_seen_elsewhere() -> None:
    one = await leader(epoch=3)
    replica = await standby(one.service, FaultyDisk())
    await runtime.sleep(1.0)
    began_s = runtime.monotonic_s()

    async def read() -> int:
        async with replica.reading(Bookmark(3, 5)) as target:
            return target.applied_lsn

    reading = runtime.spawn(read(), name="reader")
    await runtime.sleep(2.0)
    assert not reading.done()
    one.wal.append(7)
    assert await reading == 7
    assert 2.0 <= runtime.monotonic_s() - began_s < 2.5
    assert replica.bookmark == Bookmark(3, 7)
    assert len(replica.readers) == 0
    await replica.close()


@virtual
async def test_a_reader_that_cannot_be_served_in_time_goes_elsewhere() -> None:
    one = await leader(epoch=3)
    one.wal.append(4)
    replica = await standby(one.service, FaultyDisk())
    await reaches(replica, 4)
    with pytest.raises(GoElsewhere, match=r"is at 3:4 and is not at 3:9 after 2\.0 s") as caught:
        await replica.wait_for(Bookmark(3, 9), timeout_s=2.0)
    assert (caught.value.bookmark, caught.value.at) == (Bookmark(3, 9), Bookmark(3, 4))
    with pytest.raises(GoElsewhere):
        await replica.wait_for(Bookmark(3, 5), timeout_s=0.0)
    assert await replica.wait_for(Bookmark(3, 4), timeout_s=0.0) == Bookmark(3, 4)
    assert replica.metrics.reads_sent_elsewhere == 2

    waiting = runtime.spawn(replica.wait_for(Bookmark(3, 9), timeout_s=1e6), name="reader")
    await runtime.sleep(1.0)
    await replica.close()
    with pytest.raises(GoElsewhere, match="stopped"):
        await waiting


@virtual
async def test_a_bookmark_of_a_new_leader_waits_until_that_leader_was_heard_of() -> None:
    wal = MemoryWal()
    old = await leader(wal=wal, epoch=3)
    wal.append(9)
    source = Tampering(old.service)
    replica = await standby(source, FaultyDisk(), wait_s=1.0)
    await reaches(replica, 9)
    assert await replica.wait_for(Bookmark(3, 9)) == Bookmark(3, 9)
    with pytest.raises(GoElsewhere):
        await replica.wait_for(Bookmark(4, 9), timeout_s=5.0)
    new = await leader(wal=wal, store=old.store, epoch=4)
    source.to = new.service
    assert await replica.wait_for(Bookmark(4, 9), timeout_s=30.0) == Bookmark(4, 9)
    assert await replica.wait_for(Bookmark(3, 9), timeout_s=0.0) == Bookmark(4, 9), (
        "records keep their LSNs, whoever leads"
    )
    await replica.close()


@virtual
async def test_a_copy_that_was_found_in_no_leaders_log_yet_vouches_for_nothing() -> None:
    one, disk = await leader(epoch=3), FaultyDisk()
    one.wal.append(5)
    replica = await standby(one.service, disk)
    await reaches(replica, 5)
    await replica.close()
    replica = await standby(one.service, disk, start=False)
    assert replica.bookmark == Bookmark(0, 0), "whoever takes it along asks for nothing by it"
    with pytest.raises(GoElsewhere):
        await replica.wait_for(Bookmark(0, 5), timeout_s=1.0)
    replica.start()
    assert await replica.wait_for(Bookmark(0, 5)) == Bookmark(3, 5)
    assert replica.bookmark == Bookmark(3, 5)
    await replica.close()


@virtual
async def test_a_time_that_is_none_is_not_waited_for() -> None:
    one = await leader()
    one.wal.append(1)
    replica = await standby(one.service, FaultyDisk())
    for timeout_s in (float("nan"), -1.0):
        with pytest.raises(Refused, match="timeout_s"):
            await replica.wait_for(Bookmark(1, 9), timeout_s=timeout_s)
    await replica.close()
