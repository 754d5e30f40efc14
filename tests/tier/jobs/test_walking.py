"""Many segments are walked bit by bit, and others work in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headwater.core import runtime
from headwater.tier import SegmentMetadata, segment_cover
from headwater.tier.jobs.copying import copy_local
from headwater.tier.jobs.deletion import drop_remote
from headwater.tier.reader import TierArchive
from headwater.tier.segment_cover import RefreshedCover, walk_cover, walk_segments
from headwater.tier.segment_table import SegmentTable
from tests.tier.jobs.given import FAR, Led, Place, in_time
from tests.tier.jobs.sealed_wal import SealedWal

SEGMENTS = 100


def test_a_walk_gives_the_cover_and_lets_others_work(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        place = Place()
        await place.lead(1, merge_below_bytes=0).write(12).round()
        led = place.lead(2, merge_below_bytes=0, local_retention_bytes=1 << 30)
        led.write(12)
        await led.led.begin()
        for first_lsn in (3, 7, 11):
            await copy_local(led.led, range(first_lsn, first_lsn + 2))
        paused = 0
        sleep = runtime.sleep

        async def counted(seconds: float) -> None:
            nonlocal paused
            paused += seconds == 0
            await sleep(seconds)

        monkeypatch.setattr(runtime, "sleep", counted)
        monkeypatch.setattr(segment_cover, "SEGMENTS_AT_ONCE", 1)
        walked = [piece async for piece in walk_cover(led.metadata, 1, FAR)]

        assert walked == led.metadata.cover(1, FAR)
        assert [piece.lsns for piece in walked][:3] == [range(1, 3), range(3, 5), range(5, 7)]
        assert paused >= 3

    in_time(main)


def test_all_that_is_listed_is_walked_whatever_begins_where(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        place = Place()
        await place.lead(1, merge_below_bytes=0).write(4, 4, 4).round()
        led = place.lead(2, merge_below_bytes=0, local_retention_bytes=1 << 30).write(12)
        await led.led.begin()
        for lsns in (range(1, 3), range(5, 9), range(5, 7), range(11, 13)):
            await copy_local(led.led, lsns)
        listed = led.metadata.segments()
        assert len(listed) == 7

        for at_once in range(1, 9):
            monkeypatch.setattr(segment_cover, "SEGMENTS_AT_ONCE", at_once)
            assert [one async for one in walk_segments(led.metadata)] == listed

    in_time(main)


async def _scrub(led: Led) -> None:
    assert (await led.manager.scrub(mend=False)).is_clean


async def _delete(led: Led) -> None:
    assert await led.manager.delete_partition()


async def _give_up(led: Led) -> None:
    await drop_remote(led.led)


async def _held(led: Led) -> None:
    covering, start = RefreshedCover(led.metadata), led.led.register.first_lsn
    assert await TierArchive("the tier", led.storage, covering, start).held() == range(
        1, SEGMENTS + 1
    )


@pytest.mark.parametrize("work", [_scrub, _delete, _give_up, _held])
def test_whoever_goes_through_all_segments_lets_others_work(
    work: Callable[[Led], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        led = await Place().lead(1, merge_below_bytes=0).write(*[1] * SEGMENTS).round()
        monkeypatch.setattr(segment_cover, "SEGMENTS_AT_ONCE", 1)
        made, most = 0, 0
        metadata = SegmentTable.metadata

        def counted(table: SegmentTable, row: int) -> SegmentMetadata:
            nonlocal made, most
            made += 1
            most = max(most, made)
            return metadata(table, row)

        async def others() -> None:
            nonlocal made
            while True:
                made = 0
                await runtime.sleep(0)

        monkeypatch.setattr(SegmentTable, "metadata", counted)
        meanwhile = runtime.spawn(others(), name="others")
        await work(led)
        meanwhile.cancel()
        assert 0 < most < SEGMENTS // 4

    in_time(main)


async def _with_a_gap(led: Led) -> None:
    await led.led.voice.unlist(led.metadata.segments()[1])
    led.led._tiered_lsn = -1


async def _unlisted_for_another(led: Led) -> None:
    first = led.metadata.segments()[0]
    await copy_local(led.led, range(1, 2))
    led.led.tiered_lsn()
    await led.led.unlist(first)


@pytest.mark.parametrize(
    ("given", "through"), [(_with_a_gap, 1), (_unlisted_for_another, SEGMENTS)]
)
def test_how_far_the_tier_goes_is_found_without_going_through_it(
    given: Callable[[Led], Awaitable[None]], through: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        led = Place().lead(1, merge_below_bytes=0, local_retention_bytes=1 << 30)
        await led.write(*[1] * SEGMENTS).round()
        await given(led)
        made, metadata = 0, SegmentTable.metadata

        def counted(table: SegmentTable, row: int) -> SegmentMetadata:
            nonlocal made
            made += 1
            return metadata(table, row)

        monkeypatch.setattr(SegmentTable, "metadata", counted)
        assert led.led.tiered_lsn() == through
        assert made < SEGMENTS // 4

    in_time(main)


def test_what_is_remote_beyond_a_gap_is_not_told_as_lost() -> None:
    async def main() -> None:
        place = Place()
        before = await place.lead(1, merge_below_bytes=0).write(5, 5, 5).round()
        await before.led.voice.unlist(before.metadata.segments()[1])
        led = place.lead(2, merge_below_bytes=0, wal=SealedWal(first_lsn=16)).write(5)
        await led.manager.run_once()
        assert led.manager.metrics.missing_lsns == 5

    in_time(main)
