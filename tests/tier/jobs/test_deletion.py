"""A partition is deleted wholly, from wherever it was left; tiering can be stopped and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headwater.core.errors import OutcomeUnknown, Unavailable
from headwater.tier import PartitionDeleteState, SegmentState
from headwater.tier.errors import NotReady
from headwater.tier.jobs import TierConfig, Tiering
from tests.tier.jobs.followed import LineFaults
from tests.tier.jobs.given import Led, Place, in_time

DELETING, FINISHED = SegmentState.DELETE_STARTED, SegmentState.COPY_FINISHED


def test_all_that_the_tier_has_of_a_partition_goes() -> None:
    async def main() -> None:
        led = await Place().lead().write(3, 3).round()

        assert await led.manager.delete_partition()

        assert (led.states(), led.place.object_names()) == ([], set())
        assert led.metadata.state().delete_state is None

    in_time(main)


def test_nothing_is_copied_any_more_once_a_partition_is_deleted() -> None:
    async def main() -> None:
        led = await Place().lead().write(3).round()
        await led.manager.delete_partition()
        await led.write(3).round()

        assert (led.states(), led.place.object_names()) == ([], set())

    in_time(main)


def test_what_was_deleted_is_no_loss_to_the_next_leader() -> None:
    async def main() -> None:
        led = await Place().lead().write(3, 3).round()
        led.slot_floor_lsn = 0
        assert await led.manager.delete_partition()
        after = await led.place.lead(2, wal=led.wal).write(3).round()

        assert after.led.first_lsn == 7
        assert after.led.metrics.missing_lsns == 0
        assert after.wal.oldest_lsn() == 10

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
            assert new.metadata.state().delete_state is None

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


def test_tiering_that_was_given_up_half_way_and_is_resumed_copies_what_was_unlisted() -> None:
    """Before it drops the local copy of it, which is then the only one."""

    async def main() -> None:
        led = (
            await Place().lead(local_retention_bytes=10**9, merge_below_bytes=0).write(5, 5).round()
        )
        led.manager.configure(TierConfig(tiering=Tiering.DELETE, merge_below_bytes=0))
        with failing(led, after=1):
            await led.manager.run_once()
        assert "drop remote" in led.manager.problems
        assert led.states() == [DELETING, FINISHED]

        led.manager.configure(TierConfig(merge_below_bytes=0))
        await led.round()
        assert led.covered() == [range(1, 6), range(6, 11)]
        assert led.wal.oldest_lsn() == 11
        assert led.manager.problems == {}

    in_time(main)


def test_metadata_that_are_not_ready_for_a_while_end_nothing() -> None:
    async def main() -> None:
        led = await Place().lead().write(3).round()
        with not_ready(led):
            await led.manager.run_once()
        assert led.manager.problems.keys() == {"choose jobs", "look for losses"}

        await led.write(4).round()
        assert led.covered() == [range(1, 4), range(4, 8)]
        assert led.manager.problems == {}

    in_time(main)


@contextmanager
def failing(led: Led, *, after: int) -> Iterator[None]:
    """Events cannot be published any more after so many."""
    publish, published = led.metadata.publish, 0

    async def counted(event: Any, **options: Any) -> Any:
        nonlocal published
        published += 1
        if published > after:
            raise Unavailable("no connection")
        return await publish(event, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(led.metadata, "publish", counted)
        yield


@contextmanager
def not_ready(led: Led) -> Iterator[None]:
    """Nothing is answered about the partition."""

    def refuse(*_: Any) -> Any:
        raise NotReady("metadata partition 0 is applied up to 1 of 2: try again", partition=0)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(led.metadata, "state", refuse)
        yield


def test_what_may_have_been_unlisted_does_not_count_as_remote() -> None:
    async def main() -> None:
        led = (
            await Place()
            .lead(merge_below_bytes=0, local_retention_bytes=1 << 30)
            .write(5, 5)
            .round()
        )
        led.manager.configure(TierConfig(tiering=Tiering.DELETE))
        faults = LineFaults(lose_answer=1.0)
        led.metadata._faults = lambda: faults
        await led.manager.run_once()
        assert isinstance(led.manager.problems["drop remote"], OutcomeUnknown)

        assert led.led.tiered_lsn() == 0
        faults = LineFaults()
        led.manager.configure(TierConfig(merge_below_bytes=0))
        await led.round()

        assert led.covered() == [range(1, 6), range(6, 11)]
        assert led.wal.oldest_lsn() == 11

    in_time(main)


def test_whoever_leads_a_deleted_partition_again_misses_nothing() -> None:
    async def main() -> None:
        led = await Place().lead().write(3, 3).round()
        await led.write(3).manager.delete_partition()
        again = await led.place.lead(2, wal=led.wal).round()

        assert (again.led.first_lsn, again.covered()) == (7, [range(7, 10)])
        assert again.manager.metrics.missing_lsns == 0
        assert (await again.manager.scrub(mend=False)).findings == ()

    in_time(main)
