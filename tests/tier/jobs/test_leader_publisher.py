"""A leader publishes its events one after the other, under one epoch."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headwater.core.errors import Fenced, HeadwaterError, OutcomeUnknown, Refused, Unavailable
from headwater.core.limits import EPOCH_STEP_MAX
from headwater.store import MemoryBackend, Store
from headwater.tier import (
    EventOutcome,
    MetadataEvent,
    PartitionDeleteState,
    SegmentState,
    SegmentUpdate,
    TopicMetadataManager,
    encode_event,
)
from headwater.tier.eventlog import InProcessEventLog, MetadataEventLog, StoredEventLog, renew
from headwater.tier.jobs import Leader, LedPartition, LogStartRegister, TierConfig, TierManager
from headwater.tier.manager import ManagedPartition, publish_deletion
from headwater.tier.segment_cover import gaps
from tests.tier.given import started
from tests.tier.jobs.given import ORDERS, Led, Place, in_time
from tests.tier.jobs.plain_storage import PlainStorage
from tests.tier.jobs.sealed_wal import SealedWal


@pytest.mark.parametrize("error", [Unavailable("no connection"), Refused("not assigned")])
def test_an_event_that_may_have_landed_is_not_settled_by_an_attempt_that_did_not(
    error: HeadwaterError,
) -> None:
    async def main() -> None:
        led = await Place().lead(merge_below_bytes=0).write(3).round()
        voice, publish = led.led.publisher, led.metadata.publish
        answers: list[HeadwaterError] = [OutcomeUnknown("nobody answered"), error]

        async def unlucky(event: object, *, publisher_epoch: int) -> EventOutcome:
            raise answers.pop(0)

        led.metadata.publish = unlucky  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown):
            await voice.unlist(led.metadata.state().segments()[0])
        with pytest.raises(type(error)):
            await voice.settle()
        known = [voice.is_settled]

        led.metadata.publish = publish  # type: ignore[method-assign]
        await voice.settle()
        known.append(voice.is_settled)
        assert known == [False, True]
        assert led.covered() == []

    in_time(main)


# While it is not known what became of an event, nothing is decided by what is known.


FINISHED, DELETING = SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED
Publish = Callable[..., Awaitable[EventOutcome]]


class Line:
    """The way to the log of events, with the next answers told beforehand."""

    def __init__(self, led: Led) -> None:
        self.tried: list[MetadataEvent] = []
        self.answers: list[HeadwaterError] = []
        """What comes instead of the next events' landing."""
        self.lost: SegmentState | None = None
        """The answer to the next event of this state is lost; it lands."""
        self._publish = led.metadata.publish
        led.metadata.publish = self.publish  # type: ignore[method-assign]

    async def publish(self, event: MetadataEvent, **how: Any) -> EventOutcome:
        self.tried.append(event)
        if self.answers:
            raise self.answers.pop(0)
        outcome = await self._publish(event, **how)
        if isinstance(event, SegmentUpdate) and event.state is self.lost:
            self.lost = None
            raise OutcomeUnknown("the answer was lost")
        return outcome


@pytest.mark.parametrize("error", [Unavailable("no connection"), Refused("not now")])
def test_an_event_that_does_not_land_the_second_time_may_have_landed_the_first(
    error: HeadwaterError,
) -> None:
    async def main() -> None:
        led = await Place().lead(merge_below_bytes=0).write(3, 3).round()
        first, second = led.metadata.state().segments()
        line = Line(led)
        line.answers = [OutcomeUnknown("nobody answered"), error]
        for _ in range(2):
            with pytest.raises(type(line.answers[0])):
                await led.led.publisher.unlist(first)
        assert not led.led.publisher.is_settled

        line.tried.clear()
        await led.led.publisher.unlist(second)
        told = [one.segment_id for one in line.tried if isinstance(one, SegmentUpdate)]
        assert told == [first.segment_id, second.segment_id]

    in_time(main)


def test_what_a_copy_replaced_is_unlisted_though_the_answer_to_its_last_event_was_lost() -> None:
    async def main() -> None:
        led = await Place().lead(merge_below_bytes=0).write(3, 3).round()
        led.manager.configure(TierConfig(merge_segments=2))
        Line(led).lost = FINISHED
        await led.manager.run_once()
        assert "answer was lost" in str(led.manager.problems["merge"])
        assert led.states() == [FINISHED] * 3

        await led.round()
        assert sorted(led.states()) == [FINISHED, DELETING, DELETING]
        assert led.covered() == [range(1, 7)]

    in_time(main)


