"""Logs that fail, and logs that do not have every event: what is followed goes on, or says why."""

from __future__ import annotations

import pytest

from headwater.core import runtime
from headwater.core.errors import (
    Corrupt,
    Damaged,
    Denied,
    EntriesTrimmed,
    RolledBack,
    Unavailable,
)
from headwater.tier import SegmentState, encode_event
from headwater.tier.cache import TierCache
from headwater.tier.errors import NotReady
from headwater.tier.eventlog import (
    EventDelivered,
    PartitionFailed,
    PositionReached,
    SnapshotDelivered,
)
from tests.store.scripted import virtual
from tests.tier.event_histories import applied
from tests.tier.given import ORDERS, became, finished, started
from tests.tier.manager.given import (
    HOME,
    TamperedLog,
    copy_segment,
    numbers,
    start,
    start_all,
    status_of,
)

DELETING, DELETED = SegmentState.DELETE_STARTED, SegmentState.DELETE_FINISHED


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
    assert len(log._subscriptions) == 1, "those that failed are closed"
    await manager.close()
    assert len(log._subscriptions) == 0


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
async def test_a_partition_that_a_subscription_refuses_is_followed_by_the_next_one() -> None:
    log = TamperedLog()
    manager = await start(log)
    assert log.subscription is not None
    log.subscription._closed = True
    await manager.reconcile_assignment([HOME])
    log.subscription.wake()
    await copy_segment(manager, 10, 0, 99)
    assert numbers(manager) == [10]
    await manager.close()


@virtual
async def test_a_log_that_is_closed_is_told_of_and_not_a_bug() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    await copy_segment(manager, 10, 0, 99)
    await log.close()
    await runtime.sleep(5.0)
    assert "is closed: open another" in str(manager.status().problem)
    assert numbers(manager) == [10], "it was caught up with, and what is known is known"
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
    log.subscription._followed[HOME].next_offset = 3
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
        manager.partition(ORDERS).segments()
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
        manager.partition(ORDERS).segments()
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
    log.deliver(SnapshotDelivered(HOME, 4, later))
    await manager.refresh(HOME)
    assert numbers(manager) == [11]
    assert manager.partition(ORDERS).publisher_epoch == 4
    log.deliver(SnapshotDelivered(HOME, 2, TierCache()))
    log.hold(False)
    await manager.publish(finished(11, publisher=4))
    assert numbers(manager) == [11], "an older one says less than is known"
    assert manager.metrics.snapshots_followed == 1
    await manager.close()


@virtual
async def test_a_snapshot_that_the_log_cannot_read_stops_the_partition() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    log.deliver(PartitionFailed(HOME, Corrupt("the dump of orders contradicts itself")))
    await runtime.sleep(1.0)
    with pytest.raises(Corrupt, match="contradicts itself"):
        manager.partition(ORDERS).segments()
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
    log.deliver(PartitionFailed(HOME, EntriesTrimmed("below the start of the log", first_offset=2)))
    log.hold(False)
    await manager.wait_ready(HOME)
    assert numbers(manager) == [12], "of the others only updates are left, which say too little"
    assert log.starts[-1] == (HOME, 2)
    assert status_of(manager).first_offset == 2
    assert manager.metrics.events == {"rejected": 2, "repeated": 1, "changed": 2}
    assert manager.metrics.events_of_unknown_segments == 2
    log.deliver(SnapshotDelivered(HOME, 7, TierCache()))
    await runtime.sleep(1.0)
    assert status_of(manager).first_offset == 0, "a snapshot is by all events"
    await manager.close()


@virtual
async def test_events_that_are_gone_behind_what_was_applied_stop_the_partition() -> None:
    log = await log_from_the_middle()
    manager = await start(log, [HOME])
    await manager.wait_ready(HOME)
    log.deliver(
        PartitionFailed(HOME, EntriesTrimmed("below the start of the log", first_offset=20))
    )
    await runtime.sleep(1.0)
    with pytest.raises(Damaged, match="begins at 20, and only events below 7 were applied"):
        manager.partition(ORDERS).segments()
    await manager.close()
