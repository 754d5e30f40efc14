"""Following the log: each event once and in order, whatever happens on the way."""

from __future__ import annotations

import asyncio

import pytest

from headwater.core import runtime
from headwater.core.errors import (
    Corrupt,
    Damaged,
    Denied,
    Refused,
    RolledBack,
    Trimmed,
    Unavailable,
)
from headwater.tier import PartitionDeleteState, SegmentState, encode_event
from headwater.tier.cache import dump_all
from headwater.tier.errors import EventUndecodable, NotReady
from headwater.tier.eventlog import (
    EventDelivered,
    EventUnreadable,
    PartitionFailed,
    PositionReached,
    SnapshotDelivered,
)
from headwater.tier.manager import PartitionStatus, TopicMetadataManager
from tests.tier.event_histories import applied
from tests.tier.given import ORDERS, became, finished, partition_delete, started
from tests.tier.manager.given import (
    ELSEWHERE,
    HOME,
    PARTITIONS,
    TamperedLog,
    copy_segment,
    numbers,
    start,
    start_all,
    virtual,
)

DELETING, DELETED = SegmentState.DELETE_STARTED, SegmentState.DELETE_FINISHED


def status_of(manager: TopicMetadataManager, partition: int = HOME) -> PartitionStatus:
    return next(one for one in manager.status().partitions if one.partition == partition)


# What cannot be read


@virtual
async def test_an_event_that_cannot_be_read_stops_its_partition_visibly_and_no_other() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    await copy_segment(manager, 10, 0, 99)
    await log.publish(HOME, b"\x01\x03\x00")
    await log.publish(HOME, encode_event(started(11, 100, 199)))
    await log.publish(ELSEWHERE, encode_event(started(12, 0, 9)))
    await runtime.sleep(1.0)
    with pytest.raises(EventUndecodable, match="followed up to offset 2") as raised:
        manager.segments(ORDERS)
    assert (raised.value.partition, raised.value.offset) == (HOME, 2)
    assert isinstance(raised.value, Corrupt)
    stopped = status_of(manager)
    assert (stopped.is_ready, stopped.next_offset) == (False, 2)
    assert "followed up to offset 2" in str(stopped.problem)
    assert status_of(manager, ELSEWHERE).next_offset == 1, "others go on"
    assert manager.is_ready(ELSEWHERE)
    assert manager.metrics.partitions_stopped == 1
    assert log.subscription is not None
    assert HOME not in log.subscription.assigned(), "nothing more of it is wanted"
    log.break_off(Unavailable("connection lost"))
    await runtime.sleep(5.0)
    assert HOME not in log.subscription.assigned()
    assert ELSEWHERE in log.subscription.assigned()
    with pytest.raises(EventUndecodable):
        await manager.refresh(HOME)
    with pytest.raises(EventUndecodable):
        await manager.wait_ready(HOME)
    await manager.close()


@virtual
async def test_what_the_log_itself_cannot_read_stops_the_partition_as_well() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    log.deliver(EventUnreadable(HOME, 0, Corrupt("a record without a value")))
    await runtime.sleep(1.0)
    with pytest.raises(EventUndecodable, match=r"offset 0, .* a record without a value"):
        manager.segments(ORDERS)
    await manager.close()


@virtual
async def test_a_stamp_that_is_cut_off_stops_the_partition() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    await copy_segment(manager, 10, 0, 99)
    await log.publish(HOME, encode_event(became(10, DELETING, custom=b"HWM1cut")))
    await runtime.sleep(1.0)
    with pytest.raises(EventUndecodable, match=r"offset 2, .* begin with HWM1"):
        manager.segments(ORDERS)
    await manager.close()


@virtual
async def test_a_stopped_partition_is_tried_again_when_it_is_assigned_again() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    await copy_segment(manager, 10, 0, 99)
    await log.publish(HOME, b"garbage")
    await log.publish(HOME, encode_event(started(11, 100, 199)))
    await runtime.sleep(1.0)
    for _ in range(2):
        await manager.reconcile_assignment([])
        await manager.reconcile_assignment([HOME])
        await runtime.sleep(1.0)
        with pytest.raises(EventUndecodable, match="offset 2"):
            manager.segments(ORDERS)
    log.events_of(HOME)[2] = EventDelivered(HOME, 2, encode_event(became(10, DELETING)))
    await manager.reconcile_assignment([])
    await manager.reconcile_assignment([HOME])
    await manager.wait_ready(HOME)
    assert numbers(manager) == [10, 11], "from where it had stopped, nothing left out"
    assert manager.segment_at(ORDERS, 0, 42) is None
    await manager.close()


# Coming and going


