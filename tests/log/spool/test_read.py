"""Reading by LSN, waiting, pruning; positions of empty and of fully pruned spools."""

from __future__ import annotations

import asyncio
import math
import threading
from random import Random
from typing import Any

import pytest

from headwater.core import runtime
from headwater.core.errors import Refused
from headwater.log import SpoolConfig, SpoolCorrupt, Wal
from headwater.log.spool.codec import GroupFrame
from headwater.log.spool.frame import GroupKind
from headwater.log.spool.state import ReadPosition
from headwater.testing import Simulation, simulate
from headwater.testing.disk import FaultyDisk
from tests.log.given import (
    PATH,
    closing,
    contents,
    everything,
    found,
    numbered,
    opened,
    planted,
    segment_path,
    spans,
    wait,
)

SMALL = SpoolConfig(segment_bytes=2000, tail_bytes=8000)


def test_reads_are_by_record_whatever_the_grouping() -> None:
    spool = opened(FaultyDisk(), config=SMALL)
    lsn = 1
    for count in (1, 5, 3, 1, 10, 2, 7):
        wait(spool.append(numbered(lsn, count), term=1))
        lsn += count
    assert len(spool.segments()) > 1
    for start in range(lsn):
        for most in (1, 4, 100):
            groups = wait(spool.read_since(start, max_records=most))
            records = found(groups)
            assert list(records) == list(range(start + 1, min(start + most, lsn - 1) + 1))
            assert all(value == b"record %d" % one for one, value in records.items())


def test_bytes_are_bounded_but_one_record_always_comes() -> None:
    spool = opened(FaultyDisk())
    wait(spool.append(numbered(1, 100, size=100), term=1))
    some = wait(spool.read_since(0, max_bytes=1000))
    assert 1 <= len(some[0]) < 10
    assert some[0].nbytes <= 1000
    assert spans(wait(spool.read_since(5, max_bytes=1))) == [(6, 6)]
    with pytest.raises(Refused):
        wait(spool.read_since(0, max_records=0))


def test_a_group_on_disk_that_would_be_cut_is_left_whole_to_the_next_read() -> None:
    spool = opened(FaultyDisk(), config=SpoolConfig(tail_bytes=1))
    for first in (1, 101, 201):
        wait(spool.append(numbered(first, 100, size=100), term=1))
    [whole] = wait(spool.read_since(0, max_records=100))
    room_bytes = whole.nbytes * 3 // 2
    assert spans(wait(spool.read_since(0, max_bytes=room_bytes))) == [(1, 100)]
    assert spans(wait(spool.read_since(100, max_bytes=room_bytes))) == [(101, 200)]


def test_the_tail_is_bounded_by_bytes_and_what_is_older_comes_from_disk() -> None:
    spool = opened(FaultyDisk(), config=SMALL)
    for lsn in range(1, 51):
        wait(spool.append(numbered(lsn, 1), term=1))
    assert spool._tail.size_bytes <= SMALL.tail_bytes
    assert list(found(wait(spool.read_since(0)))) == list(range(1, 51))
    assert (spool.metrics.tail_reads, spool.metrics.disk_reads) == (0, 1)
    assert spans(wait(spool.read_since(49))) == [(50, 50)]
    assert wait(spool.read_since(50)) == []
    assert (spool.metrics.tail_reads, spool.metrics.disk_reads) == (2, 1)


def test_a_read_never_holds_more_than_a_chunk_or_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    for lsn in range(1, 400):
        wait(spool.append(numbered(lsn, 1, size=200), term=1))
    monkeypatch.setattr("headwater.log.spool.frame.LOG_READ_CHUNK_BYTES", 2048)
    longest = 0
    read_at = type(disk.open(f"{PATH}/{1:020d}.wal")).read_at

    def counted(self: object, offset: int, length: int) -> bytes:
        nonlocal longest
        longest = max(longest, length)
        return read_at(self, offset, length)  # type: ignore[arg-type]

    monkeypatch.setattr("headwater.testing.disk.FaultyFile.read_at", counted)
    assert list(everything(spool)) == list(range(1, 400))
    assert longest == 2048


