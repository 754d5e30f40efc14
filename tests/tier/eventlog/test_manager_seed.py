"""The published behaviour of a metadata manager, behaviour by behaviour, over every kind of log.

Where the reference is wrong or waits for ever, ours differs, and the tests of the manager's own
folder say how.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

import pytest

from headwater.core import runtime
from headwater.core.errors import Unavailable
from headwater.testing import FaultyDisk
from headwater.tier import (
    EventRejected,
    NotReady,
    PartitionDeleteState,
    SegmentState,
    TopicIdPartition,
    TopicMetadataManager,
    metadata_partition_for,
)
from headwater.tier.eventlog import MetadataEventLog, Subscription
from headwater.tier.manager.snapshots import SnapshotFolder
from tests.tier.eventlog.makers import EventLogs, contract
from tests.tier.given import ORDERS, finished, partition_delete, segment_id, started, updated
from tests.tier.manager.given import (
    FOLDER,
    HOME,
    PARTITIONS,
    copy_segment,
    numbers,
    start,
    start_all,
)


class UncertainLog(MetadataEventLog):
    """A log that does not say how far it goes while it is told not to."""

    def __init__(self, log: MetadataEventLog) -> None:
        super().__init__(log.log_id, log.partition_count)
        self._log = log
        self.error: Unavailable | None = None

    async def publish(
        self, partition: int, payload: bytes, *, publisher_epoch: int | None = None
    ) -> int:
        return await self._log.publish(partition, payload, publisher_epoch=publisher_epoch)

    async def _new_subscription(self) -> Subscription:
        return await self._log.subscribe({})

    async def high_water_marks(self, partitions: Iterable[int] | None = None) -> Mapping[int, int]:
        if self.error is not None:
            raise self.error
        return await self._log.high_water_marks(partitions)

    async def close(self) -> None:
        await self._log.close()


async def copy_three(manager: TopicMetadataManager) -> None:
    """Three segments that follow each other: six events."""
    for number, start_offset in ((10, 0), (11, 100), (12, 200)):
        await copy_segment(manager, number, start_offset, start_offset + 99)


async def log_with_a_segment(logs: EventLogs) -> MetadataEventLog:
    log = await logs.fresh(PARTITIONS)
    writer = await start_all(log)
    await copy_segment(writer, 10, 0, 99)
    await writer.close()
    return log


@contract
async def test_add_finish_query_round_trip(logs: EventLogs) -> None:
    log = await logs.fresh(PARTITIONS)
    manager = await start_all(log)
    await copy_segment(manager, 10, 0, 99)
    found = manager.partition(ORDERS).segment_at(0, 42)
    assert found is not None
    assert (found.segment_id, found.custom_metadata) == (segment_id(10), b"\x07")
    assert manager.partition(ORDERS).highest_offset(0) == 99
    await manager.close()
    await log.close()


@contract
async def test_add_with_wrong_state_is_rejected_eagerly(logs: EventLogs) -> None:
    log = await logs.fresh(2)
    bad = updated(started(10, 0, 9), finished(10))
    for manager in (await start(log), await start_all(log)):
        with pytest.raises(EventRejected, match="cannot start as COPY_FINISHED"):
            await manager.publish(bad)
        assert await log.high_water_marks() == {0: 0, 1: 0}, "nothing was published"
        await manager.close()
    await log.close()


@contract
async def test_two_managers_sharing_a_log_converge(logs: EventLogs) -> None:
    log = await logs.fresh(PARTITIONS)
    same = await logs.another(log)
    one, other = await start_all(log), await start_all(same)
    await copy_segment(one, 10, 0, 99)
    # By what it follows alone: nobody tells it to look.
    while other.partition(ORDERS).highest_offset(0) != 99:
        await runtime.sleep(0.01)
    found = other.partition(ORDERS).segment_at(0, 50)
    assert found is not None
    assert found.segment_id == segment_id(10)
    await one.close()
    await other.close()
    await same.close()
    await log.close()


@contract
async def test_restart_rehydrates_from_log(logs: EventLogs) -> None:
    log = await logs.fresh(PARTITIONS)
    first = await start_all(log)
    await copy_three(first)
    await first.close()

    fresh = await start_all(log)
    listed = fresh.partition(ORDERS).segments()
    assert [(one.start_offset, one.end_offset) for one in listed] == [
        (0, 99),
        (100, 199),
        (200, 299),
    ]
    assert fresh.partition(ORDERS).highest_offset(0) == 299
    await fresh.close()
    await log.close()


@contract
async def test_partition_delete_lifecycle_round_trip(logs: EventLogs) -> None:
    log = await logs.fresh(2)
    manager = await start_all(log)
    await copy_segment(manager, 10, 0, 99)
    for state in PartitionDeleteState:
        await manager.publish(partition_delete(state))
        over = state is PartitionDeleteState.FINISHED
        assert manager.partition(ORDERS).delete_state == (None if over else state)
    assert manager.partition(ORDERS).segments() == []
    await manager.close()
    await log.close()


@contract
async def test_shutdown_flushes_a_snapshot_covering_applied_events(logs: EventLogs) -> None:
    log, disk = await logs.fresh(PARTITIONS), FaultyDisk()
    manager = await start_all(log, disk=disk, snapshot_interval_s=3600.0)
    await copy_segment(manager, 10, 0, 99)
    await manager.close()

    written = SnapshotFolder(disk, FOLDER).read_all(log.log_id, PARTITIONS).snapshots[HOME]
    assert written.through_offset >= 1, "both events"
    assert [len(dumped.segments) for dumped in written.dumps] == [1]
    await log.close()


@contract
async def test_restart_resumes_from_snapshot_without_replaying_from_zero(logs: EventLogs) -> None:
    log, disk = await logs.fresh(PARTITIONS), FaultyDisk()
    first = await start_all(log, disk=disk)
    await copy_three(first)
    before = first.partition(ORDERS).segments()
    await first.close()

    fresh = await start(log, disk=disk)
    assert fresh.committed_offset(HOME) >= 5, "three events that added and three that finished"
    await fresh.reconcile_assignment(range(PARTITIONS))
    await fresh.refresh(HOME)
    assert fresh.partition(ORDERS).segments() == before
    assert fresh.partition(ORDERS).highest_offset(0) == 299
    await fresh.publish(started(13, 300, 399))
    assert fresh.metrics.events == {"changed": 1}, "what was applied before did not come again"
    await fresh.close()
    await log.close()


@contract
async def test_add_then_remove_drives_assignment_and_readiness(logs: EventLogs) -> None:
    log = await log_with_a_segment(logs)
    manager = await start(log)
    assert manager.partition(ORDERS).segment_at(0, 42) is None, "not followed"

    await manager.reconcile_assignment([HOME])
    assert manager.assigned() == [HOME]
    if not manager.is_ready(HOME):
        with pytest.raises(NotReady) as raised:
            manager.partition(ORDERS).segment_at(0, 42)
        assert raised.value.partition == HOME
    await manager.wait_ready(HOME)
    found = manager.partition(ORDERS).segment_at(0, 42)
    assert found is not None
    assert found.segment_id == segment_id(10)

    await manager.reconcile_assignment([])
    assert manager.assigned() == []
    assert manager.partition(ORDERS).segment_at(0, 42) is None
    await manager.close()
    await log.close()


@contract
async def test_unknown_partition_query_is_none(logs: EventLogs) -> None:
    other = TopicIdPartition(uuid.UUID(int=999), "nope", 0)
    log = await logs.fresh(2)
    for manager in (await start(log), await start_all(log)):
        assert manager.partition(other).segment_at(0, 0) is None
        assert manager.partition(other).highest_offset(0) is None
        assert manager.partition(other).segments() == []
        await manager.close()
    await log.close()


@contract
async def test_two_brokers_split_metadata_partitions(logs: EventLogs) -> None:
    homes: dict[int, TopicIdPartition] = {}
    for number in range(8):
        stream = TopicIdPartition(uuid.UUID(int=0xFEED), "orders", number)
        homes.setdefault(metadata_partition_for(stream, PARTITIONS), stream)
    (home_a, of_a), (home_b, of_b) = list(homes.items())[:2]
    log = await logs.fresh(PARTITIONS)
    writer = await start_all(log)
    await copy_segment(writer, 100, 0, 99, partition=of_a)
    await copy_segment(writer, 200, 0, 99, partition=of_b)
    await writer.close()

    a, b = await start(log, [home_a]), await start(log, [home_b])
    assert (a.assigned(), b.assigned()) == ([home_a], [home_b])
    await a.wait_ready(home_a)
    await b.wait_ready(home_b)
    assert (numbers(a, of_a), numbers(b, of_b)) == ([100], [200])
    assert a.partition(of_b).segment_at(0, 42) is None, "another one's, and not a matter of waiting"
    assert b.partition(of_a).segment_at(0, 42) is None
    await a.close()
    await b.close()
    await log.close()


@contract
async def test_reassignment_remove_then_readd_applies_no_duplicates(logs: EventLogs) -> None:
    log = await log_with_a_segment(logs)
    manager = await start(log, [HOME])
    await manager.wait_ready(HOME)
    assert numbers(manager) == [10]
    await manager.reconcile_assignment([])
    await manager.reconcile_assignment([HOME])
    await manager.refresh(HOME)
    assert numbers(manager) == [10]
    assert manager.partition(ORDERS).segments()[0].state is SegmentState.COPY_FINISHED
    assert manager.partition(ORDERS).highest_offset(0) == 99
    await manager.publish(started(11, 100, 199))
    assert manager.metrics.events == {"changed": 3}, "each once"
    await manager.close()
    await log.close()


@contract
async def test_hwm_fetch_failure_gates_not_ready_then_self_heals(logs: EventLogs) -> None:
    log = UncertainLog(await log_with_a_segment(logs))
    log.error = Unavailable("injected")
    manager = await start(log, [HOME], tend_interval_s=0.05, retry_base_s=0.05)
    assert manager.assigned() == [HOME], "it is followed, whatever is known of it"
    while manager.status().partitions[0].next_offset < 2:
        await runtime.sleep(0.01)
    for _ in range(10):
        await runtime.sleep(0.02)
        for ask in (
            lambda: manager.partition(ORDERS).segment_at(0, 42),
            lambda: manager.partition(ORDERS).segments(),
        ):
            with pytest.raises(NotReady, match="injected") as raised:
                ask()
            assert raised.value.partition == HOME

    log.error = None
    await manager.reconcile_assignment([HOME])
    assert manager.partition(ORDERS).segment_at(0, 42) is not None
    assert numbers(manager) == [10]
    assert manager.partition(ORDERS).highest_offset(0) == 99
    await manager.close()
    await log.close()
