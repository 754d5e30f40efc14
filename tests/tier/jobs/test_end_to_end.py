"""From a spool to Parquet objects and back, with a metadata manager between: nothing is faked."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.core import limits
from headwater.log import Spool, SpoolConfig
from headwater.log.record import record_hashes
from headwater.log.spool import prepare_lost
from headwater.store import MemoryBackend, Store
from headwater.tier import TopicIdPartition, TopicMetadataManager
from headwater.tier.eventlog import InProcessEventLog
from headwater.tier.jobs import (
    Leader,
    LedPartition,
    LogStartRegister,
    ManagedPartition,
    ParquetSegments,
    TierConfig,
    TierManager,
)
from headwater.tier.segments import SegmentConfig

ORDERS = TopicIdPartition(uuid.UUID(int=5), "orders", 0)


async def led_by(
    epoch: int, spool: Spool, store: Store, log: InProcessEventLog, config: TierConfig
) -> tuple[TierManager, TopicMetadataManager]:
    manager = await TopicMetadataManager.start(log)
    await manager.reconcile_assignment({manager.metadata_partition(ORDERS)})
    led = LedPartition(
        Leader(ORDERS, epoch, 1, committed_lsn=spool.current_lsn, slot_floor_lsn=spool.current_lsn),
        metadata=ManagedPartition(manager, ORDERS),
        storage=ParquetSegments(store, ORDERS, sequences=lambda first, last: (first, last)),
        local=spool,
        log_start=LogStartRegister(store, ORDERS),
        config=config,
    )
    return TierManager(led), manager


async def append(spool: Spool, *, term: int, rows: int) -> None:
    first = spool.current_lsn() + 1
    values = pa.array([b"%d" % lsn for lsn in range(first, first + rows)])
    await spool.append(pa.record_batch({"_value": values}), term=term)
    await spool.seal()


async def hashes(tier: TierManager) -> list[bytes]:
    found: list[bytes] = []
    for piece in tier.led.metadata.cover(0, 1 << 40):
        groups = tier.led.storage.fetch(piece.segment, piece.lsns.start, piece.lsns.stop)
        async for group in groups:
            found += list(record_hashes(group))
    return found


def test_records_are_the_same_in_the_tier_merged_under_the_next_leader(tmp_path: Path) -> None:
    async def main() -> None:
        store, log = Store(MemoryBackend()), InProcessEventLog(3)
        spool = Spool.open(str(tmp_path / "log"), first_lsn=1)
        for _ in range(3):
            await append(spool, term=1, rows=20)
        wanted: list[bytes] = []
        for group in await spool.read_since(0):
            wanted += list(record_hashes(group))
        first, metadata = await led_by(1, spool, store, log, TierConfig())
        await first.run_once()
        assert first.problems == {}
        assert spool.oldest_lsn() == 61
        assert await hashes(first) == wanted
        await metadata.close()

        await append(spool, term=2, rows=5)
        config = TierConfig(merge_segments=4, orphan_grace_ms=0)
        second, metadata = await led_by(2, spool, store, log, config)
        await second.run_once()
        assert second.problems == {}
        [piece] = second.led.metadata.cover(0, 1 << 40)
        assert (piece.lsns, piece.segment.epochs) == (range(1, 66), ((1, 1), (2, 61)))
        assert (await hashes(second))[:60] == wanted
        assert second.led.storage.schema_version(piece.segment) == 0

        scrubbed = await second.scrub(mend=True)
        assert (scrubbed.findings, scrubbed.objects) == ((), 5)
        stray = await second.led.storage.prepare(
            1, 65, second.led.storage.fetch(piece.segment, 1, 66), merged_from=[piece.segment]
        )
        await second.led.storage.copy(stray)
        [orphan] = (await second.scrub(mend=True)).findings
        assert orphan.mended
        assert await second.delete_partition()
        assert [found async for found in second.led.storage.objects()] == []
        await metadata.close()
        await spool.close()

    asyncio.run(main())


ROWS = [
    pa.record_batch({"id": [1, 2], "name": ["a", "b"]}),
    pa.record_batch({"id": [3], "name": ["c"], "email": ["x@y"]}),
    pa.record_batch({"id": [4], "phone": ["1"]}),
]


@pytest.mark.parametrize("lost", [0, 1, 9], ids="{} lost at the end".format)
def test_records_with_optional_columns_are_one_segment_each_time(
    lost: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the first row group is written before a column comes that those behind it have."""
    monkeypatch.setattr(limits, "TIER_ROW_GROUP_BYTES", 100)

    async def main() -> None:
        store, log = Store(MemoryBackend()), InProcessEventLog(3)
        spool = Spool.open(str(tmp_path / "log"), config=SpoolConfig(sync="none"))
        wanted: list[bytes] = []
        for records in [*ROWS[:1] * 20, *ROWS[:2] * 20, *ROWS * 20]:
            await spool.append(records, term=1)
        for group in await spool.read_since(0):
            wanted += list(record_hashes(group))
        if lost:
            await spool.append(prepare_lost(lost, "gone"), term=1)
        await spool.seal()
        tier, metadata = await led_by(1, spool, store, log, TierConfig())
        storage = ParquetSegments(store, ORDERS, config=SegmentConfig(row_group_bytes=1_000))
        tier.led.storage = storage
        await tier.run_once()
        assert (tier.problems, tier.metrics.copied_segments) == ({}, 1)
        [piece] = tier.led.metadata.cover(0, 1 << 40)
        described = (await storage.fetch_index(piece.segment)).description
        assert (len(described.row_groups) > 1, len(described.schemas)) == (True, 1)
        assert (await hashes(tier))[: len(wanted)] == wanted
        await metadata.close()
        await spool.close()

    asyncio.run(main())