@virtual
async def test_a_partition_that_comes_back_goes_on_from_what_was_applied() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    await copy_segment(manager, 10, 0, 99)
    await manager.publish(became(10, DELETING))
    await manager.publish(became(10, DELETED))
    await copy_segment(manager, 11, 0, 99)
    await manager.reconcile_assignment([])
    assert log.subscription is not None
    assert log.subscription.assigned() == []
    await log.publish(HOME, encode_event(started(12, 100, 199)))
    log.hold()
    await manager.reconcile_assignment([HOME])
    with pytest.raises(NotReady, match="applied up to 6 of 7"):
        manager.segments(ORDERS)
    log.hold(False)
    await manager.wait_ready(HOME)
    assert numbers(manager) == [11, 12], "what was deleted does not come back"
    found = manager.segment_at(ORDERS, 0, 42)
    assert found is not None
    assert found.segment_id.id.int == 11
    assert log.starts[-1] == (HOME, 6)
    await manager.close()


@virtual
async def test_what_comes_again_is_not_applied_again() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    await copy_segment(manager, 10, 0, 99)
    await manager.publish(became(10, DELETING))
    await manager.publish(became(10, DELETED))
    log.deliver(
        EventDelivered(HOME, 0, encode_event(started(10, 0, 99))),
        EventDelivered(HOME, 1, encode_event(finished(10))),
    )
    log.deliver(EventUnreadable(HOME, 3, Corrupt("it was readable before")))
    await runtime.sleep(1.0)
    assert numbers(manager) == []
    assert status_of(manager).next_offset == 4
    await manager.close()


@virtual
async def test_while_nothing_is_subscribed_partitions_come_and_go_all_the_same() -> None:
    log = TamperedLog()
    log.subscribe_error = Unavailable("away")
    manager = await start(log, [HOME, ELSEWHERE])
    await log.publish(HOME, encode_event(started(10, 0, 99)))
    await runtime.sleep(10.0)
    assert manager.status().problem == "away"
    await manager.reconcile_assignment([HOME])
    log.subscribe_error = None
    await manager.refresh(HOME)
    assert log.subscription is not None
    assert log.subscription.assigned() == [HOME]
    assert numbers(manager) == [10]
    assert manager.status().problem is None
    await manager.close()


@virtual
async def test_only_partitions_that_there_are_can_be_followed() -> None:
    manager = await start_all(TamperedLog())
    with pytest.raises(Refused, match="no metadata partition 4"):
        await manager.reconcile_assignment([HOME, PARTITIONS])
    assert manager.assigned() == list(range(PARTITIONS)), "nothing was changed"
    await manager.close()


@virtual
async def test_a_high_water_mark_of_an_earlier_assignment_does_not_count_for_a_later_one() -> None:
    for refreshed in (False, True):
        log = TamperedLog()
        log.marks_error = Unavailable("away")
        manager = await start(log, [HOME], tend_interval_s=3600.0 if refreshed else 0.5)
        log.marks_late = late = asyncio.Event()
        asking = runtime.spawn(manager.refresh(HOME) if refreshed else asyncio.sleep(0), name="ask")
        await runtime.sleep(5.0)
        log.marks_late = None
        await manager.reconcile_assignment([])
        log.hold()
        await log.publish(HOME, encode_event(started(10, 0, 99)))
        await manager.reconcile_assignment([HOME])
        late.set()
        await runtime.sleep(0.1)
        with pytest.raises(NotReady, match="is not known yet"):
            manager.segments(ORDERS)
        outcome = await asyncio.gather(asking, return_exceptions=True)
        assert isinstance(outcome[0], NotReady) is refreshed
        await manager.close()


@virtual
async def test_what_still_comes_of_a_partition_that_was_left_is_not_applied() -> None:
    log = TamperedLog()
    manager = await start(log, [ELSEWHERE])
    log.deliver(EventDelivered(HOME, 0, encode_event(started(10, 0, 99))))
    await runtime.sleep(1.0)
    assert manager.metrics.events == {}
    await manager.close()


# What fails on the way


@virtual
async def test_a_subscription_that_fails_is_made_again_and_nothing_is_applied_twice() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    for number in range(5):
        await copy_segment(manager, number + 1, 100 * number, 100 * number + 99)
        log.break_off(Unavailable("connection lost"))
        await runtime.sleep(5.0)
    assert numbers(manager) == [1, 2, 3, 4, 5]
    assert manager.metrics.subscriptions == 6
    assert manager.metrics.subscription_failures == {"Unavailable": 5}
    assert manager.metrics.events == {"changed": 10}
    assert log.subscription_count == 1, "those that failed are closed"
    await manager.close()
    assert log.subscription_count == 0


