"""Following the log: each event once and in order, whatever happens on the way."""

from __future__ import annotations

import asyncio

import pytest

from headwater.core import runtime
from headwater.core.errors import (
    Corrupt,
    Damaged,
    Refused,
    RolledBack,
    Unavailable,
)
from headwater.core.limits import METADATA_TURN_EVENTS
from headwater.tier import PartitionDeleteState, SegmentState, encode_event
from headwater.tier.errors import EventUndecodable, NotReady
from headwater.tier.eventlog import (
    EventDelivered,
    EventUnreadable,
    PartitionFailed,
)
from tests.store.scripted import virtual
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
    status_of,
)

DELETING, DELETED = SegmentState.DELETE_STARTED, SegmentState.DELETE_FINISHED


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
        manager.partition(ORDERS).segments()
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
        manager.partition(ORDERS).segments()
    await manager.close()


@virtual
async def test_a_stamp_that_is_cut_off_stops_the_partition() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    await copy_segment(manager, 10, 0, 99)
    await log.publish(HOME, encode_event(became(10, DELETING, custom=b"HWM1cut")))
    await runtime.sleep(1.0)
    with pytest.raises(EventUndecodable, match=r"offset 2, .* begin with HWM1"):
        manager.partition(ORDERS).segments()
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
            manager.partition(ORDERS).segments()
    log.events_of(HOME)[2] = EventDelivered(HOME, 2, encode_event(became(10, DELETING)))
    await manager.reconcile_assignment([])
    await manager.reconcile_assignment([HOME])
    await manager.wait_ready(HOME)
    assert numbers(manager) == [10, 11], "from where it had stopped, nothing left out"
    assert manager.partition(ORDERS).segment_at(0, 42) is None
    await manager.close()


# A long past


@virtual
async def test_how_many_stand_still_is_told_and_falls_when_they_go_on_or_are_left() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    await copy_segment(manager, 10, 0, 99)
    sound = list(log.events_of(HOME))
    for partition in (HOME, ELSEWHERE):
        await log.publish(partition, b"no event")
    await runtime.sleep(1.0)
    assert manager.metrics.partitions_stopped == 2
    log.events_of(HOME).clear()
    for _ in range(2):
        with pytest.raises(Damaged):
            await manager.refresh(HOME)
    assert manager.metrics.partitions_stopped == 2, "each counts once"
    log.events_of(HOME).extend(sound)

    await manager.reconcile_assignment([HOME])
    assert manager.metrics.partitions_stopped == 1
    await manager.reconcile_assignment([])
    await manager.reconcile_assignment([HOME])
    await manager.wait_ready(HOME)
    assert manager.metrics.partitions_stopped == 0
    await manager.close()


@virtual
async def test_a_partition_that_stopped_while_it_was_to_be_asked_for_again_is_not() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    await copy_segment(manager, 10, 0, 99)
    log.deliver(PartitionFailed(HOME, Unavailable("503")))
    await runtime.sleep(0)
    log.events_of(HOME).pop()
    with pytest.raises(RolledBack):
        await manager.refresh(HOME)
    log.starts.clear()
    await runtime.sleep(60.0)
    assert log.starts == []
    await manager.close()


@virtual
async def test_whoever_has_something_to_do_has_a_turn_while_a_long_past_is_read() -> None:
    log = TamperedLog()
    for number in range(3 * METADATA_TURN_EVENTS):
        await log.publish(HOME, encode_event(started(number + 1, 0, 9)))
    manager = await start(log)
    await manager.reconcile_assignment([HOME])
    seen = set()
    while not manager.is_ready(HOME):
        seen.add(status_of(manager).next_offset)
        await runtime.sleep(0)
    assert seen - {0}, "it was seen half-way"
    assert len(numbers(manager)) == 3 * METADATA_TURN_EVENTS
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
        manager.partition(ORDERS).segments()
    log.hold(False)
    await manager.wait_ready(HOME)
    assert numbers(manager) == [11, 12], "what was deleted does not come back"
    found = manager.partition(ORDERS).segment_at(0, 42)
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
            manager.partition(ORDERS).segments()
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
    assert manager.partition(ORDERS).segment_at(0, 42) is not None
    assert manager.partition(ORDERS).delete_state is None
    assert manager.metrics.events == {"changed": 2, "rejected": 2, "stale": 2, "repeated": 1}
    assert manager.metrics.events_of_unknown_segments == 1
    await manager.close()


@virtual
async def test_an_event_in_a_partition_where_nobody_looks_for_it_is_counted() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    await log.publish(ELSEWHERE, encode_event(started(10, 0, 99)))
    await manager.refresh(ELSEWHERE)
    assert manager.partition(ORDERS).segments() == []
    assert manager.metrics.events_misplaced == 1
    await manager.close()
