"""The log start is kept as long as somebody leads, and is never guessed."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from headwater.core.errors import Fenced, NotSupported, RolledBack
from headwater.store import Register
from headwater.tier.jobs import Flaw, LogStartRegister, ScrubResult, TierConfig, scrub_partition
from headwater.tier.jobs.config import TierMetrics
from headwater.tier.jobs.log_start import FORMAT, LEADERS_KEPT, LogStart
from tests.tier.jobs.followed import FollowedPartition
from tests.tier.jobs.given import ORDERS, Led, Place, in_time
from tests.tier.jobs.plain_storage import PlainStorage
from tests.tier.jobs.sealed_wal import SealedWal


def test_it_begins_where_the_first_leader_finds_the_log() -> None:
    async def main() -> None:
        register = LogStartRegister(Place().store, ORDERS)
        assert await register.read() is None

        await register.begin_epoch(3, began_ms=1000, oldest_lsn=7)
        await register.begin_epoch(4, began_ms=2000, oldest_lsn=99)

        assert await register.read() == LogStart(FORMAT, 4, 7, ((3, 1000), (4, 2000)))

    in_time(main)


def test_an_older_leader_neither_stamps_nor_moves_it() -> None:
    async def main() -> None:
        register = LogStartRegister(Place().store, ORDERS)
        await register.begin_epoch(4, began_ms=2000, oldest_lsn=7)

        with pytest.raises(Fenced):
            await register.begin_epoch(3, began_ms=3000, oldest_lsn=7)
        with pytest.raises(Fenced):
            await register.move(3, 8)

    in_time(main)


def test_it_says_when_it_was_over_for_a_leader() -> None:
    start = LogStart(FORMAT, 6, 1, ((3, 1000), (6, 2000)))

    assert [start.ended_ms(epoch) for epoch in (1, 2, 3, 5, 6)] == [1000, 1000, 2000, 2000, None]


def test_it_keeps_some_leaders_and_not_all() -> None:
    async def main() -> None:
        register = LogStartRegister(Place().store, ORDERS)
        for epoch in range(1, LEADERS_KEPT + 10):
            await register.begin_epoch(epoch, began_ms=epoch * 10, oldest_lsn=1)
            await register.begin_epoch(epoch, began_ms=epoch * 10 + 5, oldest_lsn=1)

        stored = await register.read()
        assert stored is not None
        assert len(stored.leaders) == LEADERS_KEPT
        assert stored.leaders[-2:] == ((LEADERS_KEPT + 8, 405), (LEADERS_KEPT + 9, 415))

    in_time(main)


def test_one_that_is_gone_or_of_a_later_version_is_not_taken_for_a_new_one() -> None:
    async def main() -> None:
        place = Place()
        register = LogStartRegister(place.store, ORDERS)
        with pytest.raises(RolledBack):
            await register.move(1, 5)

        later = LogStart(FORMAT + 1, 1, 1)
        await Register(place.store, register.key, LogStart).update(lambda _: later)
        for call in (register.read(), register.move(1, 5)):
            with pytest.raises(NotSupported, match="Upgrade"):
                await call

    in_time(main)


def test_what_is_needed_since_it_was_decided_to_move_it_stays() -> None:
    async def main() -> None:
        led = await Place().lead(merge_below_bytes=0).write(3, 3, 3).round()
        read = led.place.backend.get

        async def slot_is_made(key: str, *how: Any, **more: Any) -> Any:
            if key == led.led.register.key:
                led.slot_floor_lsn = 4
            return await read(key, *how, **more)

        led.place.backend.get = slot_is_made  # type: ignore[method-assign]
        led.manager.configure(TierConfig(merge_below_bytes=0, retention_bytes=0))
        await led.round()

        assert led.led.first_lsn == 5
        assert led.covered() == [range(4, 7), range(7, 10)]

    in_time(main)


# A log start that is gone is told, and made anew.


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
    assert "start.json was missing" in caplog.text


def test_numbers_can_be_read_where_they_are_printed() -> None:
    metrics = TierMetrics()
    metrics.failures["copy"] += 1
    assert "copied_segments=0" in repr(metrics)
    assert "'copy': 1" in repr(metrics)
