"""Whoever publishes is told what became of the event, in bounded time."""

from __future__ import annotations

import asyncio

import pytest

from headwater.core import runtime
from headwater.core.errors import Bug, Corrupt, Fenced, OutcomeUnknown, Refused, Unavailable
from headwater.core.limits import EPOCH_STEP_MAX
from headwater.tier import (
    EventOutcome,
    EventRejected,
    PartitionDeleteState,
    SegmentState,
    encode_event,
)
from headwater.tier.errors import EventUndecodable
from headwater.tier.eventlog import SnapshotDelivered
from tests.store.scripted import virtual
from tests.tier.event_histories import applied
from tests.tier.given import ORDERS, became, finished, partition_delete, started
from tests.tier.manager.given import (
    ELSEWHERE,
    HOME,
    TamperedLog,
    copy_segment,
    numbers,
    start,
    start_all,
)


@virtual
async def test_what_was_published_is_known_when_it_returns() -> None:
    manager = await start_all(TamperedLog())
    assert await manager.publish(started(10, 0, 99)) is EventOutcome.CHANGED
    assert numbers(manager) == [10]
    assert await manager.publish(started(10, 0, 99)) is EventOutcome.REPEATED
    assert await manager.publish(finished(10)) is EventOutcome.CHANGED
    assert manager.partition(ORDERS).segment_at(0, 99) is not None
    assert manager.metrics.published == 3
    await manager.close()


@virtual
async def test_an_event_that_is_rejected_is_an_error_of_its_publisher() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    with pytest.raises(EventRejected, match="is not known and cannot become COPY_FINISHED"):
        await manager.publish(finished(10))
    await copy_segment(manager, 10, 0, 99)
    with pytest.raises(EventRejected, match="it is COPY_FINISHED") as raised:
        await manager.publish(started(10, 0, 99))
    assert raised.value.current is SegmentState.COPY_FINISHED
    assert (await log.high_water_marks())[HOME] == 4, "all were published: the log alone decides"
    assert manager.metrics.events["rejected"] == 2
    await manager.close()


@virtual
async def test_a_leader_that_was_overtaken_is_fenced_before_it_publishes_if_that_is_known() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    await copy_segment(manager, 10, 0, 99, publisher=5)
    for event, beside in (
        (started(11, 100, 199, publisher=4), None),
        (became(10, SegmentState.DELETE_STARTED, publisher=4), None),
        (partition_delete(PartitionDeleteState.MARKED), 4),
    ):
        with pytest.raises(Fenced, match="epoch 5 has published"):
            await manager.publish(event, publisher_epoch=beside)
    assert (await log.high_water_marks())[HOME] == 2, "nothing of it was published"
    await manager.publish(partition_delete(PartitionDeleteState.MARKED), publisher_epoch=5)
    assert manager.partition(ORDERS).delete_state is PartitionDeleteState.MARKED
    await manager.close()


@virtual
async def test_a_leader_that_is_overtaken_meanwhile_is_fenced_by_the_order_of_the_log() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    log.hold()
    await log.publish(HOME, encode_event(started(20, 0, 99, publisher=6)))
    publishing = runtime.spawn(manager.publish(started(10, 0, 99, publisher=5)), name="stale")
    await runtime.sleep(1.0)
    log.hold(False)
    with pytest.raises(Fenced, match="epoch 6 has published"):
        await publishing
    assert numbers(manager) == [20]
    assert manager.metrics.events["stale"] == 1
    await manager.close()


@virtual
async def test_nothing_is_published_where_nobody_would_see_what_becomes_of_it() -> None:
    log = TamperedLog()
    manager = await start(log, [ELSEWHERE])
    with pytest.raises(Refused, match="not followed here: assign it first"):
        await manager.publish(started(10, 0, 99))
    assert (await log.high_water_marks())[HOME] == 0
    await manager.close()


@virtual
async def test_nothing_is_published_after_an_event_that_cannot_be_read() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    await log.publish(HOME, b"garbage")
    await runtime.sleep(1.0)
    with pytest.raises(EventUndecodable):
        await manager.publish(started(10, 0, 99))
    assert (await log.high_water_marks())[HOME] == 1
    await manager.close()


@virtual
async def test_custom_metadata_that_nobody_could_follow_are_not_published() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    with pytest.raises(Corrupt, match="begin with HWM1"):
        await manager.publish(became(10, SegmentState.COPY_FINISHED, custom=b"HWM1cut"))
    assert (await log.high_water_marks())[HOME] == 0
    await manager.close()


@virtual
async def test_an_epoch_that_no_log_could_carry_is_refused() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    for epoch in (-1, 1 << 64):
        with pytest.raises(Refused, match="does not fit into 64 bits"):
            await manager.publish(
                partition_delete(PartitionDeleteState.MARKED), publisher_epoch=epoch
            )
    assert (await log.high_water_marks())[HOME] == 0
    await manager.close()


# Waiting ends


@virtual
async def test_an_event_that_is_not_applied_in_time_is_an_unknown_outcome() -> None:
    log = TamperedLog()
    manager = await start_all(log, publish_timeout_s=12.0)
    log.hold()
    began_s = runtime.monotonic_s()
    with pytest.raises(OutcomeUnknown, match=r"at offset 0 .* not applied within 12\.0 s"):
        await manager.publish(started(10, 0, 99))
    assert runtime.monotonic_s() - began_s == pytest.approx(12.0)
    log.publish_takes_s = 5.0
    with pytest.raises(OutcomeUnknown, match=r"not applied within 12\.0 s"):
        await manager.publish(started(10, 0, 99))
    assert runtime.monotonic_s() - began_s == pytest.approx(24.0), "publishing and waiting together"
    log.publish_takes_s = 0.0
    log.hold(False)
    await manager.refresh(HOME)
    assert await manager.publish(started(10, 0, 99)) is EventOutcome.REPEATED, (
        "look, and say it again"
    )
    await manager.close()


