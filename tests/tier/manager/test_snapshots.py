"""Snapshots of a manager: it goes on from them as if it had never stopped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings

from headwater.core import runtime
from headwater.core.errors import EntriesTrimmed, Fenced, NoSpace, Refused, RolledBack
from headwater.testing import FaultyDisk, Simulation, simulate
from headwater.tier import PartitionDeleteState, encode_event, metadata_partition_for
from headwater.tier.cache import PartitionCache
from headwater.tier.errors import EventUndecodable
from headwater.tier.eventlog import InProcessEventLog, PartitionFailed
from headwater.tier.events import partition_of
from headwater.tier.manager import TopicMetadataManager
from headwater.tier.manager.snapshots import SnapshotFolder
from headwater.tier.segment_table import SegmentTable
from headwater.tier.snapshot import PartitionDump, Snapshot, dump_all
from tests.store.scripted import virtual
from tests.tier.event_histories import Said, applied, histories
from tests.tier.given import ORDERS, finished, partition_delete, started
from tests.tier.manager.given import (
    ELSEWHERE,
    FOLDER,
    HOME,
    PARTITIONS,
    TamperedLog,
    copy_segment,
    numbers,
    start,
    start_all,
)


def saved(disk: FaultyDisk, log: InProcessEventLog) -> dict[int, Snapshot]:
    return SnapshotFolder(disk, FOLDER).read_all(log.log_id, log.partition_count)[0]


def through(disk: FaultyDisk, log: InProcessEventLog) -> dict[int, int]:
    return {partition: one.through_offset for partition, one in saved(disk, log).items()}


@virtual
async def test_every_partition_that_moved_is_saved_however_far_others_are() -> None:
    log, disk = TamperedLog(), FaultyDisk()
    manager = await start_all(log, disk=disk, snapshot_interval_s=60.0)
    for number in range(1, 31):
        await manager.publish(started(number, 0, 9))
    await runtime.sleep(61.0)
    assert through(disk, log) == {HOME: 29}
    await log.publish(ELSEWHERE, encode_event(started(99, 0, 9)))
    await runtime.sleep(61.0)
    assert through(disk, log) == {HOME: 29, ELSEWHERE: 0}
    assert manager.metrics.snapshots_written == 2, "what has not moved is not written again"
    await manager.close()
    assert manager.metrics.snapshots_written == 2


@virtual
async def test_a_manager_without_a_folder_keeps_nothing_and_works() -> None:
    manager = await start_all(TamperedLog(), snapshot_interval_s=1.0)
    await copy_segment(manager, 10, 0, 99)
    await runtime.sleep(5.0)
    assert manager.metrics.snapshots_written == 0
    await manager.close()


@virtual
async def test_a_damaged_snapshot_is_left_out_and_its_partition_read_from_the_log() -> None:
    log, disk = TamperedLog(), FaultyDisk()
    manager = await start_all(log, disk=disk)
    await copy_segment(manager, 10, 0, 99)
    await manager.close()
    path = f"{FOLDER}/{HOME:010d}.snapshot"
    with disk.open(path) as file:
        data = bytearray(file.read_at(0, file.stat().size_bytes))
    data[len(data) // 2] ^= 1
    disk.unlink(path)
    with disk.create(path) as file:
        file.append(data)

    again = await start(log, [HOME], disk=disk)
    assert "fails its checksum: it is ignored" in str(again.status().problem)
    assert again.metrics.snapshots_damaged == 1
    assert again.committed_offset(HOME) == -1
    await again.wait_ready(HOME)
    assert numbers(again) == [10]
    await again.close()
    assert through(disk, log) == {HOME: 1}, "and is written anew"


@virtual
async def test_a_snapshot_that_contradicts_itself_is_left_out_as_well() -> None:
    log, disk = TamperedLog(), FaultyDisk()
    manager = await start_all(log, disk=disk)
    await copy_segment(manager, 10, 0, 99)
    await manager.close()
    whole = saved(disk, log)[HOME]
    twice = msgspec.structs.replace(whole.dumps[0], referenced=((7, 0, 5),))
    SnapshotFolder(disk, FOLDER).write(msgspec.structs.replace(whole, dumps=(twice,)))

    again = await start(log, [HOME], disk=disk)
    assert "contradicts itself" in str(again.status().problem)
    await again.wait_ready(HOME)
    assert numbers(again) == [10]
    assert again.metrics.events == {"changed": 2}, "it was read from the log"
    await again.close()


@virtual
async def test_snapshots_of_another_log_or_number_of_partitions_are_refused() -> None:
    log, disk = TamperedLog(), FaultyDisk()
    manager = await start_all(log, disk=disk)
    await copy_segment(manager, 10, 0, 99)
    await manager.close()
    with pytest.raises(Refused, match="give each log its own folder"):
        await start(TamperedLog(), disk=disk)
    grown = TamperedLog(PARTITIONS + 1)
    grown.log_id = log.log_id
    with pytest.raises(Refused, match="a log with 4 partitions, and now it has 5"):
        await start(grown, disk=disk)
    again = await start_all(log, disk=disk)
    assert numbers(again) == [10], "nothing was touched, and the folder is free"
    await again.close()


@virtual
async def test_an_event_that_cannot_be_read_leaves_no_hole_in_the_snapshot() -> None:
    log, disk = TamperedLog(), FaultyDisk()
    manager = await start_all(log, disk=disk)
    await copy_segment(manager, 10, 0, 99)
    await log.publish(HOME, b"garbage")
    await log.publish(HOME, encode_event(started(11, 100, 199)))
    await runtime.sleep(1.0)
    await manager.close()
    assert through(disk, log) == {HOME: 1}
    again = await start(log, [HOME], disk=disk)
    await runtime.sleep(1.0)
    with pytest.raises(EventUndecodable, match="offset 2"):
        again.partition(ORDERS).segments()
    await again.close()


@virtual
async def test_a_log_that_was_made_anew_at_the_same_place_is_noticed() -> None:
    log, disk = TamperedLog(), FaultyDisk()
    manager = await start_all(log, disk=disk)
    await copy_segment(manager, 10, 0, 99)
    await manager.close()
    emptied = TamperedLog()
    emptied.log_id = log.log_id
    again = await start(emptied, [HOME], disk=disk)
    with pytest.raises(RolledBack, match="they are from another log"):
        again.partition(ORDERS).segments()
    await again.close()


@virtual
async def test_a_disk_that_is_full_is_told_and_tried_again() -> None:
    log, disk = TamperedLog(), FaultyDisk()
    manager = await start_all(log, disk=disk, snapshot_interval_s=60.0)
    await copy_segment(manager, 10, 0, 99)
    disk.space_bytes = 0
    await runtime.sleep(61.0)
    assert "is not saved" in str(manager.status().problem)
    assert manager.metrics.snapshots_failed == 1
    assert numbers(manager) == [10], "it is only a shorter way, and answers go on"
    disk.space_bytes = None
    await runtime.sleep(61.0)
    assert manager.status().problem is None
    assert through(disk, log) == {HOME: 1}
    await copy_segment(manager, 11, 100, 199)
    disk.space_bytes = 0
    with pytest.raises(NoSpace):
        await manager.close()
    assert through(disk, log) == {HOME: 1}, "the one before stays"


@virtual
async def test_after_a_bug_nothing_is_saved() -> None:
    log, disk = TamperedLog(), FaultyDisk()
    manager = await start_all(log, disk=disk)
    await copy_segment(manager, 10, 0, 99)
    log.break_off(ZeroDivisionError("a bug"))
    await runtime.sleep(1.0)
    await manager.close()
    assert through(disk, log) == {}
    again = await start_all(log, disk=disk)
    assert numbers(again) == [10], "the log has it all, and the folder is free"
    await again.close()


@virtual
async def test_where_the_log_began_is_known_after_a_restart() -> None:
    log, disk = TamperedLog(), FaultyDisk()
    for event in (started(10, 0, 99), finished(10), started(11, 100, 199)):
        await log.publish(HOME, encode_event(event))
    log.hold()
    manager = await start(log, [HOME], disk=disk)
    assert log.subscription is not None
    log.subscription.remove(HOME)
    log.deliver(PartitionFailed(HOME, EntriesTrimmed("trimmed", first_offset=1)))
    log.hold(False)
    await manager.wait_ready(HOME)
    await manager.close()
    again = await start(log, [HOME], disk=disk)
    await again.wait_ready(HOME)
    assert numbers(again) == [11]
    assert [one.first_offset for one in again.status().partitions] == [1]
    await again.close()


@virtual
async def test_the_publishers_epoch_of_a_deleted_partition_outlives_a_restart() -> None:
    log, disk = TamperedLog(), FaultyDisk()
    manager = await start_all(log, disk=disk)
    await copy_segment(manager, 10, 0, 99, publisher=7)
    for state in PartitionDeleteState:
        await manager.publish(partition_delete(state), publisher_epoch=7)
    await manager.close()
    again = await start_all(log, disk=disk)
    assert again.partition(ORDERS).publisher_epoch == 7
    with pytest.raises(Fenced):
        await again.publish(started(11, 0, 99, publisher=6))
    await again.close()


# At every prefix


async def follow(log: InProcessEventLog, disk: FaultyDisk, count: int) -> None:
    """One life of a manager: until everything that is there was applied."""
    manager = await start_all(log, disk=disk)
    assert sum(one.next_offset for one in manager.status().partitions) == count
    await manager.close()


async def publish(log: InProcessEventLog, history: list[Said]) -> None:
    for event, beside in history:
        home = metadata_partition_for(partition_of(event), log.partition_count)
        await log.publish(home, encode_event(event), publisher_epoch=beside)


def replayed(history: list[Said], partition_count: int) -> dict[int, tuple[PartitionDump, ...]]:
    homes: dict[int, list[Said]] = {}
    for said in history:
        home = metadata_partition_for(partition_of(said[0]), partition_count)
        homes.setdefault(home, []).append(said)
    return {home: dump_all(applied(said)) for home, said in homes.items()}


@settings(max_examples=40)
@given(history=histories(8))
def test_going_on_from_a_snapshot_at_any_prefix_is_the_same_as_reading_everything(
    history: list[Said],
) -> None:
    async def main(_: Simulation) -> None:
        for prefix in range(len(history) + 1):
            log, disk = InProcessEventLog(2), FaultyDisk()
            await publish(log, history[:prefix])
            await follow(log, disk, prefix)
            assert {p: s.dumps for p, s in saved(disk, log).items()} == replayed(
                history[:prefix], 2
            )
            await publish(log, history[prefix:])
            await follow(log, disk, len(history))
            assert {p: s.dumps for p, s in saved(disk, log).items()} == replayed(history, 2)

    simulate(main)


@settings(max_examples=40)
@given(history=histories(8))
def test_a_restart_after_every_event_is_the_same_as_none(history: list[Said]) -> None:
    async def main(_: Simulation) -> None:
        log, disk = InProcessEventLog(2), FaultyDisk()
        for count, said in enumerate(history, start=1):
            await publish(log, [said])
            await follow(log, disk, count)
        assert {p: s.dumps for p, s in saved(disk, log).items()} == replayed(history, 2)

    simulate(main)


# While a snapshot is written


class SlowThreads:
    """Blocking work that takes long, and goes on when nobody waits for it any more."""

    def __init__(self, *taking_s: float) -> None:
        self._taking_s = list(taking_s)

    async def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        taking_s = self._taking_s.pop(0) if self._taking_s else 0.0

        async def work() -> Any:
            await runtime.sleep(taking_s)
            return function(*arguments)

        return await asyncio.shield(runtime.spawn(work(), name="thread"))


@virtual
async def test_what_comes_while_a_snapshot_is_written_is_in_the_next_one() -> None:
    log, disk = TamperedLog(), FaultyDisk()
    manager = await start_all(log, disk=disk, snapshot_interval_s=60.0)
    await copy_segment(manager, 10, 0, 99)
    with mock.patch.object(runtime, "run_blocking", SlowThreads(5.0)):
        await runtime.sleep(62.0)
        assert through(disk, log) == {}, "it is being written"
        await manager.publish(started(11, 100, 199))
        await runtime.sleep(10.0)
        assert through(disk, log) == {HOME: 1}
        await runtime.sleep(60.0)
    assert through(disk, log) == {HOME: 2}
    await manager.close()


@virtual
async def test_the_last_snapshot_is_not_overtaken_by_one_that_was_being_written() -> None:
    log, disk = TamperedLog(), FaultyDisk()
    manager = await start_all(log, disk=disk, snapshot_interval_s=60.0)
    await copy_segment(manager, 10, 0, 99)
    with mock.patch.object(runtime, "run_blocking", SlowThreads(5.0, 0.1)):
        await runtime.sleep(62.0)
        await manager.publish(started(11, 100, 199))
        await manager.close()
        await runtime.sleep(60.0)
    assert through(disk, log) == {HOME: 2}


@virtual
async def test_a_write_that_fails_when_nobody_waits_for_it_is_done_again() -> None:
    log, disk = TamperedLog(), FaultyDisk()
    manager = await start_all(log, disk=disk, snapshot_interval_s=60.0)
    await copy_segment(manager, 10, 0, 99)
    with mock.patch.object(runtime, "run_blocking", SlowThreads(5.0, 5.0)):
        await runtime.sleep(62.0)
        disk.space_bytes = 0
        closing = runtime.spawn(manager.close(), name="close")
        await runtime.sleep(4.0)
        disk.space_bytes = None
        await closing
    assert through(disk, log) == {HOME: 1}


def test_segments_are_gone_through_on_threads_and_not_on_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A million of them take seconds, in which nobody would be answered."""
    threads = set()

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            threads.add(threading.current_thread())
            return function(*args)

        return noted

    async def main() -> None:
        log = InProcessEventLog(1)
        manager = await TopicMetadataManager.start(log, str(tmp_path))
        await manager.reconcile_assignment([0])
        await copy_segment(manager, 10, 0, 99)
        monkeypatch.setattr(SegmentTable, "metadata", noting(SegmentTable.metadata))
        monkeypatch.setattr(PartitionCache, "list_segment", noting(PartitionCache.list_segment))
        await manager.close()
        assert len(threads) == 1, "it was saved"
        again = await TopicMetadataManager.start(log, str(tmp_path))
        await again.close()

    asyncio.run(main())
    assert threading.main_thread() not in threads


@virtual
async def test_a_start_that_is_cancelled_leaves_the_folder_to_the_next_one() -> None:
    log, disk = TamperedLog(), FaultyDisk()
    manager = await start_all(log, disk=disk)
    await copy_segment(manager, 10, 0, 99)
    await manager.close()
    for steps in range(8):
        starting = runtime.spawn(
            TopicMetadataManager.start(log, FOLDER, disk=disk), name="starting"
        )
        for _ in range(steps):
            await runtime.sleep(0)
        starting.cancel()
        told = await asyncio.gather(starting, return_exceptions=True)
        if isinstance(told[0], TopicMetadataManager):
            await told[0].close()
        await runtime.sleep(1.0)
        again = await start_all(log, disk=disk)
        assert numbers(again) == [10]
        await again.close()
