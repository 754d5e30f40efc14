"""What leaves the tier and the local log."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headwater.core import runtime
from headwater.core.errors import Fenced, OutcomeUnknown, Refused, Unavailable
from headwater.log.record.group import Group
from headwater.tier import PartitionDeleteState, SegmentMetadata, SegmentState
from headwater.tier.errors import NotReady
from headwater.tier.jobs import LogStartRegister, TierConfig, Tiering
from tests.tier.jobs.followed import LineFaults
from tests.tier.jobs.given import HOUR_MS, ORDERS, Led, Place, in_time
from tests.tier.jobs.plain_storage import PlainStorage
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


# A partition is deleted wholly, from wherever it was left; tiering can be stopped and resumed.


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
        assert (await again.manager.scrub(repair=False)).findings == ()

    in_time(main)


# Before objects are removed the store is asked who leads: events may go on in another log.


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


# What nothing else has is not let go, and nothing before its time.


class Unreachable(PlainStorage):
    """A store that does not answer whoever reads."""

    def fetch(
        self, segment: SegmentMetadata, first_lsn: int, end_lsn: int
    ) -> AsyncGenerator[Group, None]:
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
