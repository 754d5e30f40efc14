"""LSNs that are lost on one side differ from nothing, and the side that has them keeps them."""

from __future__ import annotations

import pyarrow as pa

from headwater.log.record.group import NO_RECORDS, Group
from headwater.tier.jobs import ParquetSegments
from tests.tier.jobs.given import ORDERS, Led, Place, in_time

Written = tuple[int, int, str]
"""First LSN, last LSN, and what each record is, or `lost`."""


def _group(term: int, first_lsn: int, last_lsn: int, what: str) -> Group:
    if what == "lost":
        return Group(term, first_lsn, last_lsn, NO_RECORDS, lost=f"no batch {first_lsn}")
    values = [f"{what} {lsn}".encode() for lsn in range(first_lsn, last_lsn + 1)]
    records = pa.record_batch([pa.array(values, pa.binary())], names=["_value"])
    return Group(term, first_lsn, last_lsn, records)


async def _lead(place: Place, epoch: int, *written: Written) -> Led:
    led = place.lead(epoch, merge_below_bytes=0)
    led.led.storage = ParquetSegments(place.store, ORDERS)
    for first_lsn, last_lsn, what in written:
        led.wal.append_group(_group(epoch, first_lsn, last_lsn, what))
    led.wal.seal()
    led.wal.append_group(_group(epoch, 11, 15, "record"))
    if epoch > 1:
        led.wal.seal()
    await led.manager.run_once()
    return led


def test_the_local_log_keeps_what_is_lost_within_a_remote_piece() -> None:
    async def main() -> None:
        place = Place()
        await _lead(place, 1, (1, 2, "record"), (3, 5, "lost"), (6, 10, "record"))
        led = await _lead(place, 2, (1, 10, "record"))
        assert "LSNs 3 to 5" in str(led.manager.problems["compare"])
        assert led.wal.oldest_lsn() == 1

    in_time(main)


def test_what_is_lost_remotely_is_copied_again_and_dropped_only_then() -> None:
    async def main() -> None:
        place = Place()
        await _lead(place, 1, (1, 2, "record"), (3, 5, "lost"), (6, 10, "record"))
        led = await _lead(place, 2, (1, 10, "record"))
        lsns = [range(1, 3), range(3, 6), range(6, 11), range(11, 16)]
        assert led.covered() == lsns
        await led.round()
        assert led.wal.oldest_lsn() == 16
        assert led.covered() == lsns, "it is copied once"

    in_time(main)


def test_what_nobody_would_read_is_not_copied_again() -> None:
    async def main() -> None:
        place = Place()
        await _lead(place, 3, (1, 2, "record"), (3, 5, "lost"), (6, 10, "record"))
        led = place.lead(4, merge_below_bytes=0)
        led.led.storage = ParquetSegments(place.store, ORDERS)
        led.wal.append_group(_group(2, 1, 10, "record"))
        led.wal.seal()
        for _ in range(2):
            await led.manager.run_once()
            assert "term 2" in str(led.manager.problems["compare"])
        assert led.wal.oldest_lsn() == 1
        assert len(led.states()) == 2

    in_time(main)


def test_the_local_log_keeps_what_is_lost_at_the_end_of_a_remote_piece() -> None:
    async def main() -> None:
        place = Place()
        await _lead(place, 1, (1, 7, "record"), (8, 9, "lost"), (10, 10, "lost"))
        led = await _lead(place, 2, (1, 10, "record"))
        assert "LSNs 8 to 10" in str(led.manager.problems["compare"])
        assert led.wal.oldest_lsn() == 1
        assert (await led.round()).wal.oldest_lsn() == 16

    in_time(main)


def test_what_is_lost_locally_alone_differs_from_nothing() -> None:
    async def main() -> None:
        place = Place()
        await _lead(place, 1, (1, 10, "record"))
        led = await _lead(place, 2, (1, 7, "record"), (8, 10, "lost"))
        assert led.manager.problems == {}
        assert led.wal.oldest_lsn() == 16

    in_time(main)


def test_what_is_lost_on_both_sides_differs_from_nothing() -> None:
    async def main() -> None:
        place = Place()
        await _lead(place, 1, (1, 10, "lost"))
        led = await _lead(place, 2, (1, 10, "lost"))
        assert led.manager.problems == {}
        assert led.wal.oldest_lsn() == 16

    in_time(main)


def test_other_records_are_found_also_before_what_is_lost() -> None:
    async def main() -> None:
        place = Place()
        await _lead(place, 1, (1, 8, "record"), (9, 10, "lost"))
        led = await _lead(place, 2, (1, 3, "record"), (4, 5, "other"), (6, 10, "lost"))
        assert "LSNs 1 to 10" in str(led.manager.problems["compare"])
        assert led.covered() == [range(1, 11)]

    in_time(main)


def test_an_end_that_is_lost_locally_stands_for_no_record_of_the_same_term() -> None:
    async def main() -> None:
        place = Place()
        await _lead(place, 1, (1, 10, "record"))
        led = place.lead(2, merge_below_bytes=0)
        led.led.storage = ParquetSegments(place.store, ORDERS)
        led.wal.append_group(_group(1, 1, 5, "other"))
        led.wal.append_group(_group(1, 6, 10, "lost"))
        led.wal.seal()
        await led.manager.run_once()
        assert "LSNs 1 to 10" in str(led.manager.problems["compare"])
        assert led.wal.oldest_lsn() == 1

    in_time(main)
