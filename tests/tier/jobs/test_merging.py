"""Small segments are merged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from headwater.core import limits
from headwater.log.record.group import Group, check_columns
from headwater.store import MemoryBackend, Store
from headwater.tier import SegmentMetadata, SegmentState, segment_cover
from headwater.tier.cache import PartitionCache
from headwater.tier.errors import NotOneSegment
from headwater.tier.jobs import TierConfig
from headwater.tier.jobs.merging import next_run
from headwater.tier.segment_table import SegmentTable
from headwater.tier.segments import ParquetSegments, columns
from tests.tier.jobs.given import FAR, HOUR_MS, ORDERS, Led, Place, in_time
from tests.tier.jobs.plain_storage import plain_key
from tests.tier.jobs.sealed_wal import SealedWal
from tests.tier.jobs.test_parquet_segments import copied
from tests.tier.segments.given import each

FINISHED, DELETING = SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED
SMALL = 10_000


async def records(led: Led) -> list[bytes]:
    """Everything, as a reader gets it."""
    found: list[bytes] = []
    for piece in led.metadata.state().cover(0, FAR):
        async for group in led.storage.fetch(piece.segment, piece.lsns.start, piece.lsns.stop):
            found += group.records.column(0).to_pylist()
    return found


def test_neighbours_that_are_small_are_merged_when_they_are_enough() -> None:
    async def main() -> None:
        led = Place().lead(merge_below_bytes=SMALL, merge_segments=3).write(2, 2)
        assert (await led.round()).covered() == [range(1, 3), range(3, 5)]

        await led.write(2).round()

        assert led.covered() == [range(1, 7)]
        assert led.states().count(DELETING) == 3
        assert await records(led) == [b"%d" % lsn for lsn in range(1, 7)]

    in_time(main)


def test_what_was_merged_can_be_read_until_the_delay_is_over() -> None:
    async def main() -> None:
        led = Place().lead(merge_below_bytes=SMALL, merge_segments=3).write(2, 2)
        await led.round()
        taken = led.metadata.state().cover(0, FAR)
        await led.write(2).round()
        await asyncio.sleep(23 * 3600.0)
        await led.round()
        for piece in taken:
            await led.storage.verify(piece.segment)

        await asyncio.sleep(2 * 3600.0)
        assert (await led.round()).states() == [FINISHED]
        assert len(led.place.object_names()) == 1

    in_time(main)


def test_few_small_ones_between_large_ones_do_not_wait_for_more() -> None:
    async def main() -> None:
        led = Place().lead(merge_below_bytes=200, merge_segments=10).write(2, 2, 100, 2)
        await led.round()

        assert led.covered() == [range(1, 5), range(5, 105), range(105, 107)]

    in_time(main)


def test_a_merged_segment_is_no_larger_than_it_may_be() -> None:
    async def main() -> None:
        led = await Place().lead(merge_below_bytes=0).write(*[5] * 9).round()
        size = max(one.size_bytes for one in led.metadata.state().segments())
        again = led.place.lead(
            2, wal=led.wal, merge_below_bytes=size + 1, merge_target_bytes=4 * size
        )
        again.write(200)
        await again.round()

        assert [len(lsns) for lsns in again.covered()] == [20, 20, 5, 200]

    in_time(main)


def test_what_an_older_leader_copied_as_well_is_unlisted() -> None:
    async def main() -> None:
        place = Place()
        await place.lead(1).write(6).round()
        led = place.lead(2, wal=SealedWal()).write(6)
        await led.led.begin()
        prepared = await led.storage.prepare(1, 6, led.led.local_groups(1, 6))
        await led.led.publisher.copy_started(prepared)
        await led.storage.copy(prepared)
        await led.led.publisher.copy_finished(prepared)

        await led.round()

        assert sorted(led.states()) == [FINISHED, DELETING]
        assert (
            led.metadata.state().cover(0, FAR)[0].segment.segment_id == prepared.metadata.segment_id
        )

    in_time(main)


def test_a_segment_that_is_still_read_in_part_stays() -> None:
    async def main() -> None:
        place = Place()
        await place.lead(1).write(6).round()
        led = place.lead(2, wal=SealedWal()).write(6)
        await led.led.begin()
        prepared = await led.storage.prepare(4, 6, led.led.local_groups(4, 6))
        await led.led.publisher.copy_started(prepared)
        await led.storage.copy(prepared)
        await led.led.publisher.copy_finished(prepared)

        await led.round()

        assert led.states() == [FINISHED, FINISHED]
        assert led.covered() == [range(1, 4), range(4, 7)]

    in_time(main)


def test_epochs_that_fall_are_not_merged() -> None:
    async def main() -> None:
        place = Place()
        await place.lead(1).write(2, 2, 2).round()
        led = place.lead(2, wal=SealedWal(), merge_below_bytes=SMALL, merge_segments=3)
        led.write(6)
        await led.led.begin()
        prepared = await led.storage.prepare(3, 4, led.led.local_groups(3, 4))
        await led.led.publisher.copy_started(prepared)
        await led.storage.copy(prepared)
        await led.led.publisher.copy_finished(prepared)

        await led.round()

        assert led.covered() == [range(1, 5), range(5, 7)]

    in_time(main)


def test_only_what_does_not_fit_stands_apart() -> None:
    async def main() -> None:
        led = await Place().lead(merge_below_bytes=0).write(2, 2, 2, 2, 2).round()
        prepare = led.storage.prepare

        async def in_two_parts(first_lsn: int, last_lsn: int, *how: Any, **more: Any) -> Any:
            if first_lsn < 7 <= last_lsn:
                raise NotOneSegment("columns of another kind", at_lsn=7)
            return await prepare(first_lsn, last_lsn, *how, **more)

        led.storage.prepare = in_two_parts
        led.manager.configure(TierConfig(merge_segments=2))
        await led.round()

        assert led.covered() == [range(1, 7), range(7, 11)]

    in_time(main)


def test_a_byte_is_written_again_about_as_often_as_its_segment_doubles() -> None:
    async def main() -> None:
        led = Place().lead(merge_below_bytes=1 << 20, merge_segments=4)
        for _ in range(200):
            await led.write(1).round()

        assert len(led.covered()) <= 12
        whole = sum(
            one.size_bytes for one in led.metadata.state().segments() if one.state is FINISHED
        )
        assert led.manager.metrics.merged_bytes <= 8 * whole

    in_time(main)


def test_rounds_in_which_nothing_happens_look_at_few_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        led = Place().lead(merge_below_bytes=60, retention_ms=HOUR_MS, retention_bytes=1 << 30)
        await led.write(*[20] * 300).round()
        looked_at = 0
        metadata = SegmentTable.metadata

        def counted(self: SegmentTable, row: int) -> SegmentMetadata:
            nonlocal looked_at
            looked_at += 1
            return metadata(self, row)

        with monkeypatch.context() as patch:
            patch.setattr(SegmentTable, "metadata", counted)
            patch.setattr(segment_cover, "SEGMENTS_AT_ONCE", 10)
            await led.round()
            await led.round()
            assert looked_at <= 60
            looked_at = 0
            await led.write(20).round()
            assert looked_at <= 700, "the bytes are counted again, and nothing else"

    in_time(main)


def test_what_was_merged_stays_while_the_merged_segment_cannot_be_read() -> None:
    async def main() -> None:
        led = Place().lead(merge_below_bytes=SMALL, merge_segments=3).write(2, 2, 2)
        await led.round()
        assert led.covered() == [range(1, 7)]
        merged = led.metadata.state().cover(0, FAR)[0].segment
        await led.storage.delete(merged.segment_id)
        await asyncio.sleep(25 * 3600.0)
        await led.manager.run_once()
        assert "stays until a scrub" in str(led.manager.problems["clean up"])
        assert len(led.place.object_names()) == 3

    in_time(main)


@pytest.mark.parametrize("data", [None, b"[]"], ids=["gone", "damaged"])
def test_a_merged_segment_is_mended_from_what_it_was_merged_from(data: bytes | None) -> None:
    async def main() -> None:
        led = Place().lead(merge_below_bytes=SMALL, merge_segments=3).write(2, 2, 2)
        await led.round()
        assert led.wal.oldest_lsn() == 7
        merged = led.metadata.state().cover(0, FAR)[0].segment
        await led.damage(led.metadata.state().segments().index(merged), data)
        assert (await led.manager.scrub(repair=True)).is_clean
        assert await records(led) == [b"%d" % lsn for lsn in range(1, 7)]
        await asyncio.sleep(25 * 3600.0)
        await led.round()
        assert (await led.manager.scrub(repair=False)).findings == ()

    in_time(main)


def test_a_damaged_segment_that_replaced_many_is_read_once_a_round() -> None:
    async def main() -> None:
        place = Place()
        led = place.lead(1, merge_segments=8, delete_delay_ms=1000).write(*[2] * 8)
        await led.round()
        merged = led.metadata.state().cover(0, FAR)[0].segment
        await place.backend.put(plain_key(merged.segment_id), b"damaged")
        led.led.verified.clear()
        read, verify = 0, led.storage.verify

        async def counted(segment: SegmentMetadata) -> None:
            nonlocal read
            read += 1
            await verify(segment)

        led.storage.verify = counted
        await asyncio.sleep(10.0)
        await led.manager.run_once()
        assert "cannot be read" in str(led.manager.problems["clean up"])
        assert read == 1
        assert led.states().count(DELETING) == 8

    in_time(main)


def test_a_run_is_looked_for_no_further_than_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        led = await Place().lead(merge_below_bytes=0).write(*[1] * 40).round()
        monkeypatch.setattr(segment_cover, "SEGMENTS_AT_ONCE", 1)
        led.manager.configure(TierConfig(merge_below_bytes=SMALL, merge_segments=4))
        looked = 0
        cover_part = PartitionCache.cover_part

        def counted(*arguments: Any) -> Any:
            nonlocal looked
            looked += 1
            return cover_part(*arguments)

        monkeypatch.setattr(PartitionCache, "cover_part", counted)
        run = await next_run(led.led)
        assert run is not None
        assert [piece.lsns for piece in run] == [range(lsn, lsn + 1) for lsn in range(1, 5)]
        assert looked < 10

    in_time(main)


def test_settings_that_come_while_a_run_is_looked_for_count_from_the_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        led = await Place().lead(merge_below_bytes=0).write(*[1] * 4).round()
        monkeypatch.setattr(segment_cover, "SEGMENTS_AT_ONCE", 1)
        led.led.merge_checked_lsn = -1
        looking = asyncio.ensure_future(next_run(led.led))
        await asyncio.sleep(0)
        led.manager.configure(TierConfig(merge_below_bytes=SMALL, merge_segments=4))
        await looking
        assert (await led.round()).covered() == [range(1, 5)]

    in_time(main)


# Merging segments of many different columns: each schema is looked at once, and they stay few.


def wide(lsn: int, names: Sequence[str]) -> Group:
    return Group(1, lsn, lsn, pa.record_batch({name: [lsn] for name in names}))


def own(number: int, count: int) -> list[str]:
    return [f"s{number}_{column}" for column in range(count)]


def test_to_merge_looks_at_each_schema_as_often_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[pa.Schema] = []
    check = check_columns

    def counted(schema: pa.Schema) -> None:
        looked.append(schema)
        check(schema)

    async def looks(count: int) -> float:
        segments = ParquetSegments(Store(MemoryBackend()), ORDERS)
        groups = [wide(lsn, own(lsn, 3)) for lsn in range(1, count + 1)]
        sources = [await copied(segments, group) for group in groups]
        looked.clear()
        await segments.prepare(1, count, each(groups), merged_from=sources)
        return len(looked) / count

    async def main() -> None:
        monkeypatch.setattr(columns, "check_columns", counted)
        assert await looks(4) == await looks(16)

    in_time(main)


def test_beyond_so_many_different_columns_segments_stay_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        monkeypatch.setattr(limits, "TIER_MERGE_COLUMNS", 8)
        segments = ParquetSegments(Store(MemoryBackend()), ORDERS)
        groups = [wide(1, own(1, 4)), wide(2, own(2, 4)), wide(3, own(3, 1))]
        sources = [await copied(segments, group) for group in groups]
        with pytest.raises(NotOneSegment, match="TIER_MERGE_COLUMNS") as refused:
            await segments.prepare(1, 3, each(groups), merged_from=sources)
        assert refused.value.at_lsn == 3
        await segments.prepare(1, 2, each(groups[:2]), merged_from=sources[:2])

        alike = [wide(4, own(4, 20)), wide(5, own(4, 20))]
        sources = [await copied(segments, group) for group in alike]
        await segments.prepare(4, 5, each(alike), merged_from=sources)

    in_time(main)