@virtual
async def test_subscribing_is_tried_less_and_less_often() -> None:
    log = TamperedLog()
    manager = await start(log, [HOME], retry_base_s=1.0, retry_cap_s=16.0)
    log.subscribe_error = Unavailable("away")
    log.break_off(Unavailable("connection lost"))
    await runtime.sleep(1000.0)
    tried = manager.metrics.subscription_failures["Unavailable"]
    assert 1000 / 16 <= tried <= 1000 / 8 + 6
    await manager.close()


@virtual
async def test_a_log_that_does_not_answer_is_subscribed_to_again() -> None:
    log = TamperedLog()
    log.subscribe_hangs = True
    manager = await start(log, [HOME], call_timeout_s=5.0)
    await runtime.sleep(6.0)
    assert "no subscription within 5.0 s" in str(manager.status().problem)
    log.subscribe_hangs = False
    await copy_segment(manager, 10, 0, 99)
    assert numbers(manager) == [10]
    await manager.close()


@virtual
async def test_a_subscription_that_the_log_ends_is_made_again() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    assert log.subscription is not None
    await log.subscription.close()
    await copy_segment(manager, 10, 0, 99)
    assert numbers(manager) == [10]
    await manager.close()


@virtual
async def test_a_partition_that_the_log_gives_up_is_asked_for_again() -> None:
    log = TamperedLog()
    manager = await start_all(log, retry_base_s=1.0, retry_cap_s=8.0)
    assert log.subscription is not None
    for error in (Unavailable("connection refused"), Denied("credentials expired")):
        log.subscription.remove(HOME)
        log.deliver(PartitionFailed(HOME, error))
        await log.publish(HOME, encode_event(started(10, 0, 99)))
        await runtime.sleep(0.1)
        assert status_of(manager).problem == str(error)
        assert HOME not in log.subscription.assigned()
        await manager.refresh(HOME)
        assert numbers(manager) == [10]
    assert manager.metrics.partition_failures == {"Unavailable": 1, "Denied": 1}
    assert status_of(manager).problem is None
    await manager.close()


@virtual
async def test_a_partition_that_is_asked_for_again_begins_at_what_was_applied() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    await copy_segment(manager, 10, 0, 99)
    assert log.subscription is not None
    log.hold()
    await log.publish(HOME, encode_event(started(11, 100, 199)))
    log.subscription._next[HOME] = 3
    log.deliver(PartitionFailed(HOME, Unavailable("lost its place, and goes on all the same")))
    log.hold(False)
    await manager.refresh(HOME)
    assert numbers(manager) == [10, 11]
    await manager.close()


@virtual
async def test_a_partition_that_keeps_failing_is_asked_for_less_and_less_often() -> None:
    log = TamperedLog()
    manager = await start(log, [HOME], retry_base_s=1.0, retry_cap_s=16.0)
    await runtime.sleep(1.0)
    assert log.subscription is not None
    log.starts.clear()
    for _ in range(4000):
        if HOME in log.subscription.assigned():
            log.subscription.remove(HOME)
            log.deliver(PartitionFailed(HOME, Unavailable("connection refused")))
        await runtime.sleep(0.25)
    assert 1000 / 17 <= len(log.starts) <= 1000 / 8 + 6

    await manager.publish(started(10, 0, 99), timeout_s=60.0)
    log.subscription.remove(HOME)
    log.deliver(PartitionFailed(HOME, Unavailable("connection refused")))
    await runtime.sleep(2.0)
    assert HOME in log.subscription.assigned(), "what went on since begins with short pauses"
    await manager.close()


@virtual
async def test_a_log_that_is_another_one_stops_the_partition() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    log.deliver(PartitionFailed(HOME, RolledBack("this is not the log")))
    await runtime.sleep(1.0)
    with pytest.raises(RolledBack, match="this is not the log"):
        manager.segments(ORDERS)
    await manager.close()


# Logs that do not have every event


@virtual
async def test_holes_in_the_offsets_do_not_keep_a_partition_from_being_ready() -> None:
    log = TamperedLog()
    for event in (started(10, 0, 99), finished(10), started(11, 100, 199)):
        await log.publish(HOME, encode_event(event))
    log.hold()
    manager = await start(log, [HOME])
    await runtime.sleep(1.0)
    log.deliver(
        EventDelivered(HOME, 0, encode_event(started(10, 0, 99))),
        EventDelivered(HOME, 1, encode_event(finished(10))),
    )
    await runtime.sleep(1.0)
    with pytest.raises(NotReady, match="up to 2 of 3"):
        manager.segments(ORDERS)
    log.deliver(PositionReached(HOME, 3), PositionReached(HOME, 1))
    await manager.wait_ready(HOME)
    assert status_of(manager).next_offset == 3
    await manager.close()


