"""What others copied counts as this log's own only if it has the same records."""

from __future__ import annotations

from unittest import mock

import pyarrow as pa

from headwater.log.record.group import Group
from headwater.tier.jobs import TierConfig, Tiering
from tests.tier.jobs.given import Led, Place, in_time
from tests.tier.jobs.plain_storage import PlainStorage
from tests.tier.jobs.sealed_wal import SealedWal


def other_records(wal: SealedWal, count: int, *, term: int) -> None:
    """A sealed part of so many records that nobody else has."""
    first_lsn = wal.current_lsn() + 1
    values = pa.array([b"other %d" % number for number in range(count)], pa.binary())
    records = pa.record_batch([values], names=["_value"])
    wal.append_group(Group(term, first_lsn, first_lsn + count - 1, records))
    wal.seal()


async def _led_before(place: Place, *sizes: int) -> Led:
    return await place.lead(1, merge_below_bytes=0).write(*sizes).round()


def test_a_log_begun_anew_at_the_wrong_lsn_is_neither_copied_nor_dropped() -> None:
    async def main() -> None:
        place = Place()
        before = await _led_before(place, 5, 5)
        led = place.lead(2, merge_below_bytes=0)
        for size in (5, 5, 5):
            other_records(led.wal, size, term=2)
        await led.manager.run_once()
        assert "begin it again" in led.manager.problems["compare"]
        assert led.covered() == before.covered() == [range(1, 6), range(6, 11)]
        assert led.wal.retained_lsns() == list(range(1, 16))

    in_time(main)


def test_a_log_that_ends_within_what_is_remote_is_compared_as_it_grows() -> None:
    async def main() -> None:
        place = Place()
        await _led_before(place, 5, 5)
        led = place.lead(2, merge_below_bytes=0)
        await led.write(3).round()
        assert led.wal.oldest_lsn() == 4
        other_records(led.wal, 4, term=2)
        await led.manager.run_once()
        assert "LSN 5" in led.manager.problems["compare"]
        assert led.wal.oldest_lsn() == 4

    in_time(main)


def test_the_same_records_written_again_under_a_newer_term_go_on() -> None:
    async def main() -> None:
        place = Place()
        await _led_before(place, 5, 5)
        led = await place.lead(2, merge_below_bytes=0).write(7, 8).round()
        assert led.led.tiered_lsn() == 15
        assert led.wal.oldest_lsn() == 16

    in_time(main)


def test_what_this_leader_copied_is_not_read_again() -> None:
    async def main() -> None:
        place = Place()
        with mock.patch.object(PlainStorage, "fetch", side_effect=AssertionError("read")):
            led = await _led_before(place, 5, 5)
            await led.write(5).round()
        assert led.wal.oldest_lsn() == 16

    in_time(main)


def test_the_log_keeps_what_a_damaged_segment_has() -> None:
    async def main() -> None:
        place = Place()
        before = await _led_before(place, 5, 5, 5)
        led = place.lead(2, merge_below_bytes=0).write(5, 5, 5)
        await before.damage(1, None)
        await led.manager.run_once()
        assert "compare" in led.manager.problems
        assert led.wal.oldest_lsn() == 6
        await led.manager.scrub(mend=True)
        await led.round()
        assert led.wal.oldest_lsn() == 16

    in_time(main)


def test_giving_up_the_tier_is_a_way_out_of_a_difference() -> None:
    async def main() -> None:
        place = Place()
        await _led_before(place, 5)
        led = place.lead(2, merge_below_bytes=0)
        other_records(led.wal, 5, term=2)
        await led.manager.run_once()
        assert "compare" in led.manager.problems
        led.manager.configure(TierConfig(tiering=Tiering.DELETE))
        await led.round()
        assert led.covered() == []
        assert led.wal.retained_lsns() == [1, 2, 3, 4, 5]

    in_time(main)


def test_a_stream_is_led_under_the_name_that_the_tier_knows() -> None:
    async def main() -> None:
        place = Place()
        await _led_before(place, 5)
        led = place.lead(2, name="orders-renamed").write(5, 5)
        await led.manager.run_once()
        assert "lead it as 'orders'" in led.manager.problems["begin"]
        assert not led.manager.leads
        assert led.covered() == [range(1, 6)]

    in_time(main)


def test_the_name_is_known_also_where_the_oldest_segment_is_unlisted() -> None:
    async def main() -> None:
        place = Place()
        before = await place.lead(1, merge_below_bytes=0).write(5, 5).round()
        await before.led.voice.unlist(before.metadata.segments()[0])
        led = place.lead(2, name="orders-renamed")
        await led.manager.run_once()
        assert "lead it as 'orders'" in led.manager.problems["begin"]

    in_time(main)
