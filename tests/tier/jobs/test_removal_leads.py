"""Before objects are removed the store is asked who leads: events may go on in another log."""

from __future__ import annotations

import pytest

from headwater.core import runtime
from headwater.core.errors import Fenced
from headwater.tier.jobs import LogStartRegister
from tests.tier.jobs.given import HOUR_MS, ORDERS, Place, in_time


def test_a_leader_that_is_over_by_the_store_removes_nothing() -> None:
    async def main() -> None:
        place = Place()
        old = place.lead(1, merge_segments=2, delete_delay_ms=HOUR_MS)
        await old.write(2, 2).round()
        assert old.covered() == [range(1, 5)]
        objects = place.object_names()
        register = LogStartRegister(place.store, ORDERS)
        await register.begin_epoch(2, began_ms=runtime.wall_ms(), oldest_lsn=1)

        await runtime.sleep(2 * HOUR_MS / 1000)
        with pytest.raises(Fenced, match="epoch 2 leads"):
            await old.manager.run_once()
        assert (place.object_names(), len(objects)) == (objects, 3)

    in_time(main)