@virtual
async def test_a_snapshot_takes_the_place_of_what_was_known() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    await copy_segment(manager, 10, 0, 99)
    later = applied([(started(11, 100, 199, publisher=4), None)])
    log.hold()
    for event in (became(10, DELETING), became(10, DELETED), started(11, 100, 199, publisher=4)):
        await log.publish(HOME, encode_event(event))
    log.deliver(SnapshotDelivered(HOME, 4, dump_all(later)))
    await manager.refresh(HOME)
    assert numbers(manager) == [11]
    assert manager.publisher_epoch(ORDERS) == 4
    log.deliver(SnapshotDelivered(HOME, 2, ()))
    log.hold(False)
    await manager.publish(finished(11, publisher=4))
    assert numbers(manager) == [11], "an older one says less than is known"
    assert manager.metrics.snapshots_followed == 1
    await manager.close()


@virtual
async def test_a_snapshot_that_contradicts_itself_stops_the_partition() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    dumped = dump_all(applied([(started(11, 100, 199), None)]))[0]
    bad = type(dumped)(
        partition=dumped.partition,
        publisher_epoch=None,
        delete_state=None,
        finishes=0,
        segments=dumped.segments,
        finished=(),
        referenced=(),
        highest=(),
    )
    log.deliver(SnapshotDelivered(HOME, 4, (bad,)))
    await runtime.sleep(1.0)
    with pytest.raises(Corrupt, match="contradicts itself"):
        manager.segments(ORDERS)
    assert status_of(manager).next_offset == 0
    await manager.close()


async def log_from_the_middle() -> TamperedLog:
    """A broker's topic whose first two events were deleted."""
    log = TamperedLog()
    for event in (
        started(10, 0, 99),
        started(11, 100, 199),
        finished(10),
        became(11, DELETING),
        became(11, DELETED),
        started(12, 200, 299),
        finished(12),
    ):
        await log.publish(HOME, encode_event(event))
    return log


@virtual
async def test_a_log_that_begins_in_the_middle_is_followed_from_there_and_says_so() -> None:
    log = await log_from_the_middle()
    log.hold()
    manager = await start(log, [HOME])
    await runtime.sleep(1.0)
    assert log.subscription is not None
    log.subscription.remove(HOME)
    log.deliver(PartitionFailed(HOME, Trimmed("below the start of the log", floor=2)))
    log.hold(False)
    await manager.wait_ready(HOME)
    assert numbers(manager) == [12], "of the others only updates are left, which say too little"
    assert log.starts[-1] == (HOME, 2)
    assert status_of(manager).first_offset == 2
    assert manager.metrics.events == {"rejected": 2, "repeated": 1, "changed": 2}
    assert manager.metrics.events_of_unknown_segments == 2
    log.deliver(SnapshotDelivered(HOME, 7, ()))
    await runtime.sleep(1.0)
    assert status_of(manager).first_offset == 0, "a snapshot is by all events"
    await manager.close()


@virtual
async def test_events_that_are_gone_behind_what_was_applied_stop_the_partition() -> None:
    log = await log_from_the_middle()
    manager = await start(log, [HOME])
    await manager.wait_ready(HOME)
    log.deliver(PartitionFailed(HOME, Trimmed("below the start of the log", floor=20)))
    await runtime.sleep(1.0)
    with pytest.raises(Damaged, match="begins at 20, and only events below 7 were applied"):
        manager.segments(ORDERS)
    await manager.close()


# What does not follow


@virtual
async def test_what_others_publish_and_does_not_follow_changes_nothing_and_is_counted() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    await copy_segment(manager, 10, 0, 99, publisher=5)
    for event, beside in (
        (started(10, 0, 99, publisher=5), None),
        (became(99, DELETING, publisher=5), None),
        (became(10, DELETING, publisher=4), None),
        (partition_delete(PartitionDeleteState.MARKED), 4),
        (finished(10, publisher=5), None),
    ):
        await log.publish(HOME, encode_event(event), publisher_epoch=beside)
    await manager.refresh(HOME)
    assert manager.segment_at(ORDERS, 0, 42) is not None
    assert manager.delete_state(ORDERS) is None
    assert manager.metrics.events == {"changed": 2, "rejected": 2, "stale": 2, "repeated": 1}
    assert manager.metrics.events_of_unknown_segments == 1
    await manager.close()


@virtual
async def test_an_event_in_a_partition_where_nobody_looks_for_it_is_counted() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    await log.publish(ELSEWHERE, encode_event(started(10, 0, 99)))
    await manager.refresh(ELSEWHERE)
    assert manager.segments(ORDERS) == []
    assert manager.metrics.events_misplaced == 1
    await manager.close()
