"""Beginning anew: from what is there, from an image, from the log, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headwater.core import runtime
from headwater.core.errors import Refused, Unavailable
from headwater.log import GoElsewhere, LogCopies, LogCopy, SpoolConfig
from headwater.log.primary.service import PullResponse
from headwater.log.primary.slot import InvalidationCause
from headwater.log.replica import follower
from headwater.log.replica.contract import Bookmark, ReplicaPhase
from headwater.testing import MemoryWal
from headwater.testing.disk import FaultyDisk
from tests.log.leaders import leader, memory_store
from tests.log.replica.given import (
    PATH,
    Tampering,
    copied,
    fails,
    is_prefix,
    keyed,
    keyed_states,
    reaches,
    replica_disk,
    rows,
    standby,
)
from tests.store.scripted import virtual


@virtual
async def test_with_neither_image_nor_the_beginning_of_the_log_it_refuses_and_says_why() -> None:
    one = await leader(wal=MemoryWal(first_lsn=50))
    one.wal.append(9)
    replica = await standby(one.service, FaultyDisk())
    await fails(replica, "the log begins at LSN 50, and without an image")
    assert replica.target.applied_lsn == 0
    assert replica.metrics.bootstraps_refused >= 1
    await replica.close()

    store = memory_store()
    two = await leader(wal=MemoryWal(first_lsn=50), store=store)
    two.wal.append(9)
    kind = keyed_states(store)
    replica = await standby(two.service, FaultyDisk(), targets=kind, start=False)
    with pytest.raises(Refused, match="LSN 50"):
        await replica.rebootstrap()
    await replica.close()


@virtual
async def test_a_slot_that_was_given_up_says_nothing_about_the_copy() -> None:
    one = await leader(max_lag_lsn=5)
    one.wal.append(8)
    disk = FaultyDisk()
    replica = await standby(one.service, disk)
    await reaches(replica, 8)
    await replica.close()
    one.wal.append(20)
    one.archive()
    assert one.primary.retention.enforce_limits() == [("r1", InvalidationCause.HORIZON)]
    source = Tampering(one.service)
    replica = await standby(source, disk)
    await reaches(replica, 28)
    assert replica.metrics.bootstraps == {"own": 1}
    assert replica.metrics.records_applied == 20, "only what it did not have"
    assert one.slot("r1").is_valid
    await runtime.sleep(300.0)
    assert source.bootstraps == 1, "once is enough"
    assert await is_prefix(replica, one.wal)
    await replica.close()


@virtual
async def test_a_keyed_state_begins_from_the_image_that_another_wrote() -> None:
    store = memory_store()
    one = await leader(store=store)
    for lsn in range(1, 21):
        one.wal.append_group(rows(lsn, (b"k%d" % (lsn % 3), 0, b"%d" % lsn)))
    kind = keyed_states(store, image_records=5)
    writer = await standby(one.service, FaultyDisk(), name="writer", targets=kind)
    await reaches(writer, 20)
    await writer.target.sync()
    await one.wal.prune_through(15)
    source = Tampering(one.service)
    disk = FaultyDisk()
    replica = await standby(source, disk, targets=keyed_states(store))
    one.wal.append_group(rows(21, (b"k0", 0, b"21")))
    await reaches(replica, 21)
    assert replica.metrics.records_applied == 1
    found = {row["_key"]: row["_value"] for row in keyed(replica).scan().to_pylist()}
    assert found == {b"k0": b"21", b"k1": b"19", b"k2": b"20"}
    await replica.close()
    await writer.close()


@virtual
async def test_a_keyed_state_that_was_left_behind_takes_an_image_in_place_of_its_own() -> None:
    store = memory_store()
    one = await leader(store=store, max_lag_lsn=10)
    disk = FaultyDisk()
    one.wal.append_group(rows(1, (b"a", 0, b"1"), (b"b", 0, b"1")))
    left = await standby(one.service, disk, targets=keyed_states(store))
    await reaches(left, 2)
    one.wal.append_group(rows(3, *[(b"a", 1, b"%d" % n) for n in range(20)]))
    one.wal.append_group(rows(23, (b"b", 2, None)))
    # Another one was there all the while, and the log is gone where this one stood.
    writer = await standby(one.service, FaultyDisk(), name="w", targets=keyed_states(store))
    await reaches(writer, 23)
    await writer.target.sync()
    await left.close()
    one.archive()
    one.primary.retention.enforce_limits()
    await one.wal.prune_through(20)
    left = await standby(one.service, disk, targets=keyed_states(store))
    await reaches(left, 23)
    assert [row["_key"] for row in keyed(left).scan().to_pylist()] == [b"a"]
    await left.close()
    await writer.close()


@virtual
async def test_a_damaged_image_is_passed_over_for_an_older_one() -> None:
    store = memory_store()
    one = await leader(store=store)
    one.wal.append_group(rows(1, (b"a", 0, b"1")))
    kind = keyed_states(store)
    writer = await standby(one.service, FaultyDisk(), name="w", targets=kind)
    await reaches(writer, 1)
    await writer.target.sync()
    one.wal.append_group(rows(2, (b"a", 0, b"2")))
    await reaches(writer, 2)
    await writer.target.sync()
    newest = await keyed_states(store).newest_image()
    assert newest is not None
    data = bytearray((await store.get(newest.key)).data)
    data[len(data) // 2] ^= 1
    await store.put(newest.key, bytes(data))
    replica = await standby(one.service, FaultyDisk(), targets=keyed_states(store), start=False)
    assert replica.target.applied_lsn == 1
    replica.start()
    await reaches(replica, 2)
    await replica.close()
    await writer.close()


@virtual
async def test_an_image_that_is_damaged_before_it_is_used_is_passed_over_at_once() -> None:
    store = memory_store()
    one = await leader(store=store, max_lag_lsn=2)
    one.wal.append_group(rows(1, (b"a", 0, b"1")))
    source = Tampering(one.service)
    writer = await standby(one.service, FaultyDisk(), name="w", targets=keyed_states(store))
    left = await standby(source, FaultyDisk(), targets=keyed_states(store), wait_s=1.0)
    await reaches(left, 1)
    source.on_pull = lambda pulled: replace(pulled, groups=[], through_lsn=1)
    for lsn in range(2, 9):
        one.wal.append_group(rows(lsn, (b"a", 1, b"%d" % lsn)))
        await reaches(writer, lsn)
        await writer.target.sync()
    newest = await keyed_states(store).newest_image()
    assert newest is not None
    await store.put(newest.key, b"damaged")
    one.archive()
    one.primary.retention.enforce_limits()
    await one.wal.prune_through(5)
    source.on_pull = lambda pulled: pulled
    await reaches(left, 8)
    await runtime.sleep(1.0)
    assert not left.metrics.retries
    assert left.metrics.bootstraps == {"image": 1}
    assert keyed(left).get(b"a") == keyed(writer).get(b"a")
    await left.close()
    await writer.close()


@virtual
async def test_the_old_copy_is_read_until_the_fresh_one_shows_as_much() -> None:
    one = await leader()
    one.wal.append(10)
    source = Tampering(one.service)
    replica = await standby(source, FaultyDisk(), max_records=1, wait_s=1.0)
    await reaches(replica, 10)
    await replica.close()

    shown: list[int] = []

    def noted(pulled: PullResponse) -> PullResponse:
        shown.append(replica.target.applied_lsn)
        return pulled

    source.on_pull = noted
    replica = await standby(source, replica_disk(replica), max_records=1, start=False)
    async with replica.reading() as old:
        await replica.rebootstrap()
        assert set(shown) == {10}, "the fresh one was not shown before it had everything"
        assert replica.target is not old
        assert isinstance(old, LogCopy)
        groups = await old.spool.read_since(0)
        assert sum(map(len, groups)) == 10, "whoever reads it keeps it"
        with pytest.raises(Unavailable, match="still being read"):
            await replica.rebootstrap()
    assert sum(map(len, await copied(replica))) == 10
    names = dict(replica_disk(replica).list_dir(f"{PATH}/copy-1"))
    assert names == {}, "and nobody keeps it then"
    await replica.rebootstrap()
    assert sum(map(len, await copied(replica))) == 10
    await replica.close()


@virtual
async def test_a_fresh_copy_shows_no_less_though_its_leader_has_not_come_so_far_again() -> None:
    old, new = await leader(epoch=1), await leader(epoch=2)
    old.wal.append(10)
    replica = await standby(old.service, FaultyDisk())
    await reaches(replica, 10)
    await replica.close()
    new.wal.append(4)
    replica = await standby(new.service, replica_disk(replica), start=False, wait_s=1.0)
    making = runtime.spawn(replica.rebootstrap(), name="rebootstrap")
    await runtime.sleep(30.0)
    assert not making.done()
    assert replica.target.applied_lsn == 10
    new.wal.append(6)
    await making
    assert replica.target.applied_lsn == 10
    await replica.close()


@virtual
async def test_a_fresh_copy_is_on_disk_before_it_takes_the_place_of_one_that_was() -> None:
    one = await leader()
    one.wal.append(10)
    disk = FaultyDisk()
    targets = LogCopies(config=SpoolConfig(sync="none"), disk=disk)
    replica = await standby(one.service, disk, targets=targets)
    await reaches(replica, 10)
    await replica.close()
    replica = await standby(one.service, disk, targets=targets, start=False)
    await replica.rebootstrap()
    assert replica.target.durable_lsn == 10
    await replica.close()


@virtual
async def test_what_cannot_be_synced_now_is_nothing_to_begin_from() -> None:
    class Unsynced:
        applied_lsn, durable_lsn = 10, 5

        async def sync(self) -> None:
            raise Unavailable("the store is away")

    assert await follower._durable_lsn(Unsynced()) == 5  # type: ignore[arg-type]


@virtual
async def test_a_keyed_state_goes_on_from_its_own_rather_than_from_the_same_image() -> None:
    store = memory_store()
    one = await leader(store=store)
    one.wal.append_group(rows(1, (b"a", 0, b"1"), (b"b", 0, b"2")))
    replica = await standby(one.service, FaultyDisk(), targets=keyed_states(store), wait_s=1.0)
    await reaches(replica, 2)
    one.primary.retention._invalidate("r1", InvalidationCause.HORIZON)
    await runtime.sleep(60.0)
    assert replica.metrics.bootstraps == {"own": 1}
    await replica.close()


@virtual
async def test_who_needs_what_is_not_there_yet_goes_elsewhere_while_a_copy_is_made() -> None:
    one = await leader(max_lag_lsn=3)
    one.wal.append(4)
    disk = FaultyDisk()
    replica = await standby(one.service, disk)
    await reaches(replica, 4)
    replica._set_phase(ReplicaPhase.BOOTSTRAPPING)
    async with replica.reading(Bookmark(1, 4)) as target:
        assert target.applied_lsn == 4
    with pytest.raises(GoElsewhere, match="fresh copy"):
        await replica.wait_for(Bookmark(1, 5), timeout_s=1e9)
    await replica.close()


@virtual
async def test_a_log_longer_than_the_limits_is_copied_while_it_is_kept_anyway() -> None:
    one = await leader(max_lag_lsn=5, max_lag_s=5.0)
    one.primary.start()
    for _ in range(50):
        one.wal.append(1)

    class Slow(Tampering):
        async def pull(self, *args: object, **options: object) -> PullResponse:
            await runtime.sleep(1.0)  # all of it takes longer than several sweeps
            return await super().pull(*args, **options)

    replica = await standby(Slow(one.service), FaultyDisk(), start=False, max_records=1)
    await replica.rebootstrap()
    assert replica.target.applied_lsn == 50
    assert one.slot("r1").restart_lsn == 50
    assert not one.primary.metrics.slots_invalidated
    await replica.close()
    await one.primary.close()
