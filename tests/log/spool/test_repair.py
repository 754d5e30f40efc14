"""Repair: what is mended, from where, and what is left as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from headwater.buffer import Producer, Stream, create_stream
from headwater.core import portal
from headwater.core.errors import Corrupt, NoSpace, Refused
from headwater.log import Group, SpoolConfig, SpoolCorrupt, range_hash
from headwater.log.spool import scan as spool_survey
from headwater.log.spool.codec import GroupFrame
from headwater.log.spool.frame import GROUP_MAGIC, V3
from headwater.log.spool.repair import BufferSource, RepairSource, SpoolSource, repair
from headwater.log.spool.scan import Survey
from headwater.store import MemoryBackend, Store
from headwater.testing.disk import FaultyDisk
from headwater.testing.disk_explore import explore
from tests.log.given import PATH, closing, contents, everything, numbered, opened, planted, wait

CONFIG = SpoolConfig(segment_bytes=1500, group_bytes=100)
RECORDS = {lsn: b"record %d" % lsn for lsn in range(1, 41)}


def grown(*, first: int = 1, step: int = 4, term: int = 3) -> FaultyDisk:
    """A closed log of forty records, in frames that depend on `step`."""
    disk = FaultyDisk()
    spool = opened(disk, config=CONFIG, first_lsn=first)
    while spool.current_lsn() < 40:
        lsn = spool.current_lsn() + 1
        wait(spool.append(numbered(lsn, min(step, 41 - lsn)), term=term))
    wait(spool.close())
    return disk


def flipped(files: dict[str, bytes], name: str, place: int) -> dict[str, bytes]:
    data = bytearray(files[name])
    data[place] ^= 0x20
    return {**files, name: bytes(data)}


def segments(files: dict[str, bytes]) -> list[str]:
    return sorted(name for name in files if name.endswith(".wal"))


def test_damage_anywhere_is_mended_from_a_copy_that_was_framed_otherwise() -> None:
    files, copy = contents(grown()), grown(step=7)
    random = Random(5)
    for name in segments(files):
        for _ in range(6):
            if not files[name]:
                continue
            damaged = flipped(files, name, random.randrange(len(files[name])))
            disk = planted(damaged)
            report = repair(PATH, [SpoolSource(PATH, copy)], disk=disk)
            assert report.missing == []
            assert {one.source for one in report.repaired} == {PATH}
            assert contents(disk)[f"{name}.damaged"] == damaged[name]
            again = opened(disk)
            assert everything(again) == RECORDS
            assert again.torn is None
            assert again.term == 3
            wait(again.close())
            assert repair(PATH, [], disk=disk).repaired == []


def test_a_first_frame_that_lost_its_mark_is_mended_as_any_other() -> None:
    """Without it, it looks like one of another implementation, which may leave LSNs out."""
    files, copy = contents(grown()), grown(step=3)
    for name in segments(files):
        for place in range(V3.size, V3.size + len(GROUP_MAGIC)):
            disk = planted(flipped(files, name, place))
            repair(PATH, [SpoolSource(PATH, copy)], disk=disk)
            assert everything(opened(disk)) == RECORDS


class Counted:
    """A source that counts what it is asked for."""

    def __init__(self, source: RepairSource) -> None:
        self.name = source.name
        self.reads = 0
        self._source = source

    def read(self, first_lsn: int, last_lsn: int) -> Sequence[Group]:
        self.reads += 1
        return self._source.read(first_lsn, last_lsn)


def test_a_source_is_compared_once_with_a_segment_however_many_gaps_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = FaultyDisk()
    with closing(opened(disk)) as spool:
        for lsn in range(1, 41):
            wait(spool.append(numbered(lsn, 1), term=3))
    files = contents(disk)
    (name,) = segments(files)
    data = bytearray(files[name])
    step = len(data) // 40
    gaps = 13
    for gap in range(gaps):
        data[step * (3 * gap + 1) + 100] ^= 1
    source = Counted(SpoolSource(PATH, disk))
    surveyed = 0
    survey = spool_survey.survey

    def counted(*args: Any, **options: Any) -> Survey:
        nonlocal surveyed
        surveyed += 1
        return survey(*args, **options)

    monkeypatch.setattr(spool_survey, "survey", counted)
    damaged = planted({**files, name: bytes(data)})
    report = repair(PATH, [source], disk=damaged)
    assert len(report.repaired) == gaps
    assert everything(opened(damaged)) == RECORDS
    beside, sampled = 2 * gaps, 2
    assert source.reads <= gaps + beside + sampled
    # What is damaged is gone through, and once more for the sample; what is whole is not.
    assert surveyed == 2


def test_a_mended_log_has_the_hashes_of_the_whole_one() -> None:
    whole = grown()
    files = contents(whole)
    disk = planted(flipped(files, segments(files)[1], 100))
    repair(PATH, [SpoolSource(PATH, grown(step=3))], disk=disk)
    hashes = [range_hash(wait(opened(one).read_since(0))) for one in (whole, disk)]
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("gone", [0, 1, -1])
def test_a_segment_that_is_gone_is_made_again(gone: int) -> None:
    files = contents(grown())
    del files[segments(files)[gone]]
    disk = planted(files)
    with pytest.raises(SpoolCorrupt):
        everything(opened(disk))
    disk = planted(files)
    assert repair(PATH, [SpoolSource(PATH, grown(step=5))], disk=disk).missing == []
    assert everything(opened(disk)) == RECORDS


def test_what_nobody_has_is_told_and_the_segment_is_left_as_it_is() -> None:
    files = contents(grown())
    damaged = flipped(files, segments(files)[0], 100)
    for sources in ([], [SpoolSource(PATH, grown(first=20))]):
        disk = planted(damaged)
        report = repair(PATH, sources, disk=disk)
        assert [str(one) for one in report.missing] == ["LSN 1 to 4"]
        assert (report.repaired, report.set_aside) == ([], [])
        assert {k: v for k, v in contents(disk).items() if k != "lock"} == {
            k: v for k, v in damaged.items() if k != "lock"
        }


def test_several_copies_that_have_parts_together_have_the_whole() -> None:
    files = contents(grown())
    name = segments(files)[1]
    first = int(name[:20])
    damaged = planted({**files, name: b""})
    low = contents(grown(step=1))
    other = SpoolSource(PATH, planted({**low, segments(low)[-1]: b""}))
    report = repair(PATH, [SpoolSource(PATH, grown(first=first + 1)), other], disk=damaged)
    assert report.missing == []
    assert everything(opened(damaged)) == RECORDS


def test_what_is_given_up_is_read_as_lost_and_covers_its_lsns() -> None:
    files = contents(grown())
    disk = planted(flipped(files, segments(files)[0], 100))
    report = repair(PATH, [], give_up=True, disk=disk)
    assert report.missing == []
    spool = opened(disk)
    groups = wait(spool.read_since(0, max_records=1000))
    assert (groups[0].first_lsn, groups[0].last_lsn) == (1, 4)
    assert groups[0].lost == "given up in a repair"
    assert [group.first_lsn for group in groups[1:]] == [one.last_lsn + 1 for one in groups[:-1]]
    assert spool.term == 3


def test_what_a_copy_has_behind_a_gap_of_its_own_is_neither_missing_nor_given_up() -> None:
    files, copy = contents(grown()), SpoolSource(PATH, grown(first=3))
    disk = planted(flipped(files, segments(files)[0], 100))
    report = repair(PATH, [copy], disk=disk)
    assert [str(one) for one in report.missing] == ["LSN 1 to 2"]
    report = repair(PATH, [copy], give_up=True, disk=disk)
    assert [(one.first_lsn, one.last_lsn) for one in report.repaired] == [(1, 2), (3, 4)]
    assert everything(opened(disk)) == {lsn: RECORDS[lsn] for lsn in range(3, 41)}


def test_what_was_pruned_is_not_asked_for() -> None:
    disk = grown()
    spool = opened(disk)
    wait(spool.prune_through(4))
    wait(spool.close())
    files = contents(disk)
    disk = planted(flipped(files, segments(files)[0], 100))
    assert repair(PATH, [], disk=disk).missing == []
    assert everything(opened(disk)) == {lsn: RECORDS[lsn] for lsn in range(5, 41)}


def test_what_stands_behind_the_end_of_a_copys_segment_is_not_taken_from_there() -> None:
    files = contents(grown())
    first, second = segments(files)[:2]
    stale = GroupFrame.of_records(numbered(7000, 4))
    begins = int(second[:20])
    stale.place(term=3, first_lsn=begins, timestamp_ms=0, synced_lsn=0, offset=len(files[first]))
    copy = planted({**files, first: files[first] + bytes(stale.data)})
    disk = planted(flipped(files, second, 100))
    assert repair(PATH, [SpoolSource(PATH, copy)], disk=disk).missing == []
    assert everything(opened(disk)) == RECORDS


def test_a_log_of_which_everything_is_gone_is_made_again_segment_by_segment() -> None:
    files, copy = contents(grown()), grown(step=5)
    disk = planted({name: data for name, data in files.items() if name.endswith(".marks")})
    report = repair(PATH, [SpoolSource(PATH, copy)], disk=disk)
    assert len(report.repaired) == len(segments(contents(disk))) > 1
    assert everything(opened(disk)) == RECORDS


def test_a_repair_is_safe_at_every_point() -> None:
    files, copy = contents(grown()), grown(step=5)
    first, second = segments(files)[:2]
    damaged = flipped(files, first, 100)
    del damaged[second]

    def body(disk: FaultyDisk, ack: Callable[[str], None]) -> None:
        disk.make_dir(PATH)
        for name, data in damaged.items():
            with disk.create(f"{PATH}/{name}") as file:
                file.append(data)
                file.sync()
        disk.sync_dir(PATH)
        disk.sync_dir("/")
        ack("damaged")
        assert repair(PATH, [SpoolSource(PATH, copy)], disk=disk).missing == []
        ack("mended")

    def check(disk: FaultyDisk, said: list[str]) -> None:
        if said[-1:] == ["damaged"]:
            assert repair(PATH, [SpoolSource(PATH, copy)], disk=disk).missing == []
        if said:
            assert everything(opened(disk)) == RECORDS

    explore(body, check, states=2)


def test_the_buffer_has_what_is_retained_there() -> None:
    async def produced() -> Stream:
        store = Store(MemoryBackend())
        stream = await create_stream(store, "orders")
        async with Producer(stream, linger_ms=0) as producer:
            for lsn in range(1, 41, 8):
                await (await producer.produce([RECORDS[one] for one in range(lsn, lsn + 8)]))
        return stream

    stream = portal.shared().call(produced())
    files = contents(grown())
    disk = planted(flipped(files, segments(files)[0], 100))
    report = repair(PATH, [BufferSource(stream, 0)], disk=disk)
    assert [(one.first_lsn, one.last_lsn, one.source) for one in report.repaired] == [
        (1, 4, "the buffer of orders, partition 0")
    ]
    again = opened(disk)
    assert everything(again) == RECORDS
    groups = wait(again.read_since(0))
    assert {group.term for group in groups} == {3}
    assert groups[0].records.schema.names == ["_value", "_commit_timestamp"]
    nobody = BufferSource(stream, 0)
    assert nobody.read(41, 50) == []
    assert [(one.first_lsn, one.last_lsn) for one in nobody.read(10, 17)] == [(9, 16), (17, 24)]


def test_a_batch_that_cannot_be_read_is_not_there() -> None:
    async def produced() -> Stream:
        store = Store(MemoryBackend())
        stream = await create_stream(store, "orders")
        async with Producer(stream, linger_ms=0) as producer:
            for place in range(5):
                # Too large to stand in the queue itself.
                value = Random(place).randbytes(100_000)
                await (await producer.produce([value] * 8))
        (second,) = await stream.queue_reader(0).after(0, 1)
        await store.delete(second.location)
        return stream

    source = BufferSource(portal.shared().call(produced()), 0)
    assert [(one.first_lsn, one.last_lsn) for one in source.read(1, 40)] == [(1, 8)]
    found = source.read(9, 40)
    assert (found[0].first_lsn, found[-1].last_lsn) == (17, 40)


def test_a_second_repair_keeps_its_own_damaged_file() -> None:
    disk, copy = grown(), grown()
    name = segments(contents(disk))[0]
    for _ in range(2):
        files = contents(disk)
        disk = planted(flipped(files, name, 100))
        repair(PATH, [SpoolSource(PATH, copy)], disk=disk)
    assert {f"{name}.damaged", f"{name}.damaged-2"} <= contents(disk).keys()


def test_a_folder_without_a_log_is_refused() -> None:
    disk = FaultyDisk()
    with pytest.raises(Refused, match="no log"):
        repair("/nowhere", [], disk=disk)
    disk.make_dir(PATH)
    with pytest.raises(Refused, match="no log"):
        repair(PATH, [], disk=disk)


def test_the_error_of_a_damaged_log_names_the_command() -> None:
    files = contents(grown())
    with pytest.raises(Corrupt, match="headwater log repair"):
        everything(opened(planted(flipped(files, segments(files)[0], 100))))


def other(first: int = 1) -> FaultyDisk:
    """A log of another stream, under the same LSNs."""
    disk = FaultyDisk()
    spool = opened(disk, first_lsn=first)
    wait(spool.append(numbered(1000, 41 - first), term=3))
    wait(spool.close())
    return disk


@pytest.mark.parametrize("segment", [0, 1, -2])
def test_nothing_is_taken_from_the_log_of_another_stream(segment: int) -> None:
    files = contents(grown())
    name = segments(files)[segment]
    disk = planted(flipped(files, name, 100))
    with pytest.raises(Refused, match="it is no copy of it"):
        repair(PATH, [SpoolSource(PATH, other())], disk=disk, give_up=True)
    assert contents(disk)[name] == flipped(files, name, 100)[name]


def test_a_segment_that_is_gone_is_not_made_from_the_log_of_another_stream() -> None:
    files = contents(grown())
    del files[segments(files)[1]]
    disk = planted(files)
    with pytest.raises(Refused, match="it is no copy of it"):
        repair(PATH, [SpoolSource(PATH, other())], disk=disk)
    assert segments(contents(disk)) == segments(files)


def test_a_copy_that_differs_only_beside_the_gap_is_none() -> None:
    files = contents(grown())
    name = segments(files)[0]
    # The second of four frames, with LSN 5 to 8: neither of those beside it is the last one.
    disk = planted(flipped(files, name, len(files[name]) // 4 + 100))
    copy = FaultyDisk()
    spool = opened(copy)
    for lsn in range(1, 41):
        near = 9 <= lsn <= 12
        wait(spool.append(numbered(lsn + 500 * near, 1), term=3))
    wait(spool.close())
    with pytest.raises(Refused, match="no copy"):
        repair(PATH, [SpoolSource(PATH, copy)], disk=disk)


def test_a_source_with_which_nothing_can_be_compared_is_told() -> None:
    files = {name: data for name, data in contents(grown()).items() if not name.endswith(".wal")}
    report = repair(PATH, [SpoolSource(PATH, grown())], disk=planted(files))
    assert report.uncompared == [PATH]
    files = contents(grown())
    disk = planted(flipped(files, segments(files)[1], 100))
    assert repair(PATH, [SpoolSource(PATH, grown())], disk=disk).uncompared == []


def test_a_source_without_a_log_is_refused() -> None:
    with pytest.raises(Refused, match="no log in /nowhere"):
        SpoolSource("/nowhere", FaultyDisk())


def test_a_repair_that_finds_no_room_leaves_nothing_behind_and_is_done_again() -> None:
    files = contents(grown())
    name = segments(files)[0]
    disk = planted(flipped(files, name, 200))
    disk.space_bytes = sum(map(len, files.values())) + 100
    for _ in range(2):
        with pytest.raises(NoSpace):
            repair(PATH, [SpoolSource(PATH, grown(step=7))], disk=disk)
        assert not [one for one in contents(disk) if "damaged" in one]
    disk.space_bytes = None
    report = repair(PATH, [SpoolSource(PATH, grown(step=7))], disk=disk)
    assert report.set_aside == [f"{PATH}/{name}.damaged"]
    assert everything(opened(disk)) == RECORDS
