"""What goes, and when: remote segments by retention, the local log when it is remote."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from headwater.core.errors import Fenced, Refused
from headwater.tier import SegmentState
from headwater.tier.jobs import LogStartRegister, TierConfig
from tests.tier.jobs.given import HOUR_MS, ORDERS, Place, in_time
from tests.tier.jobs.sealed_wal import SealedWal

DELETING, FINISHED = SegmentState.DELETE_STARTED, SegmentState.COPY_FINISHED


async def hours(number: float) -> None:
    await asyncio.sleep(number * 3600.0)


def test_segments_stay_for_ever_unless_somebody_says_otherwise() -> None:
    async def main() -> None:
        led = await Place().lead().write(3, 3).round()
        await hours(24 * 365)
        assert (await led.round()).states() == [FINISHED, FINISHED]

    in_time(main)


def test_merging_makes_records_without_a_time_no_younger() -> None:
    async def main() -> None:
        led = Place().lead(merge_below_bytes=0).write(3, 3)
        prepare = led.storage.prepare

        async def without_times(*given: Any, **merged: Any) -> Any:
            return dataclasses.replace(await prepare(*given, **merged), max_timestamp_ms=0)

        led.storage.prepare = without_times
        await led.round()
        await hours(0.9)
        merging = TierConfig(retention_ms=HOUR_MS, merge_below_bytes=10_000, merge_segments=2)
        led.manager.configure(merging)
        await led.round()
        assert led.covered() == [range(1, 7)]
        await hours(0.2)
        await led.round()
        assert led.led.first_lsn == 7

    in_time(main)


def test_old_segments_are_unlisted_and_their_objects_go_after_the_delay() -> None:
    async def main() -> None:
        place = Place()
        led = await place.lead(retention_ms=HOUR_MS, delete_delay_ms=2 * HOUR_MS).write(3).round()
        await hours(0.9)
        await led.write(3).round()
        assert led.states() == [FINISHED, FINISHED]

        await hours(0.2)
        await led.round()
        assert led.states() == [DELETING, FINISHED]
        assert led.led.first_lsn == 4
        assert len(place.object_names()) == 2

        await hours(0.1)
        await led.round()
        await hours(1.8)
        await led.round()
        assert len(place.object_names()) == 2

        await hours(0.3)
        await led.round()
        assert len(place.object_names()) == 1

    in_time(main)


def test_records_are_as_old_as_they_are_and_not_as_their_copy() -> None:
    async def main() -> None:
        led = await Place().lead(merge_below_bytes=0).write(2, 2).round()
        await hours(0.9)
        led.manager.configure(
            TierConfig(retention_ms=HOUR_MS, merge_below_bytes=10_000, merge_segments=2)
        )
        assert (await led.round()).covered() == [range(1, 5)]

        await hours(0.2)
        assert (await led.round()).led.first_lsn == 5

    in_time(main)


def test_the_oldest_go_beyond_so_many_bytes() -> None:
    async def main() -> None:
        led = await Place().lead().write(3, 3, 3).round()
        size = led.metadata.state().segments()[0].size_bytes

        kept = await led.place.lead(2, wal=led.wal, retention_bytes=2 * size).round()

        assert kept.covered() == [range(4, 7), range(7, 10)]

    in_time(main)


def test_retention_never_passes_what_a_slot_needs() -> None:
    async def main() -> None:
        led = Place().lead(retention_bytes=0).write(3, 3, 3)
        led.slot_floor_lsn = 4
        await led.round()

        assert led.led.first_lsn == 5
        assert led.states() == [DELETING, FINISHED, FINISHED]

    in_time(main)


def test_what_is_lost_expires_with_what_comes_after_it() -> None:
    async def main() -> None:
        place = Place()
        await place.lead(1).write(3).round()
        led = place.lead(2, wal=SealedWal(first_lsn=6), retention_bytes=0).write(2, 2)
        await (await led.round()).round()

        assert led.led.first_lsn == 10
        assert led.manager.metrics.missing_lsns == 0
        assert led.wal.oldest_lsn() == 10

    in_time(main)


def test_the_log_start_stands_in_the_store_and_only_the_newest_leader_moves_it() -> None:
    async def main() -> None:
        place = Place()
        old = await place.lead(1, retention_bytes=0).write(3).round()
        await place.lead(2).round()
        register = LogStartRegister(place.store, ORDERS)
        stored = await register.read()
        assert stored is not None
        assert (stored.first_lsn, stored.leader_epoch) == (4, 2)

        with pytest.raises(Fenced):
            await old.led.move_log_start(9)
        assert (await register.move(2, 2)).first_lsn == 4

    in_time(main)


def test_the_delay_of_an_older_leaders_segments_counts_from_when_the_next_began() -> None:
    async def main() -> None:
        place = Place()
        await place.lead(1, retention_bytes=0).write(3).round()
        await hours(30)
        new = await place.lead(2).round()
        assert place.object_names()
        await hours(23)
        assert (await new.round()).states() == [DELETING]

        # It does not begin anew with every leader.
        later = await place.lead(3).round()
        assert later.states() == [DELETING]
        await hours(1.1)
        assert (await later.round()).states() == []
        assert not place.object_names()

    in_time(main)


def test_what_is_remote_leaves_the_local_log() -> None:
    async def main() -> None:
        led = Place().lead().write(3, 3)
        led.slot_floor_lsn = 4
        led.wal.append(2)
        await led.round()
        assert led.wal.oldest_lsn() == 5

        led.slot_floor_lsn = 100
        await led.round()
        assert (led.wal.oldest_lsn(), led.wal.current_lsn()) == (7, 8)

    in_time(main)


def test_local_retention_keeps_what_is_new() -> None:
    async def main() -> None:
        led = await Place().lead(local_retention_ms=HOUR_MS).write(3).round()
        await hours(0.9)
        await led.write(3).round()
        assert led.wal.oldest_lsn() == 1

        await hours(0.2)
        assert (await led.round()).wal.oldest_lsn() == 4

    in_time(main)


def test_local_retention_keeps_so_many_bytes() -> None:
    async def main() -> None:
        led = Place().lead(local_retention_bytes=1).write(3, 3)
        await led.round()
        assert led.wal.oldest_lsn() == 4

    in_time(main)


@pytest.mark.parametrize(
    "wrong",
    [
        {"retention_ms": -2},
        {"retention_bytes": -5},
        {"delete_delay_ms": -1},
        {"bytes_per_s": 0},
        {"interval_s": 0.0},
        {"merge_segments": 1},
        {"merge_target_bytes": 1},
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(Refused, match=next(iter(wrong)).split("_")[0][:5]):
        TierConfig(**wrong)  # type: ignore[arg-type]