def test_waiting_ends_with_the_record_or_with_the_time() -> None:
    async def main(simulation: Simulation) -> None:
        spool = opened(FaultyDisk())
        assert await spool.wait_for_lsn_after(0, timeout_s=5) == 0
        waiting = [
            runtime.spawn(spool.wait_for_lsn_after(lsn, timeout_s=60), name="wait")
            for lsn in (0, 0, 2, 3)
        ]
        await runtime.sleep(1)
        await spool.append(numbered(1, 3), term=1)
        assert [await one for one in waiting[:3]] == [3, 3, 3]
        assert not waiting[3].done()
        assert await waiting[3] == 3
        assert await spool.wait_for_lsn_after(1) == 3
        await spool.close()

    simulate(main, seed=3)


def test_a_task_is_woken_from_another_thread() -> None:
    spool = opened(FaultyDisk())

    async def main() -> int:
        waiting = asyncio.ensure_future(spool.wait_for_lsn_after(0))
        await asyncio.sleep(0)
        thread = threading.Thread(target=lambda: wait(spool.append(numbered(1, 2), term=1)))
        thread.start()
        reached = await waiting
        thread.join()
        return reached

    assert asyncio.run(main()) == 2


def test_the_floor_moves_at_once_and_stays_over_a_restart() -> None:
    disk = FaultyDisk()
    spool = opened(disk, config=SMALL)
    for lsn in range(1, 31):
        wait(spool.append(numbered(lsn, 1), term=1))
    before = len(spool.segments())
    assert wait(spool.prune_through(17)) == 17
    assert spool.metrics.segments_pruned == before - len(spool.segments()) > 0
    assert (spool.oldest_lsn(), spool.current_lsn()) == (18, 30)
    assert list(everything(spool)) == list(range(18, 31))
    assert wait(spool.prune_through(3)) == 17
    disk.crash()
    again = opened(disk.after_crash(Random(1)), config=SMALL)
    assert (again.oldest_lsn(), again.current_lsn()) == (18, 30)
    assert list(everything(again)) == list(range(18, 31))


def test_what_an_interrupted_prune_left_is_removed_when_the_log_is_opened() -> None:
    disk = FaultyDisk()
    spool = opened(disk, config=SMALL)
    for lsn in range(1, 31):
        wait(spool.append(numbered(lsn, 1), term=1))
    before = {name: data for name, data in contents(disk).items() if not name.endswith(".marks")}
    wait(spool.prune_through(20))
    wait(spool.close())
    after = contents(disk)
    assert before.keys() - after.keys(), "whole segments went, and their indexes"
    again = planted({**before, **after})
    assert list(everything(opened(again))) == list(range(21, 31))
    assert contents(again).keys() <= after.keys() | {"lock"}


def test_an_empty_and_a_fully_pruned_spool_know_their_place() -> None:
    disk = FaultyDisk()
    spool = opened(disk, first_lsn=1001)
    assert (spool.oldest_lsn(), spool.current_lsn(), spool.bytes_since(0)) == (1001, 1000, 0)
    wait(spool.append(numbered(1001, 5), term=1))
    assert wait(spool.prune_through(9999)) == 1005
    assert (spool.oldest_lsn(), spool.current_lsn()) == (1006, 1005)
    assert wait(spool.read_since(0)) == []
    wait(spool.seal())
    wait(spool.prune_through(9999))
    wait(spool.close())
    again = opened(disk, first_lsn=1)
    assert (again.oldest_lsn(), again.current_lsn()) == (1006, 1005)
    assert wait(again.append(numbered(1006, 1), term=1)) == (1006, 1006)


def test_a_spool_without_any_history_begins_where_whoever_opens_it_says() -> None:
    disk = FaultyDisk()
    wait(opened(disk, first_lsn=5).close())
    wait(opened(disk).close())
    again = opened(disk, first_lsn=77)
    assert (again.oldest_lsn(), again.current_lsn()) == (77, 76)
    wait(again.append(numbered(77, 1), term=1))
    wait(again.close())
    assert opened(disk, first_lsn=5).current_lsn() == 77
    with pytest.raises(Refused, match="from 1 to"):
        opened(FaultyDisk(), first_lsn=0)


