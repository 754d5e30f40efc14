"""A log start that is gone is told, and made anew."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest

from headwater.tier.jobs import Flaw, LogStartRegister, ScrubResult, TierMetrics, scrub_partition
from tests.tier.jobs.followed import FollowedPartition
from tests.tier.jobs.given import ORDERS, Led, Place, in_time
from tests.tier.jobs.plain_storage import PlainStorage
from tests.tier.jobs.sealed_wal import SealedWal


async def without_start() -> Led:
    """A leader whose log begins at LSN 4, and whose log start somebody removed."""
    led = Place().lead(merge_below_bytes=0)
    await led.write(3, 3, 3).round()
    await led.led.move_log_start(4)
    await led.place.backend.delete(led.led.register.key)
    return led


def from_outside(place: Place) -> Awaitable[ScrubResult]:
    metadata = FollowedPartition(place.log, ORDERS)
    storage = PlainStorage(place.store, ORDERS)
    return scrub_partition(
        metadata, storage, LogStartRegister(place.store, ORDERS), orphan_grace_ms=0
    )


def test_it_is_told_and_is_no_gap_and_a_leader_that_begins_mends_it() -> None:
    async def main() -> None:
        led = await without_start()
        [found] = (await from_outside(led.place)).findings
        assert (found.kind, found.detail) == (Flaw.NO_START, led.led.register.key)

        await led.place.lead(2, wal=SealedWal(first_lsn=10)).round()
        assert (await from_outside(led.place)).findings == ()

    in_time(main)


def test_a_leader_that_begins_without_one_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        led = await without_start()
        assert "was gone" not in caplog.text
        later = await led.place.lead(2, wal=SealedWal(first_lsn=10)).round()
        assert later.led.first_lsn == 1

    in_time(main)
    assert "start.json was gone" in caplog.text


def test_numbers_can_be_read_where_they_are_printed() -> None:
    metrics = TierMetrics()
    metrics.failures["copy"] += 1
    assert "copied_segments=0" in repr(metrics)
    assert "'copy': 1" in repr(metrics)
