"""What is sealed and committed becomes remote, once, whatever goes wrong on the way."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest

from headwater.core.errors import Fenced, OutcomeUnknown, Refused, Unavailable
from headwater.tier import SegmentState
from headwater.tier.errors import NotOneSegment
from tests.tier.jobs.followed import LineFaults
from tests.tier.jobs.given import Led, Place, in_time
from tests.tier.jobs.plain_storage import PlainStorage
from tests.tier.jobs.sealed_wal import SealedWal

FINISHED = SegmentState.COPY_FINISHED


def test_sealed_parts_become_remote_one_after_the_other() -> None:
    async def main() -> None:
        led = await Place().lead().write(3, 4, 5).round()

        assert led.covered() == [range(1, 4), range(4, 8), range(8, 13)]
        assert led.led.tiered_lsn() == 12

    in_time(main)


def test_what_is_not_sealed_or_not_committed_waits() -> None:
    async def main() -> None:
        led = Place().lead().write(3, 4)
        led.committed_lsn = 6
        led.wal.append(5)
        await led.round()
        assert led.covered() == [range(1, 4)]

        led.committed_lsn = 7
        assert (await led.round()).covered() == [range(1, 4), range(4, 8)]

    in_time(main)


def test_nothing_is_copied_twice() -> None:
    async def main() -> None:
        place = Place()
        await (await place.lead().write(3, 4).round()).round()
        again = await place.lead(2, wal=SealedWal()).write(3, 4, 5).round()

        assert again.covered() == [range(1, 4), range(4, 8), range(8, 13)]
        assert len(place.object_names()) == 3

    in_time(main)


class Failing(PlainStorage):
    """Stores nothing, or something of which it does not know."""

    error: Exception | None = None
    stores = False

    async def copy(self, prepared: Any) -> None:
        if self.error is None or self.stores:
            await super().copy(prepared)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("stores", [False, True])
@pytest.mark.parametrize("error", [Unavailable("no"), OutcomeUnknown("who knows")])
def test_a_copy_that_fails_leaves_nothing_behind_and_is_tried_under_another_id(
    error: Exception, stores: bool
) -> None:
    async def main() -> None:
        led = Place().lead().write(3)
        led.led.storage = storage = Failing(led.place.store, led.led.leader.partition)
        storage.error, storage.stores = error, stores
        await led.manager.run_once()
        assert list(led.manager.problems) == ["copy"]
        assert (led.states(), led.place.object_names()) == ([], set())

        storage.error = None
        assert (await led.round()).states() == [FINISHED]

    in_time(main)


def test_a_copy_that_a_dead_leader_began_is_removed_by_the_next() -> None:
    async def main() -> None:
        place = Place()
        dead = place.lead().write(3)
        await dead.led.begin()
        prepared = await dead.storage.prepare(1, 3, dead.led.local_groups(1, 3))
        await dead.led.publisher.copy_started(prepared)
        await dead.storage.copy(prepared)

        led = await place.lead(2).round()

        assert (led.states(), place.object_names()) == ([], set())

    in_time(main)


def test_a_leader_that_was_overtaken_touches_nothing_more() -> None:
    async def main() -> None:
        place = Place()
        stale = await place.lead(1).write(3).round()
        await place.lead(2, wal=stale.wal).round()
        before = place.object_names()

        with pytest.raises(Fenced):
            await stale.write(4).manager.run_once()

        assert place.object_names() == before
        assert not stale.manager.leads
        with pytest.raises(Fenced):
            await stale.manager.run_once()

    in_time(main)


def test_an_older_leader_cannot_take_back_what_the_new_one_counts_on() -> None:
    async def main() -> None:
        place = Place()
        stale = await place.lead(1).write(3).round()
        new = place.lead(2, wal=SealedWal(first_lsn=4))
        await new.led.begin()

        with pytest.raises(Fenced):
            await stale.led.publisher.unlist(stale.metadata.state().segments()[0])

        new.metadata.follow()
        assert new.covered() == [range(1, 4)]

    in_time(main)


def test_an_event_of_unknown_outcome_is_settled_before_the_next_decision() -> None:
    async def main() -> None:
        led = Place().lead().write(3)
        await led.led.begin()
        published = led.metadata.publish

        async def loses_the_answer(event: Any, **how: Any) -> Any:
            await published(event, **how)
            raise OutcomeUnknown("the answer was lost")

        led.metadata.publish = loses_the_answer  # type: ignore[method-assign]
        await led.manager.run_once()
        led.metadata.publish = published  # type: ignore[method-assign]
        await led.round()

        assert led.covered() == [range(1, 4)]
        assert led.states() == [FINISHED]

    in_time(main)


def test_what_is_lost_is_told_and_the_rest_is_saved() -> None:
    async def main() -> None:
        place = Place()
        await place.lead(1).write(3).round()
        led = await (await place.lead(2, wal=SealedWal(first_lsn=6)).write(2, 2).round()).round()

        assert led.covered() == [range(1, 4), range(6, 8), range(8, 10)]
        assert led.manager.metrics.missing_lsns == 2
        assert led.wal.oldest_lsn() == 6

    in_time(main)


def test_rounds_go_on_after_failures_until_somebody_newer_leads() -> None:
    async def main() -> None:
        place = Place()
        led: Led = place.lead(interval_s=10.0).write(3)
        faults = LineFaults(fail=1.0)
        led.metadata._faults = lambda: faults
        running = asyncio.ensure_future(led.manager.run())
        await asyncio.sleep(100.0)
        assert led.manager.problems

        faults = LineFaults()
        await asyncio.sleep(1000.0)
        assert led.covered() == [range(1, 4)]

        await place.lead(2).round()
        led.write(1)
        await asyncio.sleep(1000.0)
        assert running.done()

    in_time(main)


def test_objects_are_written_no_faster_than_allowed() -> None:
    async def main() -> None:
        led = await Place().lead(bytes_per_s=10).write(3, 3, 3).round()
        loop = asyncio.get_running_loop()
        sizes = [one.size_bytes for one in led.metadata.state().segments()]

        assert loop.time() >= sum(sizes[:-1]) / 10

    in_time(main)


def test_a_sealed_part_that_cannot_be_one_segment_becomes_several_and_holds_up_nothing() -> None:
    async def main() -> None:
        led = Place().lead(merge_below_bytes=0).write(8, 2)
        prepare = led.storage.prepare

        async def small_ones_only(first_lsn: int, last_lsn: int, *how: Any, **more: Any) -> Any:
            if last_lsn - first_lsn >= 3:
                at_lsn = 7 if first_lsn == 1 else None
                raise NotOneSegment("too many", at_lsn=at_lsn)
            return await prepare(first_lsn, last_lsn, *how, **more)

        led.storage.prepare = small_ones_only
        await led.round()

        assert led.covered() == [range(1, 4), range(4, 7), range(7, 9), range(9, 11)]

    in_time(main)


def test_a_long_backlog_does_not_keep_the_other_jobs_waiting() -> None:
    async def main() -> None:
        led = Place().lead(merge_below_bytes=0).write(*[1] * 20)
        oldest: list[int] = []
        copy = PlainStorage.copy

        async def watched(storage: PlainStorage, prepared: Any) -> None:
            oldest.append(led.wal.oldest_lsn())
            await copy(storage, prepared)

        with mock.patch.object(PlainStorage, "copy", watched):
            await led.round()
        assert led.led.tiered_lsn() == 20
        assert oldest == [1] * 8 + [9] * 8 + [17] * 4

    in_time(main)


@pytest.mark.parametrize("epoch", [-1, 1 << 31, (1 << 64) - 1])
def test_an_epoch_that_no_segment_could_have_speaks_for_nobody(epoch: int) -> None:
    with pytest.raises(Refused, match="from 0 to 2,147,483,647"):
        Place().lead(epoch)