def test_a_repair_waits_until_it_is_known_what_is_listed() -> None:
    async def main() -> None:
        led = await Place().lead(merge_below_bytes=0).write(3, 3).round()
        small = led.metadata.state().segments()
        line = Line(led)
        line.lost = FINISHED
        led.manager.configure(TierConfig(merge_segments=2))
        await led.manager.run_once()
        merged = next(one for one in led.metadata.state().segments() if one not in small)
        await led.damage(led.metadata.state().segments().index(merged), b"garbage")
        verify = led.storage.verify

        async def unlisted_meanwhile(segment: Any) -> None:
            led.storage.verify = verify
            line.answers = [OutcomeUnknown("nobody answered")]
            with contextlib.suppress(OutcomeUnknown):
                await led.led.unlist(small[0])
            await verify(segment)

        led.storage.verify = unlisted_meanwhile
        scrubbed = await led.manager.scrub(repair=True)

        assert scrubbed.is_clean
        assert led.metadata.state().find(merged.segment_id).state is DELETING  # type: ignore[union-attr]
        assert gaps(led.metadata.state().cover(1, 7), 1, 7) == []

    in_time(main)


def test_a_job_ends_with_an_event_of_unknown_outcome() -> None:
    async def main() -> None:
        led = Place().lead(merge_below_bytes=0, retention_bytes=0, delete_delay_ms=0)
        await led.write(1, 1, 1, 1).round()
        assert led.states() == [DELETING] * 4
        line = Line(led)
        line.answers = [OutcomeUnknown("nobody answered")]
        await led.manager.run_once()

        assert "nobody answered" in str(led.manager.problems["clean up"])
        removed = [one for one in line.tried if isinstance(one, SegmentUpdate)]
        assert {one.segment_id for one in removed} == {removed[0].segment_id}
        assert len(led.place.object_names()) == 3, "the others have their turn when that is known"

        assert (await led.round()).states() == []

    in_time(main)


# An epoch that no leader reaches is not the end of its partition.


TOO_HIGH = 2 * EPOCH_STEP_MAX


async def led_by(epoch: int, store: Store, log: MetadataEventLog, wal: SealedWal) -> TierManager:
    """One round under an epoch, with all that a leader of its own has."""
    manager = await TopicMetadataManager.start(log)
    await manager.reconcile_assignment({manager.metadata_partition(ORDERS)})
    wal.append(3, term=1)
    wal.seal()
    leader = Leader(ORDERS, epoch, 1, committed_lsn=wal.current_lsn, slot_floor_lsn=wal.current_lsn)
    tier = TierManager(
        LedPartition(
            leader,
            metadata=ManagedPartition(manager, ORDERS),
            storage=PlainStorage(store, ORDERS),
            local=wal,
            log_start=LogStartRegister(store, ORDERS),
            config=TierConfig(),
        )
    )
    try:
        await tier.run_once()
    finally:
        await manager.close()
    return tier


def test_the_first_leader_leads_whatever_its_epoch_and_a_slip_after_it_is_refused() -> None:
    """A consumer may have been opened more than a million times before anything was tiered."""

    async def main() -> None:
        store, wal = Store(MemoryBackend()), SealedWal()
        log = await StoredEventLog.open(store, partition_count=1)
        first = await led_by(TOO_HIGH, store, log, wal)
        assert (first.problems, wal.oldest_lsn()) == ({}, 4), "all of it is remote"
        events = await log.high_water_marks()

        slipped = await led_by(2 * TOO_HIGH, store, log, wal)
        assert f"{TOO_HIGH} was the last" in str(slipped.problems["begin"])
        assert await log.high_water_marks() == events

        led = await led_by(TOO_HIGH + 1, store, log, wal)
        assert (led.problems, wal.oldest_lsn()) == ({}, 10), "all of it is remote"

    in_time(main)


def test_after_a_renewal_that_took_it_back_a_leader_leads_again() -> None:
    async def main() -> None:
        store, wal = Store(MemoryBackend()), SealedWal()
        log = await StoredEventLog.open(store, partition_count=1)
        await led_by(1, store, log, wal)
        foreign = started(99, 0, 9, publisher=EPOCH_STEP_MAX, partition=ORDERS)
        await log.publish(0, encode_event(foreign))
        await led_by(TOO_HIGH, store, log, wal)
        anew = await StoredEventLog.open(store, prefix="anew", partition_count=1)
        renewed = await renew(log, anew, epoch_max=1)
        with pytest.raises(Fenced):
            await led_by(2, store, anew, wal)

        register = LogStartRegister(store, ORDERS)
        before = await register.first_lsn()
        assert renewed.partitions == (ORDERS,)
        assert await register.lower(2)
        assert not await register.lower(2)
        led = await led_by(3, store, anew, wal)
        assert (led.problems, wal.oldest_lsn()) == ({}, 13), "all of it is remote"
        assert await register.first_lsn() == before

    in_time(main)


@pytest.mark.parametrize("last", [(1 << 31) - 1, (1 << 31) + 5, (1 << 64) - 1])
def test_a_stream_whose_last_leader_had_it_can_be_deleted(last: int) -> None:
    async def main() -> None:
        log = InProcessEventLog(1)
        await log.publish(0, encode_event(started(1, 0, 9, publisher=last, partition=ORDERS)))
        for step in PartitionDeleteState:
            await publish_deletion(log, [ORDERS], step)
        assert len(log.events_of(0)) == 4
        assert await publish_deletion(log, [ORDERS], PartitionDeleteState.FINISHED) == 0

    in_time(main)
