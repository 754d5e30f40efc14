"""The cover that a reader goes by: as the events have it when it is asked for."""

from __future__ import annotations

import pytest

from headwater.core.errors import Refused
from headwater.store import MemoryBackend, Store
from headwater.testing import MemoryWal
from headwater.tier import NotReady, TopicMetadataManager
from headwater.tier.eventlog import InProcessEventLog
from headwater.tier.jobs import LogStartRegister
from headwater.tier.manager import ManagedPartition
from headwater.tier.reader import LogReader
from headwater.tier.segments import ObjectStorage
from tests.store.scripted import virtual
from tests.tier.given import ORDERS, copy_finished, copy_started
from tests.tier.jobs.followed import FollowedPartition
from tests.tier.segments.given import encoded, lsns, orders


@virtual
async def test_a_reader_that_heard_of_nothing_reads_what_its_log_was_pruned_of() -> None:
    store, log, wal = Store(MemoryBackend()), InProcessEventLog(1), MemoryWal()
    storage, start = ObjectStorage(store), LogStartRegister(store, ORDERS)
    group = wal.append_group(orders(1, 20))
    leader, follower = FollowedPartition(log, ORDERS), FollowedPartition(log, ORDERS)
    reader = LogReader(storage, follower.refreshed_cover, start.first_lsn, wal)

    await start.begin_epoch(1, began_ms=1, oldest_lsn=1)
    segment = encoded([group.between(1, 15) or group])
    await leader.publish(copy_started(segment), publisher_epoch=1)
    await storage.copy(segment)
    await leader.publish(copy_finished(segment), publisher_epoch=1)
    await wal.prune_through(15)

    assert follower.state().segments() == []
    assert lsns([one async for one in reader.read(1, 21)]) == list(range(1, 21))


@virtual
async def test_a_partition_that_nobody_follows_is_not_taken_for_one_without_segments() -> None:
    manager = await TopicMetadataManager.start(InProcessEventLog(3))
    partition = ManagedPartition(manager, ORDERS)
    number = manager.metadata_partition(ORDERS)
    with pytest.raises(NotReady, match="assign it") as unknown:
        partition.state()
    assert unknown.value.partition == number
    with pytest.raises(NotReady, match="assign it"):
        await partition.refreshed_cover(1, 9)
    await manager.reconcile_assignment({number})
    assert await partition.refreshed_cover(1, 9) == []
    assert partition.state().is_blank
    await manager.close()
    with pytest.raises(Refused, match="closed"):
        partition.state()
