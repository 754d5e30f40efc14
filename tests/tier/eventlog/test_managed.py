"""The published behaviour of a metadata manager, on every log of events."""

from __future__ import annotations

import uuid

import pytest

from headwater.core.errors import Fenced
from headwater.testing import FaultyDisk
from headwater.tier import (
    PartitionDeleteState,
    SegmentState,
    TopicIdPartition,
    metadata_partition_for,
)
from tests.tier.eventlog.makers import EventLogs, contract
from tests.tier.given import ORDERS, partition_delete, segment_id
from tests.tier.manager.given import HOME, PARTITIONS, copy_segment, numbers, start, start_all


@contract
async def test_add_finish_query_round_trip(logs: EventLogs) -> None:
    log = await logs.fresh(PARTITIONS)
    manager = await start_all(log)
    await copy_segment(manager, 10, 0, 99)
    found = manager.segment_at(ORDERS, 0, 42)
    assert found is not None
    assert (found.segment_id, found.custom_metadata) == (segment_id(10), b"\x07")
    assert manager.highest_offset(ORDERS, 0) == 99
    await manager.close()
    await log.close()


@contract
async def test_two_managers_sharing_a_log_converge(logs: EventLogs) -> None:
    log = await logs.fresh(PARTITIONS)
    one, other = await start_all(log), await start_all(await logs.another(log))
    await copy_segment(one, 10, 0, 99)
    await other.refresh(HOME)
    assert other.segments(ORDERS) == one.segments(ORDERS)
    await copy_segment(other, 11, 100, 199)
    await one.refresh(HOME)
    assert numbers(one) == numbers(other) == [10, 11]
    await one.close()
    await other.close()
    await log.close()


@contract
async def test_restart_rehydrates_from_log(logs: EventLogs) -> None:
    log = await logs.fresh(PARTITIONS)
    first = await start_all(log)
    for number, start_offset in ((10, 0), (11, 100), (12, 200)):
        await copy_segment(first, number, start_offset, start_offset + 99)
    await first.close()

    fresh = await start_all(log)
    assert numbers(fresh) == [10, 11, 12]
    assert fresh.highest_offset(ORDERS, 0) == 299
    await fresh.close()
    await log.close()


@contract
async def test_restart_resumes_from_snapshot_without_replaying_from_zero(logs: EventLogs) -> None:
    log, disk = await logs.fresh(PARTITIONS), FaultyDisk()
    first = await start_all(log, disk=disk)
    for number, start_offset in ((10, 0), (11, 100), (12, 200)):
        await copy_segment(first, number, start_offset, start_offset + 99)
    before = first.segments(ORDERS)
    await first.close()

    fresh = await start_all(log, disk=disk)
    assert fresh.committed_offset(HOME) == 5, "three events that added and three that finished"
    assert fresh.segments(ORDERS) == before
    assert sum(fresh.metrics.events.values()) == 0, "nothing was applied again"
    await fresh.close()
    await log.close()


@contract
async def test_partition_delete_lifecycle_round_trip(logs: EventLogs) -> None:
    log = await logs.fresh(PARTITIONS)
    manager = await start_all(log)
    await copy_segment(manager, 10, 0, 99, publisher=3)
    for state in PartitionDeleteState:
        await manager.publish(partition_delete(state), publisher_epoch=4)
        over = state is PartitionDeleteState.FINISHED
        assert manager.delete_state(ORDERS) == (None if over else state)
    assert manager.segments(ORDERS) == []
    with pytest.raises(Fenced):
        await copy_segment(manager, 11, 0, 99, publisher=3)
    other = await start_all(await logs.another(log))
    assert other.publisher_epoch(ORDERS) == 4, "it stood beside the events"
    await manager.close()
    await other.close()
    await log.close()


@contract
async def test_add_then_remove_drives_assignment_and_readiness(logs: EventLogs) -> None:
    log = await logs.fresh(PARTITIONS)
    writer = await start_all(log)
    await copy_segment(writer, 10, 0, 99)
    await writer.close()

    manager = await start(log)
    assert manager.segment_at(ORDERS, 0, 42) is None, "not followed"
    await manager.reconcile_assignment([HOME])
    await manager.wait_ready(HOME)
    assert (manager.assigned(), numbers(manager)) == ([HOME], [10])
    await manager.reconcile_assignment([])
    assert manager.assigned() == []
    assert manager.segment_at(ORDERS, 0, 42) is None
    await manager.close()
    await log.close()


@contract
async def test_two_brokers_split_metadata_partitions(logs: EventLogs) -> None:
    topic = uuid.UUID(int=3)
    of_a, of_b = (TopicIdPartition(topic, "orders", number) for number in (0, 1))
    home_a, home_b = (metadata_partition_for(one, PARTITIONS) for one in (of_a, of_b))
    assert home_a != home_b
    log = await logs.fresh(PARTITIONS)
    writer = await start_all(log)
    await copy_segment(writer, 100, 0, 99, partition=of_a)
    await copy_segment(writer, 200, 0, 99, partition=of_b)
    await writer.close()

    a, b = await start(log, [home_a]), await start(await logs.another(log), [home_b])
    await a.wait_ready(home_a)
    await b.wait_ready(home_b)
    assert (numbers(a, of_a), numbers(b, of_b)) == ([100], [200])
    assert a.segment_at(of_b, 0, 42) is None, "another one's, and not a matter of waiting"
    await a.close()
    await b.close()
    await log.close()


@contract
async def test_reassignment_remove_then_readd_applies_no_duplicates(logs: EventLogs) -> None:
    log = await logs.fresh(PARTITIONS)
    manager = await start_all(log)
    await copy_segment(manager, 10, 0, 99)
    applied = sum(manager.metrics.events.values())
    await manager.reconcile_assignment([])
    await manager.reconcile_assignment([HOME])
    await manager.wait_ready(HOME)
    await copy_segment(manager, 11, 100, 199)
    assert sum(manager.metrics.events.values()) == applied + 2, "each event once"
    assert numbers(manager) == [10, 11]
    assert manager.segments(ORDERS)[0].state is SegmentState.COPY_FINISHED
    await manager.close()
    await log.close()
