"""Every question is answered by all that there is to know, or not at all."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from headwater.core import runtime
from headwater.core.errors import Refused, RolledBack, Unavailable
from headwater.tier import TopicIdPartition, encode_event
from headwater.tier.errors import EventUndecodable, NotReady
from headwater.tier.manager import TopicMetadataManager
from tests.store.scripted import virtual
from tests.tier.given import ORDERS, started
from tests.tier.manager.given import (
    ELSEWHERE,
    HOME,
    TamperedLog,
    copy_segment,
    numbers,
    start,
    start_all,
)


def test_a_partition_is_queried_in_one_way_only() -> None:
    """So that no query can bypass the checks below."""
    queries = [
        name
        for name, method in inspect.getmembers(TopicMetadataManager, inspect.isfunction)
        if not name.startswith("_")
        and TopicIdPartition.__name__
        in [p.annotation for p in inspect.signature(method).parameters.values()]
    ]
    assert queries == ["metadata_partition", "partition"]


async def filled_log() -> TamperedLog:
    log = TamperedLog()
    writer = await start_all(log)
    await copy_segment(writer, 10, 0, 99, publisher=3)
    await writer.close()
    return log


@virtual
async def test_a_partition_that_is_not_followed_has_nothing_to_say() -> None:
    manager = await start(await filled_log(), [ELSEWHERE])
    assert manager.partition(ORDERS).is_blank
    await manager.close()


@virtual
async def test_no_question_is_answered_while_the_partition_catches_up() -> None:
    log = await filled_log()
    log.hold()
    manager = await start(log, [HOME])
    with pytest.raises(NotReady, match="applied up to 0 of 2: try again") as raised:
        manager.partition(ORDERS)
    assert raised.value.partition == HOME
    log.hold(False)
    await manager.wait_ready(HOME)
    state = manager.partition(ORDERS)
    assert (state.publisher_epoch, state.delete_state, state.segment_count) == (3, None, 1)
    await manager.close()


@virtual
async def test_no_question_is_answered_while_it_is_not_known_how_far_the_log_goes() -> None:
    log = await filled_log()
    log.marks_error = Unavailable("injected")
    manager = await start(log, [HOME])
    await runtime.sleep(5.0)
    with pytest.raises(NotReady, match="is not known yet: injected"):
        manager.partition(ORDERS)
    await manager.close()


@virtual
async def test_a_partition_missing_from_the_high_water_marks_is_not_an_empty_one() -> None:
    log = await filled_log()
    log.marks_missing = {HOME}
    manager = await start(log, [HOME, ELSEWHERE])
    await runtime.sleep(5.0)
    assert not manager.is_ready(HOME)
    assert manager.is_ready(ELSEWHERE)
    with pytest.raises(NotReady, match="does not say how far it goes"):
        manager.partition(ORDERS)
    log.marks_missing = set()
    await manager.wait_ready(HOME)
    assert numbers(manager) == [10]
    await manager.close()


@virtual
async def test_how_far_the_log_goes_is_asked_again_by_itself() -> None:
    log = await filled_log()
    log.marks_error = Unavailable("injected")
    manager = await start(log, [HOME], retry_base_s=1.0, retry_cap_s=8.0)
    await runtime.sleep(300.0)
    assert 300 / 8 <= log.marks_asked <= 2 * 300 / 4, "less and less often"
    log.marks_error = None
    await manager.wait_ready(HOME)
    assert numbers(manager) == [10]
    assert manager.status().partitions[0].problem is None
    asked = log.marks_asked
    await runtime.sleep(60.0)
    assert log.marks_asked == asked, "and no more when it is known"
    await manager.close()


@virtual
async def test_a_log_that_does_not_answer_how_far_it_goes_holds_nobody_up() -> None:
    log = await filled_log()
    log.marks_hang = True
    manager = await start(log, [HOME], call_timeout_s=5.0)
    with pytest.raises(NotReady, match="no answer within 5"):
        manager.partition(ORDERS).segments()
    log.marks_hang = False
    await manager.wait_ready(HOME)
    await manager.close()


@virtual
async def test_no_question_is_answered_where_an_event_cannot_be_read() -> None:
    log = await filled_log()
    await log.publish(HOME, b"\x01\x09\x00")
    manager = await start(log, [HOME])
    await runtime.sleep(1.0)
    with pytest.raises(EventUndecodable) as raised:
        manager.partition(ORDERS)
    assert (raised.value.partition, raised.value.offset) == (HOME, 2)
    await manager.close()


@virtual
async def test_a_log_that_ends_before_what_was_applied_is_not_answered_by() -> None:
    log = await filled_log()
    manager = await start(log, [HOME])
    await manager.wait_ready(HOME)
    await manager.reconcile_assignment([])
    log.events_of(HOME).pop()
    await manager.reconcile_assignment([HOME])
    with pytest.raises(RolledBack, match="ends at 1, and events below 2 were applied"):
        manager.partition(ORDERS)
    with pytest.raises(RolledBack):
        await manager.publish(started(11, 100, 199))
    await manager.close()


# Refreshing


@virtual
async def test_a_refresh_notices_that_the_log_is_not_the_one_that_was_applied() -> None:
    log = await filled_log()
    manager = await start(log, [HOME])
    await manager.wait_ready(HOME)
    log.events_of(HOME).pop()
    with pytest.raises(RolledBack, match="ends at 1, and events below 2 were applied"):
        await manager.refresh(HOME)
    assert log.subscription is not None
    assert log.subscription.assigned() == [], "nothing more of it is wanted"
    await manager.close()


@virtual
async def test_what_is_applied_while_it_is_asked_how_far_the_log_goes_is_no_roll_back() -> None:
    log = await filled_log()
    log.marks_late = asyncio.Event()
    starting = runtime.spawn(start(log, [HOME]), name="start")
    await runtime.sleep(1.0)
    await log.publish(HOME, encode_event(started(11, 100, 199)))
    await runtime.sleep(1.0)
    log.marks_late.set()
    manager = await starting
    assert numbers(manager) == [10, 11]

    log.marks_late = asyncio.Event()
    refreshing = runtime.spawn(manager.refresh(HOME), name="refresh")
    await runtime.sleep(1.0)
    await manager.publish(started(12, 200, 299))
    log.marks_late.set()
    await refreshing
    assert numbers(manager) == [10, 11, 12]
    await manager.close()


@virtual
async def test_a_refresh_shows_what_others_had_published_before_it() -> None:
    log = await filled_log()
    manager = await start(log, [HOME])
    await manager.wait_ready(HOME)
    log.hold()
    await log.publish(HOME, encode_event(started(11, 100, 199)))
    assert numbers(manager) == [10], "ready, and not asked to look"
    refreshing = runtime.spawn(manager.refresh(HOME), name="refresh")
    await runtime.sleep(1.0)
    assert not refreshing.done()
    assert numbers(manager) == [10], "others are answered meanwhile"
    log.hold(False)
    await refreshing
    assert numbers(manager) == [10, 11]
    await manager.close()


@virtual
async def test_a_refresh_makes_known_how_far_the_log_goes() -> None:
    log = await filled_log()
    log.marks_error = Unavailable("injected")
    manager = await start(log, [HOME], tend_interval_s=3600.0)
    log.marks_error = None
    await manager.refresh(HOME)
    assert numbers(manager) == [10]
    await manager.close()


@virtual
async def test_a_refresh_that_cannot_be_had_says_so_in_time() -> None:
    log = await filled_log()
    manager = await start(log, [HOME])
    await manager.wait_ready(HOME)
    log.hold()
    await log.publish(HOME, encode_event(started(11, 100, 199)))
    began_s = runtime.monotonic_s()
    with pytest.raises(NotReady, match="applied up to 2 of 3"):
        await manager.refresh(HOME, timeout_s=7.0)
    assert runtime.monotonic_s() - began_s == pytest.approx(7.0)
    log.marks_missing = {HOME}
    with pytest.raises(NotReady, match="does not say how far metadata partition"):
        await manager.refresh(HOME)
    log.marks_hang = True
    with pytest.raises(NotReady, match=r"no answer within 7\.0 s"):
        await manager.refresh(HOME, timeout_s=7.0)
    with pytest.raises(Refused, match="not followed here"):
        await manager.refresh(ELSEWHERE)
    with pytest.raises(Refused, match="no metadata partition 4"):
        await manager.refresh(4)
    await manager.close()


@virtual
async def test_a_refresh_of_a_partition_that_is_taken_away_ends() -> None:
    log = await filled_log()
    manager = await start(log, [HOME])
    await manager.wait_ready(HOME)
    log.hold()
    await log.publish(HOME, encode_event(started(11, 100, 199)))
    refreshing = runtime.spawn(manager.refresh(HOME, timeout_s=3600.0), name="refresh")
    await runtime.sleep(1.0)
    await manager.reconcile_assignment([])
    with pytest.raises(Refused, match="not followed here"):
        await refreshing

    await manager.reconcile_assignment([HOME])
    refreshing = runtime.spawn(manager.refresh(HOME, timeout_s=3600.0), name="refresh")
    await runtime.sleep(1.0)
    await manager.reconcile_assignment([])
    await manager.reconcile_assignment([HOME])
    with pytest.raises(NotReady, match="applied up to 2 of 3"):
        await refreshing
    assert runtime.monotonic_s() < 60.0
    await manager.close()


# Being closed


@virtual
async def test_a_closed_manager_answers_nothing() -> None:
    manager = await start_all(await filled_log())
    await manager.close()
    with pytest.raises(Refused, match="closed"):
        manager.partition(ORDERS)
    for asking in (
        manager.reconcile_assignment([]),
        manager.refresh(HOME),
        manager.wait_ready(HOME),
        manager.publish(started(11, 100, 199)),
    ):
        with pytest.raises(Refused, match="closed"):
            await asking
    assert not manager.is_ready(HOME)
    await manager.close()


@virtual
async def test_waiting_to_be_ready_ends_in_time() -> None:
    log = await filled_log()
    log.hold()
    manager = await start(log, [HOME])
    with pytest.raises(NotReady, match="applied up to 0 of 2"):
        await manager.wait_ready(HOME, timeout_s=9.0)
    with pytest.raises(Refused, match="not followed here"):
        await manager.wait_ready(ELSEWHERE)
    await manager.close()


@virtual
async def test_a_refresh_asks_for_its_own_partition_alone() -> None:
    log = await filled_log()
    manager = await start_all(log)
    log.asked_for.clear()
    await manager.refresh(HOME)
    assert log.asked_for == [[HOME]]
    await manager.close()
