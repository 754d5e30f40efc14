"""What others copied counts as this log's own only if it has the same records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from headwater.core import runtime
from headwater.core.errors import Unavailable
from headwater.log.record import hashes
from headwater.log.record.group import NO_RECORDS, Group
from headwater.tier.jobs import TierConfig, Tiering, copying
from headwater.tier.segments import ParquetSegments
from tests.tier.jobs.given import ORDERS, Led, Place, in_time
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
        assert "create it again" in str(led.manager.problems["compare"])
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
        assert "LSNs 4 to 5" in str(led.manager.problems["compare"])
        assert led.wal.oldest_lsn() == 4

    in_time(main)


def test_records_are_hashed_beside_the_event_loop_and_a_little_at_a_time() -> None:
    """A call that hashes 100,000 records would hold up everything else in the process."""
    beside: list[int] = []
    pieces: list[tuple[bool, int]] = []
    real_hashes, real_blocking = hashes._hashes_of, runtime.run_blocking

    def hashed(group: Group) -> pa.Array:
        pieces.append((bool(beside), len(group)))
        return real_hashes(group)

    async def run_blocking(work: Callable[..., Any], *args: Any) -> Any:
        def noted(*given: Any) -> Any:
            beside.append(1)
            try:
                return work(*given)
            finally:
                beside.pop()

        return await real_blocking(noted, *args)

    async def main() -> None:
        place = Place()
        await _led_before(place, 30_000)
        led = place.lead(2, merge_below_bytes=0).write(30_000)
        with (
            mock.patch.object(hashes, "_hashes_of", hashed),
            mock.patch.object(runtime, "run_blocking", run_blocking),
        ):
            await led.round()
        assert led.wal.oldest_lsn() == 30_001
        assert sum(rows for _, rows in pieces) == 60_000
        assert max(rows for _, rows in pieces) <= 4_096
        assert all(is_beside for is_beside, _ in pieces)

    in_time(main)


def test_the_same_records_written_again_under_a_newer_term_go_on() -> None:
    async def main() -> None:
        place = Place()
        await _led_before(place, 5, 5)
        led = await place.lead(2, merge_below_bytes=0).write(7, 8).round()
        assert led.led.tiered_lsn() == 15
        assert led.wal.oldest_lsn() == 16

    in_time(main)


def test_one_record_that_is_another_is_found_wherever_it_stands() -> None:
    async def main() -> None:
        place = Place()
        await _led_before(place, 5, 5)
        led = place.lead(2, merge_below_bytes=0).write(6)
        other_records(led.wal, 1, term=2)
        await led.write(3).manager.run_once()
        assert "LSNs 6 to 10" in str(led.manager.problems["compare"])
        assert led.wal.oldest_lsn() == 1

    in_time(main)


def test_of_what_one_leader_wrote_only_the_end_is_read() -> None:
    async def main() -> None:
        place = Place()
        before = place.lead(1, merge_below_bytes=0, local_retention_bytes=1 << 30)
        await before.write(5, 5).round()
        read = []
        fetch = PlainStorage.fetch

        def noted(self: PlainStorage, segment: Any, first_lsn: int, end_lsn: int) -> Any:
            read.append(range(first_lsn, end_lsn))
            return fetch(self, segment, first_lsn, end_lsn)

        with mock.patch.object(PlainStorage, "fetch", noted):
            led = await place.lead(2, merge_below_bytes=0, wal=before.wal).round()
        assert read == [range(5, 6), range(10, 11)]
        assert led.wal.oldest_lsn() == 11

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
        await led.manager.scrub(repair=True)
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


def test_tiering_goes_on_when_a_tier_that_differed_was_given_up() -> None:
    async def main() -> None:
        place = Place()
        await _led_before(place, 5)
        led = place.lead(2, merge_below_bytes=0)
        other_records(led.wal, 5, term=2)
        await led.manager.run_once()
        led.manager.configure(TierConfig(tiering=Tiering.DELETE))
        await led.round()
        led.manager.configure(TierConfig(merge_below_bytes=0))
        await led.write(5).round()
        assert led.covered() == [range(1, 6), range(6, 11)]
        assert (led.led.differs_at, led.manager.metrics.lag_lsns) == (None, 0)

    in_time(main)


def test_tiering_goes_on_when_the_log_was_begun_again_above_what_is_remote() -> None:
    async def main() -> None:
        place = Place()
        await _led_before(place, 5)
        led = place.lead(2, merge_below_bytes=0)
        other_records(led.wal, 5, term=2)
        await led.manager.run_once()
        led.wal = led.led.local = SealedWal(first_lsn=6)
        await led.write(5).round()
        assert led.covered() == [range(1, 6), range(6, 11)]

    in_time(main)


def _no_answer_once(led: Led) -> None:
    fetch, asked = led.storage.fetch, 0

    async def flaky(*of: Any) -> AsyncIterator[Group]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise Unavailable("throttled")
        async for group in fetch(*of):
            yield group

    led.storage.fetch = flaky


@pytest.mark.parametrize("hindrance", ["no answer", "many pieces", "a damaged piece"])
def test_a_wrong_log_is_not_copied_before_it_was_compared(
    hindrance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        place = Place()
        before = await _led_before(place, 5, 5)
        led = place.lead(2, merge_below_bytes=0).write(5)
        for _ in range(2):
            other_records(led.wal, 5, term=2)
        if hindrance == "no answer":
            _no_answer_once(led)
        elif hindrance == "many pieces":
            monkeypatch.setattr(copying, "PIECES_AT_ONCE", 1)
        else:
            await before.damage(0, None)
        for _ in range(2):
            await led.manager.run_once()
            assert led.covered() == [range(1, 6), range(6, 11)]
        assert "other records" in str(led.manager.problems["compare"])

    in_time(main)


def test_a_right_log_is_copied_beside_what_cannot_be_compared() -> None:
    async def main() -> None:
        place = Place()
        before = await _led_before(place, 5, 5)
        await before.damage(0, None)
        led = place.lead(2, merge_below_bytes=0).write(5, 5, 5)
        await led.manager.run_once()
        assert led.manager.problems.keys() == {"compare"}
        assert led.covered() == [range(1, 6), range(6, 11), range(11, 16)]
        assert led.wal.oldest_lsn() == 1

    in_time(main)


def test_a_round_goes_on_until_all_was_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        place = Place()
        await _led_before(place, 2, 2, 2)
        monkeypatch.setattr(copying, "PIECES_AT_ONCE", 1)
        led = await place.lead(2, merge_below_bytes=0).write(2, 2, 2, 2).round()
        assert led.wal.oldest_lsn() == 9

    in_time(main)


@pytest.mark.parametrize("has_compared", [True, False])
def test_nothing_is_mended_from_a_log_with_other_records(has_compared: bool) -> None:
    async def main() -> None:
        place = Place()
        before = await _led_before(place, 5, 5)
        led = place.lead(2, merge_below_bytes=0)
        for _ in range(3):
            other_records(led.wal, 5, term=2)
        if has_compared:
            await led.manager.run_once()
        await before.damage(0, None)
        scrubbed = await led.manager.scrub(repair=True)
        assert [found.repaired for found in scrubbed.findings] == [False]
        assert "other records" in scrubbed.findings[0].detail
        assert led.metadata.state().segments() == before.metadata.state().segments()

    in_time(main)


def test_a_stream_is_led_under_the_name_that_the_tier_knows() -> None:
    async def main() -> None:
        place = Place()
        await _led_before(place, 5)
        led = place.lead(2, name="orders-renamed").write(5, 5)
        await led.manager.run_once()
        assert "lead it as 'orders'" in str(led.manager.problems["begin"])
        assert not led.manager.leads
        assert led.covered() == [range(1, 6)]

    in_time(main)


def test_the_name_is_known_also_where_the_oldest_segment_is_unlisted() -> None:
    async def main() -> None:
        place = Place()
        before = await place.lead(1, merge_below_bytes=0).write(5, 5).round()
        await before.led.publisher.unlist(before.metadata.state().segments()[0])
        led = place.lead(2, name="orders-renamed")
        await led.manager.run_once()
        assert "lead it as 'orders'" in str(led.manager.problems["begin"])

    in_time(main)


# LSNs that are lost on one side differ from nothing, and the side that has them keeps them.


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
