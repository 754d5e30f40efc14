"""The state that the jobs share: a damaged local log, long covers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pyarrow as pa
import pytest

from headwater.core import runtime
from headwater.log import Spool, SpoolConfig
from headwater.log.record.group import Group
from headwater.log.spool.frame import SpoolCorrupt
from headwater.testing.disk import FaultyDisk
from headwater.testing.disk_state import FileNode
from headwater.tier import SegmentMetadata, segment_cover
from headwater.tier.errors import LocalLogDamaged
from headwater.tier.jobs.copying import copy_local
from headwater.tier.jobs.retention import drop_remote
from headwater.tier.reader import LogReader, TierArchive
from headwater.tier.segment_cover import walk_cover, walk_segments
from headwater.tier.segment_table import SegmentTable
from tests.log.given import segment_path
from tests.tier.jobs.given import FAR, Led, Place, in_time
from tests.tier.jobs.sealed_wal import SealedWal


class Damaged(SealedWal):
    """A log of which some LSNs cannot be read."""

    damaged: range = range(0)

    async def read_since(self, lsn: int, *, max_records: int, max_bytes: int) -> Sequence[Group]:
        if lsn + 1 in self.damaged:
            raise SpoolCorrupt("a flipped bit", path="log", offset=7, lsn=lsn + 1)
        if lsn + 1 < self.damaged.start:
            max_records = min(max_records, self.damaged.start - lsn - 1)
        return await super().read_since(lsn, max_records=max_records, max_bytes=max_bytes)


@pytest.mark.parametrize("damaged", [range(6, 8), range(9, 11)], ids=["at its start", "within it"])
def test_what_is_whole_around_the_damage_is_tiered_and_the_damage_is_told_by_its_type(
    damaged: range,
) -> None:
    async def main() -> None:
        wal = Damaged()
        led = Place().lead(wal=wal, merge_below_bytes=0).write(5, 5, 5, 5)
        wal.damaged = damaged
        for _ in range(3):
            await led.manager.run_once()
            before = [range(6, damaged.start)] if damaged.start > 6 else []
            assert led.covered() == [range(1, 6), *before, range(11, 16), range(16, 21)]
            assert led.manager.metrics.copied_segments == len(led.covered()), "each of them once"
            assert list(led.manager.problems) == ["look for losses"]
            problem = led.manager.problems["look for losses"]
            assert isinstance(problem, LocalLogDamaged)
            assert problem.lsns == range(damaged.start, 11)
            assert led.led.tiered_lsn() == damaged.start - 1 == wal.oldest_lsn() - 1
        led.write(5)
        await led.manager.run_once()
        assert led.covered()[-1] == range(21, 26)

        wal.damaged = range(0)  # repaired
        await led.round()
        assert (led.led.tiered_lsn(), wal.oldest_lsn()) == (25, 26)

    in_time(main)


def test_a_leader_that_takes_over_a_damaged_log_drops_what_the_tier_has_of_it() -> None:
    """Damage below what is remote is nobody's loss, and must not keep the disk full."""

    async def main() -> None:
        place = Place()
        before = Damaged()
        await place.lead(1, wal=before, local_retention_bytes=1 << 30).write(5, 5, 5).round()
        before.damaged = range(7, 9)
        led = await place.lead(2, wal=before, merge_below_bytes=0).round()
        assert (led.led.tiered_lsn(), before.oldest_lsn()) == (15, 16)

    in_time(main)


def test_what_cannot_be_read_here_is_not_dropped_for_a_remote_copy_that_is_damaged_too() -> None:
    async def main() -> None:
        place = Place()
        wal = Damaged()
        first = await place.lead(1, wal=wal, local_retention_bytes=1 << 30).write(5, 5, 5).round()
        wal.damaged = range(7, 9)
        await first.damage(1, b"rotten")
        led = place.lead(2, wal=wal, merge_below_bytes=0)
        await led.manager.run_once()
        assert wal.oldest_lsn() == 6

    in_time(main)


def records(first: int, last: int) -> pa.RecordBatch:
    return pa.record_batch({"_value": [b"%d" % lsn for lsn in range(first, last + 1)]})


def test_a_flipped_bit_in_a_spool_is_got_over_by_discarding_it_and_writing_it_again() -> None:
    """As a leader does whose records are in the queue until they are in the tier."""

    async def main() -> None:
        place, disk = Place(), FaultyDisk()
        config = SpoolConfig(tail_bytes=1)
        spool = Spool.open("/log", config=config, disk=disk)
        for first in range(1, 500, 100):
            await spool.append(records(first, first + 99), term=1)
            await spool.seal()
        path = segment_path(spool, spool.segments()[2])
        node = disk._tree.find(path)
        assert isinstance(node, FileNode)
        node.live[len(node.live) // 2] ^= 1

        led = place.lead(wal=spool, merge_below_bytes=0)  # type: ignore[arg-type]
        await led.manager.run_once()
        problem = led.manager.problems["look for losses"]
        assert isinstance(problem, LocalLogDamaged)
        assert isinstance(problem.__cause__, SpoolCorrupt)
        assert led.led.tiered_lsn() == 200 == problem.lsns.start - 1
        assert led.covered()[-2:] == [range(301, 401), range(401, 501)]

        await spool.close()
        Spool.discard("/log", disk=disk)
        spool = Spool.open("/log", first_lsn=led.led.tiered_lsn() + 1, config=config, disk=disk)
        await spool.append(records(201, 650), term=2)
        await spool.seal()
        again = await place.lead(2, wal=spool, merge_below_bytes=0).round()  # type: ignore[arg-type]
        assert (again.led.tiered_lsn(), spool.oldest_lsn()) == (650, 651)

    in_time(main)


# Many segments are walked bit by bit, and others work in between.


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
        walked = [piece async for piece in walk_cover(led.metadata.state, 1, FAR)]

        assert walked == led.metadata.state().cover(1, FAR)
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
        listed = led.metadata.state().segments()
        assert len(listed) == 7

        for at_once in range(1, 9):
            monkeypatch.setattr(segment_cover, "SEGMENTS_AT_ONCE", at_once)
            assert [one async for one in walk_segments(led.metadata.state)] == listed

    in_time(main)


async def _scrub(led: Led) -> None:
    assert (await led.manager.scrub(repair=False)).is_clean


async def _delete(led: Led) -> None:
    assert await led.manager.delete_partition()


async def _give_up(led: Led) -> None:
    await drop_remote(led.led)


async def _held(led: Led) -> None:
    covering, start = led.metadata.refreshed_cover, led.led.register.first_lsn
    assert await TierArchive("the tier", LogReader(led.storage, covering, start)).held() == range(
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
    await led.led.publisher.unlist(led.metadata.state().segments()[1])
    led.led._tiered_lsn = -1


async def _unlisted_for_another(led: Led) -> None:
    first = led.metadata.state().segments()[0]
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
        await before.led.publisher.unlist(before.metadata.state().segments()[1])
        led = place.lead(2, merge_below_bytes=0, wal=SealedWal(first_lsn=16)).write(5)
        await led.manager.run_once()
        assert led.manager.metrics.missing_lsns == 5

    in_time(main)
