"""Repair: what is mended, from where, and what is left as it is."""

from __future__ import annotations

from random import Random

import pytest

from headwater.core.errors import Corrupt, Refused
from headwater.log.record import range_hash
from headwater.log.spool import SpoolConfig, SpoolCorrupt
from headwater.log.spool.repair import SpoolSource, repair
from headwater.testing.disk import FaultyDisk
from tests.log.given import PATH, contents, everything, numbered, opened, planted

CONFIG = SpoolConfig(segment_bytes=1500, group_bytes=100)
RECORDS = {lsn: b"record %d" % lsn for lsn in range(1, 41)}


def grown(*, first: int = 1, step: int = 4, term: int = 3) -> FaultyDisk:
    """A closed log of forty records, in frames that depend on `step`."""
    disk = FaultyDisk()
    spool = opened(disk, config=CONFIG, first_lsn=first)
    while spool.current_lsn() < 40:
        lsn = spool.current_lsn() + 1
        spool.append_blocking(numbered(lsn, min(step, 41 - lsn)), term=term)
    spool.close_blocking()
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
            assert {one.source for one in report.mended} == {PATH}
            assert contents(disk)[f"{name}.damaged"] == damaged[name]
            again = opened(disk)
            assert everything(again) == RECORDS
            assert again.torn is None
            assert again.term == 3
            again.close_blocking()
            assert repair(PATH, [], disk=disk).mended == []


def test_a_mended_log_has_the_hashes_of_the_whole_one() -> None:
    whole = grown()
    files = contents(whole)
    disk = planted(flipped(files, segments(files)[1], 100))
    repair(PATH, [SpoolSource(PATH, grown(step=3))], disk=disk)
    hashes = [range_hash(opened(one).read_since_blocking(0)) for one in (whole, disk)]
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
        assert (report.mended, report.kept) == ([], [])
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
    groups = spool.read_since_blocking(0, max_records=1000)
    assert (groups[0].first_lsn, groups[0].last_lsn) == (1, 4)
    assert groups[0].lost == "given up in a repair"
    assert [group.first_lsn for group in groups[1:]] == [one.last_lsn + 1 for one in groups[:-1]]
    assert spool.term == 3


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
    with pytest.raises(Refused, match="no spool"):
        repair("/nowhere", [], disk=disk)
    disk.make_dir(PATH)
    with pytest.raises(Refused, match="no spool"):
        repair(PATH, [], disk=disk)


def test_the_error_of_a_damaged_log_names_the_command() -> None:
    files = contents(grown())
    with pytest.raises(Corrupt, match="headwater log repair"):
        everything(opened(planted(flipped(files, segments(files)[0], 100))))