def test_bytes_since_counts_what_is_still_to_be_read() -> None:
    spool = opened(FaultyDisk(), config=SMALL)
    for lsn in range(1, 101):
        wait(spool.append(numbered(lsn, 1), term=1))
    whole = sum(one.size_bytes for one in spool.segments())
    assert spool.bytes_since(0) == whole
    assert spool.bytes_since(100) == 0
    counts = [spool.bytes_since(lsn) for lsn in range(101)]
    assert counts == sorted(counts, reverse=True)
    wait(spool.prune_through(50))
    assert spool.bytes_since(0) < whole


def test_pruning_races_neither_readers_nor_writers() -> None:
    spool = opened(FaultyDisk(), config=SpoolConfig(segment_bytes=1000, tail_bytes=1))
    failures: list[BaseException] = []

    def write() -> None:
        for lsn in range(1, 301):
            wait(spool.append(numbered(lsn, 1), term=1))

    def prune() -> None:
        while spool.current_lsn() < 300:
            wait(spool.prune_through(spool.current_lsn() - 5))

    def read() -> None:
        lsn = 0
        try:
            while lsn < 300:
                groups = wait(spool.read_since(lsn, max_records=3))
                for one, value in found(groups).items():
                    assert value == b"record %d" % one
                lsn = groups[-1].last_lsn if groups else lsn
                assert list(found(groups)) == list(range(lsn + 1 - len(found(groups)), lsn + 1))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=target) for target in (write, prune, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert spool.current_lsn() == 300


def test_bytes_since_does_not_trip_over_a_prune(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk()
    spool = opened(disk, config=SpoolConfig(segment_bytes=300))
    for lsn in range(1, 9):
        wait(spool.append(numbered(lsn, 1), term=1))
    wait(spool.close())
    again = opened(disk)
    place = again._state.after(0)

    def found_before_the_prune(lsn: int) -> ReadPosition | None:
        monkeypatch.undo()
        wait(again.prune_through(6))
        return place

    monkeypatch.setattr(again._state, "after", found_before_the_prune)
    assert again.bytes_since(0) == again.bytes_since(6) > 0
    disk.unlink(segment_path(again, again.segments()[0]))
    disk.unlink(segment_path(again, again.segments()[0]).replace(".wal", ".index"))
    again.segments()[0].index = None
    with pytest.raises(SpoolCorrupt, match="gone"):
        again.bytes_since(6)


def test_what_is_dropped_from_the_tail_is_free_at_once() -> None:
    spool = opened(FaultyDisk(), config=SpoolConfig(tail_bytes=1000))
    wait(spool.append(numbered(1, 1, size=900), term=1))
    for lsn in range(2, 12):
        wait(spool.append(numbered(lsn, 1, size=90), term=1))
    assert sum(group.nbytes for group in spool._tail._groups) <= 1000


def test_many_small_groups_are_bounded_by_what_they_take_and_not_by_their_records_alone() -> None:
    spool = opened(FaultyDisk(), config=SpoolConfig(tail_bytes=100_000, sync="none"))
    for lsn in range(1, 201):
        wait(spool.append(numbered(lsn, 1), term=1))
    held = len(spool._tail._groups) - spool._tail._dropped
    assert 10 < held < 100
    assert spool._tail.size_bytes <= 100_000


def test_a_segment_that_does_not_begin_where_it_should_is_damage() -> None:
    body = GroupFrame.of_records(numbered(4, 3))
    body.place(term=1, first_lsn=4, timestamp_ms=0, synced_lsn=3, offset=0)
    spool = opened(planted({f"{1:020d}.wal": bytes(body.data), f"{7:020d}.wal": b""}))
    assert list(found(wait(spool.read_since(3)))) == [4, 5, 6]
    with pytest.raises(SpoolCorrupt, match="from LSN 1 on"):
        wait(spool.read_since(0))


def test_a_segment_that_is_gone_is_damage() -> None:
    disk = FaultyDisk()
    spool = opened(disk, config=SMALL)
    for lsn in range(1, 31):
        wait(spool.append(numbered(lsn, 1), term=1))
    names = [f"{one.first_lsn:020d}.wal" for one in spool.segments()]
    disk.unlink(f"{PATH}/{names[1]}")
    with pytest.raises(SpoolCorrupt, match="the file is gone"):
        everything(spool)
    wait(spool.close())
    files = contents(disk)
    # Each alone, the first and the last among them.
    for gone in names:
        left = {name: data for name, data in files.items() if name != gone}
        with pytest.raises(SpoolCorrupt):
            everything(opened(planted(left), config=SMALL))
    left = {name: data for name, data in files.items() if name != names[0]}
    with pytest.raises(
        SpoolCorrupt, match=f"the first one left begins at LSN {int(names[2][:20])}"
    ):
        opened(planted(left), config=SMALL)
    with pytest.raises(SpoolCorrupt, match="every segment is gone"):
        opened(planted({name: b"" for name in files if name.endswith(".marks")}))


def test_a_spool_is_a_wal() -> None:
    """Through the protocol alone, in virtual time, from memory and from disk."""

    async def main(simulation: Simulation) -> None:
        spool = opened(FaultyDisk(), config=SMALL)
        wal: Wal = spool
        for lsn in range(1, 31):
            await spool.append(numbered(lsn, 1, size=100), term=1)
        assert await wal.wait_for_lsn_after(29, timeout_s=1) == wal.current_lsn() == 30
        assert spans(await wal.read_since(29, max_records=5, max_bytes=10_000)) == [(30, 30)]
        old = await wal.read_since(0, max_records=5, max_bytes=10_000)
        assert list(found(old)) == [1, 2, 3, 4, 5]
        assert spool.metrics.disk_reads == 1
        await spool.seal()
        assert await wal.prune_through(30) == 30
        assert (wal.oldest_lsn(), wal.bytes_since(0)) == (31, 0)
        await spool.append(numbered(31, 1, size=100_000), term=1)
        assert wal.current_lsn() == 31
        await spool.close()
        with pytest.raises(Refused, match="is closed"):
            await wal.wait_for_lsn_after(31, timeout_s=1000)

    simulate(main, seed=2)


def test_a_frame_that_cannot_be_read_is_named_and_keeps_nobody_from_the_rest() -> None:
    body = GroupFrame._of([b"no Arrow"], GroupKind.RECORDS, 1, numbered(4, 1))
    body.place(term=1, first_lsn=4, timestamp_ms=0, synced_lsn=3, offset=0)
    disk = FaultyDisk()
    with closing(opened(disk)) as spool:
        wait(spool.append(numbered(1, 3), term=1))
    disk = planted({**contents(disk), f"{4:020d}.wal": bytes(body.data)})
    spool = opened(disk)
    assert list(found(wait(spool.read_since(0, max_records=3)))) == [1, 2, 3]
    with pytest.raises(SpoolCorrupt, match=r"0004.wal, offset 0, from LSN 4 on: .*cannot be read"):
        wait(spool.read_since(3))
    assert wait(spool.append(numbered(5, 1), term=1)) == (5, 5)


@pytest.mark.parametrize("wrong", [2.5, "1", None, True])
def test_what_is_no_lsn_is_refused_and_moves_nothing(wrong: Any) -> None:
    async def main(_: Simulation) -> None:
        spool = opened(FaultyDisk())
        await spool.append(numbered(1, 3), term=1)
        for asked in (spool.read_since, spool.prune_through, spool.wait_for_lsn_after):
            with pytest.raises(Refused, match="lsn is"):
                await asked(wrong)
        if wrong is not None:  # which is no limit
            with pytest.raises(Refused, match="max_records is"):
                await spool.read_since(0, max_records=wrong)
        assert spool.oldest_lsn() == 1
        await spool.close()

    simulate(main)


def test_a_time_that_is_no_number_is_refused_before_it_disorders_all_others() -> None:
    async def main(_: Simulation) -> None:
        spool = opened(FaultyDisk())
        with pytest.raises(Refused, match="timeout_s is not a number"):
            await spool.wait_for_lsn_after(0, timeout_s=math.nan)
        assert await spool.wait_for_lsn_after(0, timeout_s=1.0) == 0
        await spool.close()

    simulate(main)
