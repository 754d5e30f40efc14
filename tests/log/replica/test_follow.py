"""A replica pulls, applies in order and acknowledges."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace
from unittest import mock

import pytest

from headwater.core import runtime
from headwater.core.errors import Refused
from headwater.log import AckN, Group, LogCopies, LogCopy, LogGap, SpoolConfig
from headwater.log.primary.service import PullResponse
from headwater.log.replica.comparing import split_pull
from headwater.log.replica.contract import ReplicaPhase
from headwater.store import Store
from headwater.testing import MemoryWal
from headwater.testing.disk import FaultyDisk
from tests.log.leaders import Away, leader
from tests.log.replica.given import (
    Tampering,
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


@virtual
async def test_a_copy_follows_the_log_record_for_record() -> None:
    one = await leader(epoch=3)
    one.wal.append(40)
    replica = await standby(one.service, FaultyDisk(), max_records=7)
    await reaches(replica, 40)
    one.wal.append(3)
    await reaches(replica, 43)
    assert await is_prefix(replica, one.wal)
    status = replica.status()
    assert (status.phase, status.term, status.lag_lsn) == (ReplicaPhase.FOLLOWING, 3, 0)
    assert replica.metrics.records_applied == 43
    await replica.close()
    assert replica.status().phase is ReplicaPhase.STOPPED


@virtual
async def test_what_is_on_its_disk_counts_for_writers_and_frees_the_log() -> None:
    one = await leader()
    one.primary.start()
    one.wal.append(9)
    replica = await standby(one.service, FaultyDisk())
    told = await one.primary.wait_committed(9, policy=AckN(1))
    assert told.acknowledged_by == ["r1"]
    assert one.slot("r1").restart_lsn == 9
    await replica.close()
    await one.primary.close()


@virtual
async def test_what_is_only_written_is_acknowledged_as_applied_and_not_as_durable() -> None:
    one = await leader(health_timeout_s=3600.0)
    one.wal.append(9)
    disk = FaultyDisk()
    kind = LogCopies(config=SpoolConfig(sync=3.0), disk=disk)
    replica = await standby(one.service, disk, targets=kind, wait_s=3600.0)
    await reaches(replica, 9)
    await runtime.sleep(1.0)
    assert (one.slot("r1").confirmed_lsn, one.slot("r1").restart_lsn) == (9, 0)
    await runtime.sleep(7.0)
    assert one.slot("r1").restart_lsn == 9, "nothing came, and what was synced is told"
    await replica.close()


@virtual
async def test_the_end_of_the_log_is_waited_for_and_not_asked_for_again_and_again() -> None:
    one = await leader(health_timeout_s=40.0)
    source = Tampering(one.service)
    replica = await standby(source, FaultyDisk(), wait_s=10.0)
    await runtime.sleep(300.0)
    assert 25 <= source.pulls <= 40
    one.wal.append(1)
    await runtime.sleep(0.5)
    assert replica.target.applied_lsn == 1
    await replica.close()


@virtual
async def test_a_source_that_does_not_wait_is_not_asked_in_a_busy_loop() -> None:
    one = await leader(health_timeout_s=0.001)
    source = Tampering(one.service)
    replica = await standby(source, FaultyDisk())
    await runtime.sleep(10.0)
    assert source.pulls <= 201
    await replica.close()


@virtual
async def test_a_gap_is_not_applied() -> None:
    one = await leader()
    one.wal.append(5)
    one.wal.append(5)
    source = Tampering(one.service)
    source.on_pull = lambda pulled: replace(pulled, groups=pulled.groups[1:])
    replica = await standby(source, FaultyDisk())
    await fails(replica, "the copy ends at LSN 0, and 6 was sent next")
    assert replica.target.applied_lsn == 0, "an empty copy takes no other first LSN than 1"
    assert replica.metrics.gaps == 1

    source.on_pull = lambda pulled: replace(pulled, groups=pulled.groups[:1])
    await runtime.sleep(5.0)
    assert replica.target.applied_lsn == 0, "the end is missing, and was said to be there"
    assert replica.metrics.gaps > 1
    assert one.slot("r1").confirmed_lsn == 0

    source.on_pull = lambda pulled: pulled
    await reaches(replica, 10)
    assert await is_prefix(replica, one.wal)
    await replica.close()


@virtual
async def test_groups_out_of_order_are_not_applied() -> None:
    one = await leader()
    for _ in range(3):
        one.wal.append(2)
    source = Tampering(one.service)
    source.on_pull = lambda pulled: replace(
        pulled, groups=[pulled.groups[0], pulled.groups[2], pulled.groups[1]]
    )
    replica = await standby(source, FaultyDisk(), start=False)
    with pytest.raises(LogGap):
        await replica._follow_leader()
    assert replica.target.applied_lsn == 0
    await replica.close()


@pytest.mark.parametrize("filtered", [False, True])
def test_an_answer_that_goes_back_is_refused_also_where_some_is_passed_over(filtered: bool) -> None:
    first, second = rows(1, (b"a", 0, b"1")), rows(2, (b"a", 0, b"2"))
    pulled = PullResponse(1, [second, first], 2, 2, 0)
    with pytest.raises(LogGap):
        split_pull(pulled, 0, filtered=filtered, compared_lsn=0)
    short = PullResponse(1, [first, second], 1, 2, 0)
    with pytest.raises(LogGap, match="through 1"):
        split_pull(short, 0, filtered=filtered, compared_lsn=0)


@virtual
async def test_what_comes_again_is_compared_and_changes_nothing() -> None:
    one = await leader()
    one.wal.append(6)
    source = Tampering(one.service)
    answers: list[PullResponse] = []

    def noted(pulled: PullResponse) -> PullResponse:
        answers.append(pulled)
        return pulled

    source.on_pull = noted
    replica = await standby(source, FaultyDisk(), wait_s=1.0)
    await reaches(replica, 6)
    first = answers[0]
    source.on_pull = lambda pulled: first
    await runtime.sleep(3.0)
    source.on_pull = lambda pulled: pulled
    one.wal.append(2)
    await reaches(replica, 8)
    assert await is_prefix(replica, one.wal)
    assert replica.metrics.records_compared >= 6
    assert replica.metrics.divergences == 0
    await replica.close()


@virtual
async def test_an_idle_or_fully_filtered_slot_still_advances() -> None:
    backend = Away()
    store = Store(backend)
    one = await leader(store=store)
    one.wal.append_group(rows(1, (b"a", 0, b"1"), (b"b", 0, b"2")))
    one.wal.append_group(rows(3, (b"a", 0, b"3"), (b"b", 0, b"4")))
    source = Tampering(one.service)
    source.on_pull = lambda pulled: replace(pulled, groups=[])
    kind = keyed_states(store, of="nothing", image_interval_s=30.0)
    replica = await standby(source, FaultyDisk(), targets=kind, filtered=True, wait_s=5.0)
    await reaches(replica, 4)
    await runtime.sleep(60.0)
    assert one.slot("r1").restart_lsn == 4
    assert keyed(replica).scan().num_rows == 0
    await replica.close()


@virtual
async def test_a_filtered_source_may_pass_over_records_for_who_says_so() -> None:
    store = Store(Away())
    one = await leader(store=store)
    for lsn in (1, 2, 3):
        one.wal.append_group(rows(lsn, (b"k%d" % lsn, 0, b"v")))
    source = Tampering(one.service)
    source.on_pull = lambda pulled: replace(
        pulled, groups=[group for group in pulled.groups if group.first_lsn != 2]
    )
    disk = FaultyDisk()
    kind = keyed_states(store, of="odd")
    replica = await standby(source, disk, targets=kind, filtered=True)
    await reaches(replica, 3)
    assert keyed(replica).scan().column("_key").to_pylist() == [b"k1", b"k3"]
    await replica.close()
    with pytest.raises(Refused, match="every record"):
        await standby(source, FaultyDisk(), filtered=True)
    with pytest.raises(Refused, match="a name of its own"):
        await standby(source, FaultyDisk(), targets=keyed_states(store), filtered=True)


@virtual
async def test_a_full_disk_is_waited_for() -> None:
    one = await leader()
    one.wal.append(500)
    disk = FaultyDisk()
    replica = await standby(one.service, disk, start=False)
    disk.space_bytes = 3000
    replica.start()
    await fails(replica, "free some space")
    assert replica.metrics.apply_errors >= 1
    assert one.replica("r1").last_durable_lsn == 0
    disk.space_bytes = None
    await reaches(replica, 500)
    assert await is_prefix(replica, one.wal)
    await replica.close()


@virtual
async def test_frames_of_an_older_term_after_those_of_a_newer_are_the_same_log() -> None:
    """A leader may have written again, under its own term, what its successor has from before."""
    first, second = await leader(epoch=2), await leader(wal=MemoryWal(), epoch=3)
    first.wal.append(4, term=2)
    second.wal.append(4, term=1)
    second.wal.append(4, term=1)
    source = Tampering(first.service)
    replica = await standby(source, FaultyDisk(), wait_s=1.0)
    await reaches(replica, 4)
    source.to = second.service
    await reaches(replica, 8)
    assert await is_prefix(replica, second.wal)
    assert [group.term for group in await copied(replica)] == [2, 2]
    await replica.close()


@virtual
async def test_a_replica_that_comes_back_goes_on_where_it_was() -> None:
    one = await leader()
    one.wal.append(10)
    disk = FaultyDisk()
    replica = await standby(one.service, disk)
    await reaches(replica, 10)
    await replica.close()
    one.wal.append(5)
    replica = await standby(one.service, disk)
    assert replica.target.applied_lsn == 10
    await reaches(replica, 15)
    assert await is_prefix(replica, one.wal)
    assert replica.metrics.records_applied == 5
    assert one.primary.metrics.partial_resyncs == 2
    await replica.close()


@virtual
async def test_the_next_answer_is_asked_for_while_the_last_is_applied_but_not_at_the_end() -> None:
    one = await leader()
    one.wal.append(6)
    source = Tampering(one.service)
    asked_for: list[int] = []
    apply = LogCopy.apply

    async def slowly(self: LogCopy, groups: Sequence[Group], through_lsn: int) -> None:
        await runtime.sleep(0.5)
        asked_for.append(source.pulls)
        await apply(self, groups, through_lsn)

    with mock.patch.object(LogCopy, "apply", slowly):
        replica = await standby(source, FaultyDisk(), max_records=2)
        await reaches(replica, 6)
    assert asked_for == [2, 3, 3]
    assert await is_prefix(replica, one.wal)
    await replica.close()


@virtual
async def test_an_answer_that_was_asked_for_ahead_is_dropped_with_what_it_was_to_follow() -> None:
    one = await leader()
    one.wal.append(6)
    disk, tries = FaultyDisk(), 0
    apply = LogCopy.apply

    async def full_at_first(self: LogCopy, groups: Sequence[Group], through_lsn: int) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            disk.fail_next("append", errno.ENOSPC)
        await apply(self, groups, through_lsn)

    with mock.patch.object(LogCopy, "apply", full_at_first):
        replica = await standby(one.service, disk, max_records=2)
        await reaches(replica, 6)
    assert (tries, replica.metrics.retries) == (4, {"NoSpace": 1})
    assert await is_prefix(replica, one.wal)
    await replica.close()


@virtual
async def test_a_new_leader_is_told_at_once_how_far_the_copy_is() -> None:
    old, new = await leader(epoch=1), await leader(epoch=2)
    old.wal.append(3)
    new.wal.append(3)
    source = Tampering(old.service)
    replica = await standby(source, FaultyDisk(), wait_s=1.0, ack_interval_s=3600.0)
    await reaches(replica, 3)
    source.to = new.service
    await runtime.sleep(60.0)
    assert new.replica("r1").last_durable_lsn == 3
    await replica.close()


@virtual
async def test_what_nobody_foresaw_stops_the_replica_and_is_told() -> None:
    one = await leader()
    one.wal.append(3)

    async def strange(self: LogCopy, *_: object) -> None:
        raise ZeroDivisionError("a bug")

    with mock.patch.object(LogCopy, "apply", strange):
        replica = await standby(one.service, FaultyDisk(), start=False)
        with pytest.raises(ZeroDivisionError):
            await replica.run()
    assert replica.problem == "ZeroDivisionError('a bug')"
    assert replica.phase is ReplicaPhase.STOPPED
    await replica.close()


@virtual
async def test_a_source_that_does_not_answer_is_asked_again() -> None:
    one = await leader()
    one.wal.append(3)

    class Silent(Tampering):
        async def pull(self, *args: object, **options: object):  # type: ignore[no-untyped-def]
            if self.pulls == 0:
                self.pulls += 1
                await runtime.sleep(1e6)
            return await super().pull(*args, **options)

    replica = await standby(Silent(one.service), FaultyDisk(), call_timeout_s=5.0, wait_s=1.0)
    await fails(replica, "did not answer within")
    await reaches(replica, 3)
    assert replica.metrics.retries["Unavailable"] == 1
    await replica.close()