@virtual
async def test_a_log_that_does_not_answer_is_an_unknown_outcome() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    log.publish_hangs = True
    with pytest.raises(OutcomeUnknown, match=r"did not say within 3\.0 s"):
        await manager.publish(started(10, 0, 99), timeout_s=3.0)
    assert numbers(manager) == [10], "it had landed"
    await manager.close()


@virtual
async def test_an_error_of_the_log_is_told_as_it_is() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    for error in (Unavailable("away"), OutcomeUnknown("lost the answer")):
        log.publish_error = error
        with pytest.raises(type(error), match=str(error)):
            await manager.publish(started(10, 0, 99))
    await manager.close()


@virtual
async def test_a_subscription_that_fails_while_somebody_waits_is_made_again_in_time() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    log.hold()
    publishing = runtime.spawn(manager.publish(started(10, 0, 99)), name="publish")
    await runtime.sleep(1.0)
    log.break_off(Unavailable("connection lost"))
    log.hold(False)
    assert await publishing is EventOutcome.CHANGED
    await manager.close()


@virtual
async def test_whoever_waits_notices_that_following_broke_down() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    log.hold()
    publishing = runtime.spawn(
        manager.publish(started(10, 0, 99), timeout_s=3600.0), name="publish"
    )
    await runtime.sleep(1.0)
    log.break_off(ZeroDivisionError("a bug"))
    with pytest.raises(OutcomeUnknown, match="no longer followed: ZeroDivisionError"):
        await publishing
    assert runtime.monotonic_s() < 60.0
    with pytest.raises(Bug, match="ZeroDivisionError"):
        manager.partition(ORDERS).segments()
    assert "ZeroDivisionError" in str(manager.status().problem)
    await manager.close()


@virtual
async def test_whoever_waits_is_told_at_once_when_waiting_becomes_vain() -> None:
    log = TamperedLog()
    for end in ("taken away", "closed", "stopped"):
        manager = await start_all(log)
        log.hold()
        if end == "stopped":
            await log.publish(HOME, b"garbage")
        publishing = runtime.spawn(
            manager.publish(started(10, 0, 99), timeout_s=3600.0), name="publish"
        )
        await runtime.sleep(1.0)
        began_s = runtime.monotonic_s()
        if end == "taken away":
            await manager.reconcile_assignment([])
        elif end == "closed":
            await manager.close()
        else:
            log.hold(False)
        with pytest.raises(OutcomeUnknown, match="its effect is not known here"):
            await publishing
        assert runtime.monotonic_s() - began_s < 1.0
        log.hold(False)
        await manager.close()


@virtual
async def test_an_event_that_came_with_a_snapshot_is_an_unknown_outcome() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    log.hold()
    publishing = runtime.spawn(manager.publish(started(10, 0, 99)), name="publish")
    await runtime.sleep(1.0)
    log.deliver(SnapshotDelivered(HOME, 0, applied([(started(10, 0, 99), None)])))
    with pytest.raises(OutcomeUnknown, match="part of a snapshot: check its effect"):
        await publishing
    assert numbers(manager) == [10]
    await manager.close()


@virtual
async def test_each_of_many_publishers_is_told_what_became_of_its_own_event() -> None:
    log = TamperedLog()
    one, other = await start_all(log), await start_all(log)
    told = await asyncio.gather(
        *(manager.publish(started(10, 0, 99)) for manager in (one, other, one, other)),
        *(one.publish(started(number, 0, 9)) for number in (20, 21)),
        other.publish(finished(99)),
        return_exceptions=True,
    )
    assert sorted(map(str, told[:4])) == ["changed", "repeated", "repeated", "repeated"]
    assert told[4:6] == [EventOutcome.CHANGED, EventOutcome.CHANGED]
    assert isinstance(told[6], EventRejected)
    await one.close()
    await other.close()


@virtual
async def test_an_epoch_that_no_leader_has_is_not_published() -> None:
    """It could not be taken back: every leader after it would be stale, for ever."""
    log = TamperedLog()
    manager = await start_all(log)
    for epoch in (1 << 31, 1 << 40):
        with pytest.raises(Refused, match=f"{epoch}: at most {(1 << 31) - 1} is possible"):
            await manager.publish(started(10, 0, 99, publisher=epoch))
    first = 5 * EPOCH_STEP_MAX
    await copy_segment(manager, 10, 0, 99, publisher=first)
    for epoch in (first + EPOCH_STEP_MAX + 1, (1 << 64) - 1):
        with pytest.raises(Refused, match=f"has epoch {epoch}.*{first} was the last"):
            await manager.publish(started(11, 100, 199, publisher=epoch))
        with pytest.raises(Refused, match="Nothing was published"):
            await manager.publish(
                partition_delete(PartitionDeleteState.MARKED), publisher_epoch=epoch
            )
    assert len(log.events_of(HOME)) == 2
    await copy_segment(manager, 11, 100, 199, publisher=first + EPOCH_STEP_MAX)
    await manager.close()
