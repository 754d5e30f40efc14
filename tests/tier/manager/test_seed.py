"""The published behaviour of a metadata manager, behaviour by behaviour.

Where the reference is wrong or waits for ever, ours differs, and the other tests of this folder say
how.
"""

from __future__ import annotations

import uuid

import pytest

from headwater.core import runtime
from headwater.core.errors import Unavailable
from headwater.testing import FaultyDisk
from headwater.tier import (
    EventRejected,
    PartitionDeleteState,
    SegmentState,
    TopicIdPartition,
    metadata_partition_for,
)
from headwater.tier.errors import NotReady
from headwater.tier.eventlog import InProcessEventLog
from headwater.tier.snapshot import SnapshotFolder
from tests.tier.given import ORDERS, finished, partition_delete, segment_id, started
from tests.tier.manager.given import (
    FOLDER,
    HOME,
    PARTITIONS,
    TamperedLog,
    copy_segment,
    numbers,
    start,
    start_all,
    virtual,
)


@virtual
async def test_add_finish_query_round_trip() -> None:
    manager = await start_all(InProcessEventLog(PARTITIONS))
    await copy_segment(manager, 10, 0, 99)
    found = manager.segment_at(ORDERS, 0, 42)
    assert found is not None
    assert (found.segment_id, found.custom_metadata) == (segment_id(10), b"\x07")
    assert manager.highest_offset(ORDERS, 0) == 99
    await manager.close()


@virtual
async def test_add_with_wrong_state_is_rejected_eagerly() -> None:
    log = InProcessEventLog(2)
    manager = await start_all(log)
    bad = started(10, 0, 9).with_update(finished(10))
    with pytest.raises(EventRejected, match="cannot begin as COPY_FINISHED"):
        await manager.publish(bad)
    assert await log.high_water_marks() == {0: 0, 1: 0}, "nothing was published"
    await manager.close()


@virtual
async def test_two_managers_sharing_a_log_converge() -> None:
    log = InProcessEventLog(PARTITIONS)
    one, other = await start_all(log), await start_all(log)
    await copy_segment(one, 10, 0, 99)
    await other.refresh(HOME)
    assert other.highest_offset(ORDERS, 0) == 99
    found = other.segment_at(ORDERS, 0, 50)
    assert found is not None
    assert found.segment_id == segment_id(10)
    await one.close()
    await other.close()


@virtual
async def test_restart_rehydrates_from_log() -> None:
    log = InProcessEventLog(PARTITIONS)
    first = await start_all(log)
    for number, start_offset in ((10, 0), (11, 100), (12, 200)):
        await copy_segment(first, number, start_offset, start_offset + 99)
    await first.close()

    fresh = await start_all(log)
    listed = fresh.segments(ORDERS)
    assert [(one.start_offset, one.end_offset) for one in listed] == [
        (0, 99),
        (100, 199),
        (200, 299),
    ]
    assert fresh.highest_offset(ORDERS, 0) == 299
    await fresh.close()


@virtual
async def test_partition_delete_lifecycle_round_trip() -> None:
    manager = await start_all(InProcessEventLog(2))
    await copy_segment(manager, 10, 0, 99)
    for state in PartitionDeleteState:
        await manager.publish(partition_delete(state))
        over = state is PartitionDeleteState.FINISHED
        assert manager.delete_state(ORDERS) == (None if over else state)
    assert manager.segments(ORDERS) == []
    await manager.close()


@virtual
async def test_shutdown_flushes_a_snapshot_covering_applied_events() -> None:
    log, disk = InProcessEventLog(PARTITIONS), FaultyDisk()
    manager = await start_all(log, disk=disk, snapshot_interval_s=3600.0)
    await copy_segment(manager, 10, 0, 99)
    await manager.close()

    found = SnapshotFolder(disk, FOLDER).read_all(log.log_id, PARTITIONS)
    assert list(found.snapshots) == [HOME]
    written = found.snapshots[HOME]
    assert written.through_offset == 1, "both events"
    assert [len(dumped.segments) for dumped in written.dumps] == [1]


@virtual
async def test_restart_resumes_from_snapshot_without_replaying_from_zero() -> None:
    log, disk = TamperedLog(), FaultyDisk()
    first = await start_all(log, disk=disk)
    for number, start_offset in ((10, 0), (11, 100), (12, 200)):
        await copy_segment(first, number, start_offset, start_offset + 99)
    before = first.segments(ORDERS)
    await first.close()

    log.starts.clear()
    fresh = await start(log, disk=disk)
    assert fresh.committed_offset(HOME) == 5, "three events that added and three that finished"
    await fresh.reconcile_assignment(range(PARTITIONS))
    await fresh.wait_ready(HOME)
    await runtime.sleep(1.0)
    assert (HOME, 6) in log.starts, "from the one after, not from 0"
    assert fresh.segments(ORDERS) == before
    assert fresh.highest_offset(ORDERS, 0) == 299
    assert sum(fresh.metrics.events.values()) == 0, "nothing was applied again"
    await fresh.close()


