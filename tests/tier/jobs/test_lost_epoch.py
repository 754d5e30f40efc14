"""An epoch that no leader reaches is not the end of its partition."""

from __future__ import annotations

import pytest

from headwater.core.errors import Fenced
from headwater.core.limits import EPOCH_STEP_MAX
from headwater.store import MemoryBackend, Store
from headwater.tier import PartitionDeleteState, TopicMetadataManager, encode_event
from headwater.tier.eventlog import InProcessEventLog, MetadataEventLog, StoredEventLog, renew
from headwater.tier.jobs import (
    Leader,
    LedPartition,
    LogStartRegister,
    ManagedPartition,
    TierConfig,
    TierManager,
    publish_deletion,
)
from tests.tier.given import started
from tests.tier.jobs.given import ORDERS, in_time
from tests.tier.jobs.plain_storage import PlainStorage
from tests.tier.jobs.sealed_wal import SealedWal

TOO_HIGH = 2 * EPOCH_STEP_MAX


async def led_by(epoch: int, store: Store, log: MetadataEventLog, wal: SealedWal) -> TierManager:
    """One round under an epoch, with all that a leader of its own has."""
    manager = await TopicMetadataManager.start(log)
    await manager.reconcile_assignment({manager.metadata_partition(ORDERS)})
    wal.append(3, term=1)
    wal.seal()
    leader = Leader(ORDERS, epoch, 1, committed_lsn=wal.current_lsn, slot_floor_lsn=wal.current_lsn)
    tier = TierManager(
        LedPartition(
            leader,
            metadata=ManagedPartition(manager, ORDERS),
            storage=PlainStorage(store, ORDERS),
            local=wal,
            log_start=LogStartRegister(store, ORDERS),
            config=TierConfig(),
        )
    )
    try:
        await tier.run_once()
    finally:
        await manager.close()
    return tier


def test_the_first_leader_leads_whatever_its_epoch_and_a_slip_after_it_is_refused() -> None:
    """A consumer may have been opened more than a million times before anything was tiered."""

    async def main() -> None:
        store, wal = Store(MemoryBackend()), SealedWal()
        log = await StoredEventLog.open(store, partition_count=1)
        first = await led_by(TOO_HIGH, store, log, wal)
        assert (first.problems, wal.oldest_lsn()) == ({}, 4), "all of it is remote"
        events = await log.high_water_marks()

        slipped = await led_by(2 * TOO_HIGH, store, log, wal)
        assert f"{TOO_HIGH} was the last" in str(slipped.problems["begin"])
        assert await log.high_water_marks() == events

        led = await led_by(TOO_HIGH + 1, store, log, wal)
        assert (led.problems, wal.oldest_lsn()) == ({}, 10), "all of it is remote"

    in_time(main)


def test_after_a_renewal_that_took_it_back_a_leader_leads_again() -> None:
    async def main() -> None:
        store, wal = Store(MemoryBackend()), SealedWal()
        log = await StoredEventLog.open(store, partition_count=1)
        await led_by(1, store, log, wal)
        foreign = started(99, 0, 9, publisher=EPOCH_STEP_MAX, partition=ORDERS)
        await log.publish(0, encode_event(foreign))
        await led_by(TOO_HIGH, store, log, wal)
        anew = await StoredEventLog.open(store, prefix="anew", partition_count=1)
        renewed = await renew(log, anew, epoch_max=1)
        with pytest.raises(Fenced):
            await led_by(2, store, anew, wal)

        register = LogStartRegister(store, ORDERS)
        before = await register.first_lsn()
        assert renewed.partitions == (ORDERS,)
        assert await register.lower(2)
        assert not await register.lower(2)
        led = await led_by(3, store, anew, wal)
        assert (led.problems, wal.oldest_lsn()) == ({}, 13), "all of it is remote"
        assert await register.first_lsn() == before

    in_time(main)


@pytest.mark.parametrize("last", [(1 << 31) - 1, (1 << 31) + 5, (1 << 64) - 1])
def test_a_stream_whose_last_leader_had_it_can_be_deleted(last: int) -> None:
    async def main() -> None:
        log = InProcessEventLog(1)
        await log.publish(0, encode_event(started(1, 0, 9, publisher=last, partition=ORDERS)))
        for step in PartitionDeleteState:
            await publish_deletion(log, [ORDERS], step)
        assert len(log.events_of(0)) == 4
        assert await publish_deletion(log, [ORDERS], PartitionDeleteState.FINISHED) == 0

    in_time(main)
