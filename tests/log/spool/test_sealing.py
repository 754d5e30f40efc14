"""When a segment is sealed."""

from __future__ import annotations

import errno

import pyarrow as pa
import pytest

from headwater.core import runtime
from headwater.core.errors import Corrupt
from headwater.core.limits import LOG_TEND_EVERY_S
from headwater.log import Group, SpoolConfig, prepare_lost
from headwater.testing import Simulation, simulate
from headwater.testing.disk import FaultyDisk
from tests.log.given import numbered, opened, wait

SMALL = SpoolConfig(segment_bytes=1000)


def test_segments_are_sealed_by_size_schema_term_and_hand_over() -> None:
    spool = opened(FaultyDisk(), config=SMALL)
    wait(spool.append(numbered(1, 1, size=900), term=1))
    wait(spool.append(numbered(2, 1), term=1))
    wait(spool.append(pa.record_batch({"typed": pa.array([1])}), term=1))
    wait(spool.append(prepare_lost(1, "lost has no schema"), term=1))
    wait(spool.append(pa.record_batch({"typed": pa.array([2])}), term=2))
    wait(spool.seal())
    wait(spool.seal())
    assert [(one.first_lsn, one.last_lsn) for one in spool.segments()] == [
        (1, 1),
        (2, 2),
        (3, 4),
        (5, 5),
        (6, 5),
    ]
    assert spool.metrics.segments_sealed == {"size": 1, "schema": 1, "hand-over": 2}


def test_a_schema_is_remembered_over_a_restart() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    wait(spool.append(pa.record_batch({"typed": pa.array([1])}), term=1))
    wait(spool.close())
    again = opened(disk)
    wait(again.append(pa.record_batch({"typed": pa.array([2])}), term=1))
    wait(again.append(pa.record_batch({"typed": pa.array(["2"])}), term=1))
    assert [one.first_lsn for one in again.segments()] == [1, 3]


def test_an_idle_segment_is_sealed_by_age_and_synced_by_interval() -> None:
    async def main(simulation: Simulation) -> None:
        spool = opened(FaultyDisk(), config=SpoolConfig(sync=5.0, segment_age_s=60))
        await spool.append(numbered(1, 1), term=1)
        assert (spool.current_lsn(), spool.synced_lsn) == (1, 0)
        keeping = runtime.spawn(spool.keep(), name="keep")
        await runtime.sleep(10)
        assert spool.synced_lsn == 1
        assert len(spool.segments()) == 1
        await runtime.sleep(60)
        assert [one.first_lsn for one in spool.segments()] == [1, 2]
        await runtime.sleep(600)
        assert len(spool.segments()) == 2
        keeping.cancel()
        await spool.close()

    simulate(main, seed=1)


def test_an_old_segment_is_sealed_by_the_next_append_also_after_a_restart() -> None:
    async def main(simulation: Simulation) -> None:
        disk = FaultyDisk()
        spool = opened(disk, config=SpoolConfig(segment_age_s=60))
        await spool.append(numbered(1, 1), term=1)
        await spool.close()
        await runtime.sleep(61)
        spool = opened(disk, config=SpoolConfig(segment_age_s=60))
        await spool.append(numbered(2, 1), term=1)
        assert [one.first_lsn for one in spool.segments()] == [1, 2]
        await spool.append(numbered(3, 1), term=1)
        assert len(spool.segments()) == 2
        await spool.close()

    simulate(main, seed=1)


def test_an_old_segment_that_cannot_be_sealed_for_want_of_room_is_written_on() -> None:
    async def main(simulation: Simulation) -> None:
        disk = FaultyDisk()
        spool = opened(disk, config=SpoolConfig(segment_age_s=60))
        await spool.append(numbered(1, 1), term=1)
        await runtime.sleep(61)
        disk.fail_next("create", errno.ENOSPC)
        assert await spool.append(numbered(2, 1), term=1) == (2, 2)
        # It is not tried again for each append.
        assert await spool.append(numbered(3, 1), term=1) == (3, 3)
        assert len(spool.segments()) == 1
        await runtime.sleep(LOG_TEND_EVERY_S)
        assert await spool.append(numbered(4, 1), term=1) == (4, 4)
        assert [one.first_lsn for one in spool.segments()] == [1, 4]
        await spool.close()

    simulate(main, seed=1)


def test_nothing_is_appended_to_a_segment_whose_columns_cannot_be_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    wait(spool.append(numbered(1, 1), term=1))
    wait(spool.close())

    def unreadable(*_: object) -> Group:
        raise Corrupt("a group of kind 9")

    monkeypatch.setattr("headwater.log.spool.recovery.decode_group", unreadable)
    spool = opened(disk)
    wait(spool.append(prepare_lost(1, "has no columns"), term=1))
    wait(spool.append(numbered(3, 2), term=1))
    assert [one.first_lsn for one in spool.segments()] == [1, 3]