@virtual
async def test_add_then_remove_drives_assignment_and_readiness() -> None:
    log = TamperedLog()
    writer = await start_all(log)
    await copy_segment(writer, 10, 0, 99)
    await writer.close()

    manager = await start(log)
    assert manager.segment_at(ORDERS, 0, 42) is None, "not followed"
    log.hold()
    await manager.reconcile_assignment([HOME])
    assert manager.assigned() == [HOME]
    with pytest.raises(NotReady) as raised:
        manager.segment_at(ORDERS, 0, 42)
    assert raised.value.partition == HOME
    log.hold(False)
    await manager.wait_ready(HOME)
    found = manager.segment_at(ORDERS, 0, 42)
    assert found is not None
    assert found.segment_id == segment_id(10)

    await manager.reconcile_assignment([])
    assert manager.assigned() == []
    assert manager.segment_at(ORDERS, 0, 42) is None
    await manager.close()


@virtual
async def test_unknown_partition_query_is_none() -> None:
    other = TopicIdPartition(uuid.UUID(int=999), "nope", 0)
    for manager in (await start(InProcessEventLog(2)), await start_all(InProcessEventLog(2))):
        assert manager.segment_at(other, 0, 0) is None
        assert manager.highest_offset(other, 0) is None
        assert manager.segments(other) == []
        await manager.close()


@virtual
async def test_two_brokers_split_metadata_partitions() -> None:
    topic = uuid.UUID(int=0xFEED)
    of_a, of_b = (TopicIdPartition(topic, "orders", number) for number in (0, 1))
    home_a, home_b = metadata_partition_for(of_a, 16), metadata_partition_for(of_b, 16)
    assert home_a != home_b
    log = InProcessEventLog(16)
    writer = await start_all(log)
    await copy_segment(writer, 100, 0, 99, partition=of_a)
    await copy_segment(writer, 200, 0, 99, partition=of_b)
    await writer.close()

    a, b = await start(log, [home_a]), await start(log, [home_b])
    assert (a.assigned(), b.assigned()) == ([home_a], [home_b])
    await a.wait_ready(home_a)
    await b.wait_ready(home_b)
    assert (numbers(a, of_a), numbers(b, of_b)) == ([100], [200])
    assert a.segment_at(of_b, 0, 42) is None, "another one's, and not a matter of waiting"
    assert b.segment_at(of_a, 0, 42) is None
    await a.close()
    await b.close()


@virtual
async def test_reassignment_remove_then_readd_applies_no_duplicates() -> None:
    log = TamperedLog()
    writer = await start_all(log)
    await copy_segment(writer, 10, 0, 99)
    await writer.close()

    manager = await start(log, [HOME])
    await manager.wait_ready(HOME)
    assert numbers(manager) == [10]
    log.starts.clear()
    await manager.reconcile_assignment([])
    await manager.reconcile_assignment([HOME])
    await manager.wait_ready(HOME)
    assert log.starts == [(HOME, 2)], "from what was applied on"
    assert numbers(manager) == [10]
    assert manager.segments(ORDERS)[0].state is SegmentState.COPY_FINISHED
    assert manager.highest_offset(ORDERS, 0) == 99
    await manager.close()


@virtual
async def test_hwm_fetch_failure_gates_not_ready_then_self_heals() -> None:
    log = TamperedLog()
    writer = await start_all(log)
    await copy_segment(writer, 10, 0, 99)
    await writer.close()

    log.marks_error = Unavailable("injected")
    manager = await start(log, [HOME])
    assert manager.assigned() == [HOME], "it is followed, whatever is known of it"
    for _ in range(30):
        await runtime.sleep(0.1)
        for ask in (lambda: manager.segment_at(ORDERS, 0, 42), lambda: manager.segments(ORDERS)):
            with pytest.raises(NotReady, match="injected") as raised:
                ask()
            assert raised.value.partition == HOME
    assert manager.status().partitions[0].next_offset == 2, "all of it was applied"

    log.marks_error = None
    await manager.reconcile_assignment([HOME])
    assert manager.segment_at(ORDERS, 0, 42) is not None
    assert numbers(manager) == [10]
    assert manager.highest_offset(ORDERS, 0) == 99
    await manager.close()
