"""The rounds of a leader's jobs, their failures and retries."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from headwater.core import limits
from headwater.core.errors import Denied, HeadwaterError, Unavailable
from headwater.log import Spool, SpoolConfig
from headwater.log.record import record_hashes
from headwater.log.record.group import Group
from headwater.log.spool import prepare_lost
from headwater.store import MemoryBackend, Store
from headwater.tier import SegmentId, SegmentState, TopicIdPartition, TopicMetadataManager
from headwater.tier.cache import PartitionCache
from headwater.tier.errors import NotReady
from headwater.tier.eventlog import InProcessEventLog
from headwater.tier.jobs import Leader, LedPartition, LogStartRegister, TierConfig, TierManager
from headwater.tier.manager import ManagedPartition
from headwater.tier.segments import ParquetSegments, SegmentConfig
from tests.tier.jobs.given import Led, Place, in_time
from tests.tier.jobs.plain_storage import groups_of, plain_key
from tests.tier.jobs.test_comparing import other_records

FINISHED, DELETING = SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED


class Locks:
    """Objects that cannot be removed."""

    def __init__(self, led: Led, error: HeadwaterError) -> None:
        self.locked: set[SegmentId] = set()
        self.tried = 0
        self._error = error
        self._delete = led.storage.delete
        led.storage.delete = self.delete

    async def delete(self, segment_id: SegmentId) -> None:
        self.tried += 1
        if segment_id in self.locked:
            raise self._error
        await self._delete(segment_id)


async def _records(count: int) -> AsyncIterator[Group]:
    for group in groups_of([(1, 1, ["record"] * count)]):
        yield group


def test_an_object_that_cannot_be_removed_keeps_no_other() -> None:
    async def main() -> None:
        led = Place().lead(merge_below_bytes=0, retention_bytes=0, delete_delay_ms=0)
        locks = Locks(led, Denied("an object lock is on it"))
        await led.write(3, 3, 3).round()
        locks.locked = {led.metadata.state().segments()[0].segment_id}
        await led.manager.run_once()

        assert (led.states(), len(led.place.object_names())) == ([DELETING], 1)
        assert "object lock" in str(led.manager.problems["clean up"])

        locks.locked.clear()
        assert (await led.round()).states() == []

    in_time(main)


def test_a_store_that_does_not_answer_is_not_asked_for_every_object() -> None:
    async def main() -> None:
        led = Place().lead(merge_below_bytes=0, retention_bytes=0, delete_delay_ms=0)
        locks = Locks(led, Unavailable("nobody there"))
        await led.write(*[1] * 8).round()
        locks.locked = {one.segment_id for one in led.metadata.state().segments()}
        await led.manager.run_once()

        assert locks.tried == 3

    in_time(main)


@pytest.mark.parametrize("content", [b"garbage", None])
def test_a_segment_that_cannot_be_read_keeps_no_other_from_being_merged(
    content: bytes | None,
) -> None:
    async def main() -> None:
        led = await Place().lead(merge_below_bytes=0).write(3, 3, 3, 3).round()
        await led.damage(1, content)
        led.manager.configure(TierConfig(merge_segments=2))
        await led.manager.run_once()

        assert led.covered() == [range(1, 4), range(4, 7), range(7, 13)]
        assert "cannot be read and is not merged" in str(led.manager.problems["merge"])

        await led.manager.run_once()
        assert "merge" in led.manager.problems, "it is still told"

    in_time(main)


def test_what_was_refused_in_one_round_is_merged_in_the_next() -> None:
    async def main() -> None:
        led = await Place().lead(merge_below_bytes=0).write(3, 3).round()
        copy = led.storage.copy
        led.manager.configure(TierConfig(merge_segments=2))

        async def denied(prepared: Any) -> None:
            raise Denied("the token is too old")

        led.storage.copy = denied
        await led.manager.run_once()
        assert "too old" in str(led.manager.problems["merge"])

        led.storage.copy = copy
        assert (await led.round()).covered() == [range(1, 7)]

    in_time(main)


def test_a_job_that_fails_slows_down_no_other() -> None:
    async def main() -> None:
        led = Place().lead(merge_segments=2, interval_s=10.0, retry_cap_s=300.0)
        led.manager.configure(TierConfig(merge_below_bytes=0))
        await led.write(3, 3).round()
        await led.place.backend.put(
            plain_key(led.metadata.state().segments()[0].segment_id), b"garbage"
        )
        led.manager.configure(TierConfig(merge_segments=2, interval_s=10.0, retry_cap_s=300.0))
        running = asyncio.ensure_future(led.manager.run())
        await asyncio.sleep(3600.0)
        failed = led.manager.metrics.failures["merge"]
        assert 12 <= failed <= 40

        led.write(3)
        await asyncio.sleep(21.0)
        assert led.led.tiered_lsn() == 9
        running.cancel()

    in_time(main)


def test_a_partition_goes_but_for_what_cannot_be_removed_and_that_later() -> None:
    async def main() -> None:
        led = await Place().lead().write(3, 3, 3).round()
        locks = Locks(led, Denied("an object lock is on it"))
        locks.locked = {led.metadata.state().segments()[1].segment_id}
        assert not await led.manager.delete_partition()
        assert (led.states(), len(led.place.object_names())) == ([DELETING], 1)

        locks.locked.clear()
        assert await led.manager.delete_partition()
        assert led.place.object_names() == set()

    in_time(main)


def test_what_was_done_is_counted_also_of_a_job_that_did_not_come_to_its_end() -> None:
    async def main() -> None:
        led = Place().lead(merge_below_bytes=0).write(3, 3, 3)
        led.wal.append(2, term=1)
        copy, metrics = led.storage.copy, led.manager.metrics

        async def third_time_unlucky(prepared: Any) -> None:
            if metrics.copied_segments == 2:
                raise Denied("the quota is used up")
            await copy(prepared)

        led.storage.copy = third_time_unlucky
        await led.manager.run_once()

        assert (metrics.copied_segments, metrics.failures["copy"]) == (2, 1)
        assert metrics.copied_bytes == sum(
            one.size_bytes for one in led.metadata.state().segments() if one.state is FINISHED
        )
        assert (metrics.lag_lsns, metrics.dropped_lsns) == (5, 6)
        assert "copy" not in metrics.succeeded_ms
        assert "expire local" in metrics.succeeded_ms

    in_time(main)


def test_metadata_that_are_never_ready_are_not_asked_all_the_time() -> None:
    async def main() -> None:
        led = Place().lead(merge_below_bytes=0, interval_s=10.0, retry_cap_s=300.0)
        await led.write(3).round()
        questions = 0

        def never(*how: Any) -> Any:
            nonlocal questions
            questions += 1
            raise NotReady("not yet", partition=0)

        running = asyncio.ensure_future(led.manager.run())
        with mock.patch.object(PartitionCache, "unfinished", never):
            await asyncio.sleep(1200.0)
            with mock.patch.object(PartitionCache, "cover_part", never):
                await asyncio.sleep(1200.0)
                led.metadata.state = never  # type: ignore[method-assign]
                await asyncio.sleep(1200.0)

        assert led.manager.problems.keys() >= {"clean up", "copy", "choose jobs"}
        assert questions <= 3 * 3600 / 10
        running.cancel()

    in_time(main)


def test_a_job_that_failed_and_waits_for_the_logs_to_agree_spins_nobody() -> None:
    async def main() -> None:
        place = Place()
        before = await place.lead(1, merge_below_bytes=0).write(5).round()
        begun = await before.storage.prepare(1, 5, _records(5))
        await before.led.publisher.copy_started(begun)
        led = place.lead(2, merge_below_bytes=0, interval_s=10.0)
        Locks(led, Denied("an object lock is on it")).locked = {begun.metadata.segment_id}
        other_records(led.wal, 5, term=2)
        rounds, check = 0, led.led.register.check_stream

        async def counted() -> None:
            nonlocal rounds
            rounds += 1
            assert rounds < 1000, "round after round without a pause"
            await check()

        led.led.register.check_stream = counted  # type: ignore[method-assign]
        running = asyncio.ensure_future(led.manager.run())
        await asyncio.sleep(600.0)
        assert led.manager.problems.keys() == {"clean up", "compare"}
        assert 60 <= rounds <= 140
        running.cancel()

    in_time(main)


# From a spool to Parquet objects and back, with a metadata manager between: nothing is faked.


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
    for piece in tier.led.metadata.state().cover(0, 1 << 40):
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
        [piece] = second.led.metadata.state().cover(0, 1 << 40)
        assert (piece.lsns, piece.segment.epochs) == (range(1, 66), ((1, 1), (2, 61)))
        assert (await hashes(second))[:60] == wanted
        assert second.led.storage.schema_version(piece.segment) == 0

        scrubbed = await second.scrub(repair=True)
        assert (scrubbed.findings, scrubbed.objects) == ((), 5)
        stray = await second.led.storage.prepare(
            1, 65, second.led.storage.fetch(piece.segment, 1, 66), merged_from=[piece.segment]
        )
        await second.led.storage.copy(stray)
        [orphan] = (await second.scrub(repair=True)).findings
        assert orphan.repaired
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
        [piece] = tier.led.metadata.state().cover(0, 1 << 40)
        described = (await storage.fetch_index(piece.segment)).description
        assert (len(described.row_groups) > 1, len(described.schemas)) == (True, 1)
        assert (await hashes(tier))[: len(wanted)] == wanted
        await metadata.close()
        await spool.close()

    asyncio.run(main())
