"""A damaged log, repaired from what the tier covers of it."""

from __future__ import annotations

from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar

import pytest

from headwater.core import portal
from headwater.core.errors import Refused
from headwater.log.record import Group, range_hash
from headwater.log.spool import SpoolConfig, prepare_lost
from headwater.log.spool.repair import repair
from headwater.testing.disk import FaultyDisk
from headwater.tier.reader import LogReader, TierSource
from headwater.tier.segments.object_storage import segment_key
from tests.log.given import PATH, contents, opened, planted, wait
from tests.tier.reader.test_log_reader import Place
from tests.tier.segments.given import by_lsn, orders

T = TypeVar("T")
CONFIG = SpoolConfig(segment_bytes=2000, group_bytes=500)


def tiered(*ranges: tuple[int, int], size: int = 0) -> Place:
    """LSNs 1 to 40 of two leaders, some of them lost, and these of them in the tier."""

    async def made() -> Place:
        place = Place()
        for count in (9, 1, 6):
            place.groups.append(orders(_next(place), count, size=size))
            place.wal.append_group(place.groups[-1])
        place.write(4, is_lost=True)
        place.write(20, term=2)
        for first_lsn, last_lsn in ranges:
            await place.tier(first_lsn, last_lsn)
        return place

    return called(made())


def called(work: Coroutine[Any, Any, T]) -> T:
    """As whoever opens something for a source does it."""
    return portal.shared().call(work)


def _next(place: Place) -> int:
    return place.wal.current_lsn() + 1


def source(place: Place) -> TierSource:
    return TierSource("the tier", LogReader(place.storage, place.covering, place.log_start))


def spooled(place: Place) -> dict[str, bytes]:
    """The files of a log with all of it, in frames of its own."""
    disk = FaultyDisk()
    spool = opened(disk, config=CONFIG)
    for group in place.groups:
        if group.lost is None:
            wait(spool.append(group.records, term=group.term))
        else:
            wait(spool.append(prepare_lost(len(group), group.lost), term=group.term))
    wait(spool.close())
    return contents(disk)


def segments(files: dict[str, bytes]) -> list[str]:
    return sorted(name for name in files if name.endswith(".wal") and files[name])


def read(disk: FaultyDisk) -> list[Group]:
    spool = opened(disk)
    groups = list(wait(spool.read_since(0, max_records=1000)))
    wait(spool.close())
    return groups


def flipped(files: dict[str, bytes], name: str, place: int) -> dict[str, bytes]:
    data = bytearray(files[name])
    data[place] ^= 0x20
    return {**files, name: bytes(data)}


def test_a_log_is_mended_from_the_tier_alone_record_for_record() -> None:
    place = tiered((1, 17), (15, 40))
    files, random = spooled(place), Random(3)
    assert len(segments(files)) > 2
    for name in segments(files):
        for _ in range(3):
            disk = planted(flipped(files, name, random.randrange(len(files[name]))))
            report = repair(PATH, [source(place)], disk=disk)
            assert (report.missing, report.uncompared) == ([], [])
            assert {one.source for one in report.repaired} == {"the tier"}
            assert by_lsn(read(disk)) == by_lsn(place.groups)
            assert range_hash(read(disk)) == range_hash(place.groups)


def test_a_log_of_which_everything_is_gone_comes_back_from_the_tier_with_its_terms() -> None:
    place = tiered((1, 40))
    marks = {name: data for name, data in spooled(place).items() if name.endswith(".marks")}
    disk = planted(marks)
    report = repair(PATH, [source(place)], disk=disk)
    assert (report.missing, report.uncompared) == ([], ["the tier"])
    assert by_lsn(read(disk)) == by_lsn(place.groups)


def test_the_tier_of_another_stream_is_refused_and_nothing_is_changed() -> None:
    place, other = tiered((1, 40)), tiered((1, 40), size=9)
    files = spooled(place)
    damaged = flipped(files, segments(files)[0], 300)
    disk = planted(damaged)
    with pytest.raises(Refused, match="the tier holds another record than this log"):
        repair(PATH, [source(other)], disk=disk)
    assert {k: v for k, v in contents(disk).items() if k != "lock"} == {
        k: v for k, v in damaged.items() if k != "lock"
    }


def test_what_the_tier_covers_is_mended_and_the_rest_is_told() -> None:
    files = spooled(tiered())
    first, second, last = segments(files)[0], segments(files)[1], segments(files)[-1]
    begins = int(second[:20])
    place = tiered((1, begins - 1))
    damaged = flipped(flipped(files, first, 300), last, 300)
    disk = planted(damaged)
    report = repair(PATH, [source(place)], disk=disk)
    assert {one.source for one in report.repaired} == {"the tier"}
    assert all(one.last_lsn < begins for one in report.repaired)
    assert report.missing
    assert all(one.first_lsn >= int(last[:20]) for one in report.missing)
    assert contents(disk)[last] == damaged[last]
    # With the rest in the tier, too, nothing is missing any more.
    assert repair(PATH, [source(tiered((begins, 40)))], disk=disk).missing == []
    assert by_lsn(read(disk)) == by_lsn(place.groups)


def test_what_is_covered_behind_a_gap_is_neither_missing_nor_given_up() -> None:
    place = tiered((1, 2), (5, 40))
    disk = planted({k: v for k, v in spooled(place).items() if k.endswith(".marks")})
    report = repair(PATH, [source(place)], give_up=True, disk=disk)
    spans = [(one.first_lsn, one.last_lsn, one.source) for one in report.repaired]
    assert spans == [(1, 2, "the tier"), (3, 4, "given up in a repair"), (5, 40, "the tier")]


def test_a_segment_that_is_damaged_itself_is_as_if_it_were_not_covered() -> None:
    place = tiered((1, 9), (10, 20), (21, 40))
    store, key = place.storage._store, segment_key(place.finished[1].segment_id)

    async def spoil() -> None:
        await store.put(key, b"x" * len((await store.get(key)).data))

    called(spoil())
    disk = planted({k: v for k, v in spooled(place).items() if k.endswith(".marks")})
    report = repair(PATH, [source(place)], disk=disk)
    assert [str(one) for one in report.missing] == ["LSN 10 to 20"]
    assert [(one.first_lsn, one.last_lsn) for one in report.repaired] == [(1, 9), (21, 40)]
