"""A long cover is walked bit by bit, and others work in between."""

from __future__ import annotations

import pytest

from headwater.core import runtime
from headwater.tier.jobs import walking
from headwater.tier.jobs.copying import copy_local
from headwater.tier.jobs.walking import walk_cover
from tests.tier.jobs.given import FAR, Place, in_time


def test_a_walk_gives_the_cover_and_lets_others_work(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        place = Place()
        await place.lead(1, merge_below_bytes=0).write(12).round()
        led = place.lead(2, merge_below_bytes=0, local_retention_bytes=1 << 30)
        led.write(12)
        await led.led.begin()
        for first_lsn in (3, 7, 11):
            await copy_local(led.led, range(first_lsn, first_lsn + 2))
        paused = 0
        sleep = runtime.sleep

        async def counted(seconds: float) -> None:
            nonlocal paused
            paused += seconds == 0
            await sleep(seconds)

        monkeypatch.setattr(runtime, "sleep", counted)
        monkeypatch.setattr(walking, "SEGMENTS_AT_ONCE", 1)
        walked = [piece async for piece in walk_cover(led.metadata, 1, FAR)]

        assert walked == led.metadata.cover(1, FAR)
        assert [piece.lsns for piece in walked][:3] == [range(1, 3), range(3, 5), range(5, 7)]
        assert paused >= 3

    in_time(main)
