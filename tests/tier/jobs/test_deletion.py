"""A partition is deleted wholly, from wherever it was left; tiering can be stopped and resumed."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.core.errors import Unavailable
from headwater.tier import PartitionDeleteState, SegmentState
from headwater.tier.jobs import TierConfig, Tiering
from tests.tier.jobs.given import Led, Place, in_time

DELETING, FINISHED = SegmentState.DELETE_STARTED, SegmentState.COPY_FINISHED


def test_all_that_the_tier_has_of_a_partition_goes() -> None:
    async def main() -> None:
        led = await Place().lead().write(3, 3).round()

        assert await led.manager.delete_partition()

        assert (led.states(), led.place.object_names()) == ([], set())
        assert led.metadata.delete_state() is None

    in_time(main)


def test_nothing_is_copied_any_more_once_a_partition_is_deleted() -> None:
    async def main() -> None:
        led = await Place().lead().write(3).round()
        await led.manager.delete_partition()
        await led.write(3).round()

        assert (led.states(), led.place.object_names()) == ([], set())

    in_time(main)


class Counted:
    """Lets so many events through, and no more."""

    def __init__(self, led: Led, events: int) -> None:
        self._publish = led.metadata.publish
        self._left = events
        led.metadata.publish = self.publish  # type: ignore[method-assign]

    async def publish(self, event: Any, **how: Any) -> Any:
        if not self._left:
            raise Unavailable("no connection")
        self._left -= 1
        return await self._publish(event, **how)


@pytest.mark.parametrize("events", range(9))
def test_the_next_leader_takes_up_a_deletion_at_every_step(events: int) -> None:
    async def main() -> None:
        place = Place()
        led = await place.lead(1).write(3, 3).round()
        led.metadata.publish = Counted(led, events).publish  # type: ignore[method-assign]
        done = await led.manager.delete_partition()

        new = await place.lead(2).round()

        if events == 0:
            assert not done
            assert new.states() == [FINISHED, FINISHED]
        else:
            assert (new.states(), place.object_names()) == ([], set())
            assert new.metadata.delete_state() is None

    in_time(main)


def test_a_deletion_that_somebody_marked_is_carried_out_by_the_leader() -> None:
    async def main() -> None:
        led = await Place().lead().write(3).round()
        await led.led.publisher.partition_deletion(PartitionDeleteState.MARKED)

        await led.round()

        assert led.place.object_names() == set()

    in_time(main)


def test_tiering_that_is_stopped_keeps_what_there_is_and_can_be_resumed() -> None:
    async def main() -> None:
        led = await Place().lead().write(3).round()
        led.manager.configure(TierConfig(tiering=Tiering.KEEP, retention_bytes=0))
        await led.write(4).round()
        assert led.covered() == [range(1, 4)]

        led.manager.configure(TierConfig())
        assert (await led.round()).covered() == [range(1, 4), range(4, 8)]

    in_time(main)


def test_tiering_that_is_given_up_leaves_the_log_where_the_local_one_begins() -> None:
    async def main() -> None:
        led = await Place().lead(local_retention_bytes=1).write(3, 3).round()
        led.manager.configure(TierConfig(tiering=Tiering.DELETE))
        await led.round()

        assert led.led.first_lsn == led.wal.oldest_lsn() == 4
        assert led.states() == [DELETING, DELETING]

        led.manager.configure(TierConfig())
        assert (await led.round()).covered() == [range(4, 7)]

    in_time(main)


def test_tiering_that_is_given_up_keeps_what_a_slot_needs() -> None:
    async def main() -> None:
        led = await Place().lead().write(3, 3, 3).round()
        led.slot_floor_lsn = 4
        led.manager.configure(TierConfig(tiering=Tiering.DELETE))
        await led.round()

        assert led.led.first_lsn == 5
        assert led.states() == [DELETING, FINISHED, FINISHED]

    in_time(main)
