"""What nothing else has is not let go, and nothing before its time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from headwater.core import runtime
from headwater.core.errors import Fenced, Unavailable
from headwater.log.record.group import Group
from headwater.tier.jobs import TierConfig
from tests.tier.jobs.given import HOUR_MS, ORDERS, Place, in_time
from tests.tier.jobs.plain_storage import PlainStorage


class Unreachable(PlainStorage):
    """A store that does not answer whoever reads."""

    def fetch(self, *_: Any) -> AsyncIterator[Group]:
        raise Unavailable("no connection")


def test_a_copy_above_what_was_not_compared_lets_nothing_below_it_go() -> None:
    async def main() -> None:
        place = Place()
        await place.lead(1, merge_below_bytes=0).write(5).round()
        led = place.lead(2, merge_below_bytes=0).write(5, 5)
        led.led.storage = Unreachable(place.store, ORDERS)
        await led.led.begin()
        led.led.copied_from_local(range(6, 11))
        await led.manager.run_once()

        assert "compare" in led.manager.problems
        assert led.wal.oldest_lsn() == 1

    in_time(main)


def test_the_object_of_an_unlisted_segment_stays_while_nothing_else_has_its_lsns() -> None:
    async def main() -> None:
        led = await Place().lead(merge_below_bytes=0, delete_delay_ms=0).write(3, 3).round()
        assert led.wal.oldest_lsn() == 7
        await led.led.unlist(led.metadata.state().segments()[0])
        await led.manager.run_once()

        assert len(led.place.object_names()) == 2
        assert "nothing else has LSNs 1 to 3" in str(led.manager.problems["clean up"])

    in_time(main)


def test_the_delay_of_what_an_older_leader_unlisted_begins_when_it_could_no_more() -> None:
    async def main() -> None:
        place = Place()
        older = await place.lead(1, merge_below_bytes=0).write(3, 3).round()
        led = place.lead(2, wal=older.wal, delete_delay_ms=HOUR_MS)
        publish = led.metadata.publish

        async def late(event: Any, **how: Any) -> Any:
            led.metadata.publish = publish  # type: ignore[method-assign]
            await runtime.sleep(2 * HOUR_MS / 1000)
            older.manager.configure(TierConfig(merge_segments=2))
            await older.round()
            return await publish(event, **how)

        led.metadata.publish = late  # type: ignore[method-assign]
        await led.round()
        assert len(place.object_names()) == 3, "two parts, and what they were merged into"

        await runtime.sleep(HOUR_MS / 1000)
        await led.round()
        assert len(place.object_names()) == 1

    in_time(main)


def test_who_is_fenced_by_the_log_start_touches_nothing_more() -> None:
    async def main() -> None:
        place = Place()
        led = await place.lead(1, merge_below_bytes=0).write(3).round()
        await led.led.register.begin_epoch(2, began_ms=0, oldest_lsn=1)
        led.manager.configure(TierConfig(retention_bytes=0))
        before = place.object_names(), len(place.log.events_of(0))
        for _ in range(2):
            with pytest.raises(Fenced):
                await led.manager.run_once()
            assert not led.manager.leads
            assert (place.object_names(), len(place.log.events_of(0))) == before
            led.write(3)

    in_time(main)
