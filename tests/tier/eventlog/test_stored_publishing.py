"""Publishing to the log in object storage: what it costs, and what becomes of what goes wrong."""

from __future__ import annotations

import asyncio

import pytest

from headwater.core import runtime
from headwater.core.errors import OutcomeUnknown, RolledBack, Unavailable
from headwater.core.limits import EVENT_LEASE_S
from headwater.store import Unreachable
from headwater.testing import Simulation, simulate
from headwater.tier.eventlog import Compactor, EventDelivered, StoredEventLog
from tests.store.scripted import (
    LOST,
    Scripted,
    after,
    fails,
    lands_then,
    lands_then_after,
    stalls,
    virtual,
)
from tests.tier.eventlog.stored_given import GRACE_S, event_bytes, followed, opened, publish_events


def event_key(offset: int) -> str:
    return f"metadata/0/{offset:020d}"


async def everything(log: StoredEventLog) -> list[bytes]:
    """All events, as somebody reads them who has read nothing before."""
    end = (await log.high_water_marks())[0]
    subscription = await log.subscribe({0: 0})
    found = []
    for _ in range(end):
        item = await anext(subscription)
        assert isinstance(item, EventDelivered), item
        found.append(item.payload)
    await subscription.close()
    return found


async def compact_and_delete(backend: Scripted) -> None:
    """All events go into a snapshot, and a grace later they are gone."""
    compactor = Compactor(await opened(backend))
    await compactor.compact(0, every_events=1)
    await runtime.sleep(GRACE_S)
    assert (await compactor.compact(0)).deleted > 0


@virtual
async def test_an_event_costs_one_request() -> None:
    backend = Scripted()
    log = await opened(backend)
    await publish_events(log, 1)
    backend.calls.clear()
    await publish_events(log, 20, first=1)
    assert backend.calls == [("put_if_absent", event_key(offset)) for offset in range(1, 21)]


@virtual
async def test_after_a_while_the_floor_is_asked_for_beside_it() -> None:
    backend = Scripted()
    log = await opened(backend)
    await publish_events(log, 1)
    await runtime.sleep(EVENT_LEASE_S)
    backend.calls.clear()
    backend.next("put_if_absent", stalls(1.0))
    backend.next("get", stalls(1.0))
    began_s = runtime.monotonic_s()
    await publish_events(log, 1, first=1)
    assert runtime.monotonic_s() - began_s == pytest.approx(1.0), "both at the same time"
    assert sorted(backend.calls) == [
        ("get", "metadata/0/floor.json"),
        ("put_if_absent", event_key(1)),
    ]


@virtual
async def test_publishers_of_one_handle_do_not_race_with_each_other() -> None:
    backend = Scripted()
    log = await opened(backend)
    await publish_events(log, 1)
    backend.calls.clear()
    backend.next("put_if_absent", *(stalls(0.05) for _ in range(20)))
    offsets = await asyncio.gather(*(log.publish(0, event_bytes(n)) for n in range(1, 21)))
    assert sorted(offsets) == list(range(1, 21))
    assert len(backend.calls) == 20


@virtual
async def test_who_loses_the_race_for_an_offset_takes_the_next_one() -> None:
    backend = Scripted()
    one, other = await opened(backend), await opened(backend)
    await one.publish(0, b"0")
    await other.publish(0, b"1")
    assert await one.publish(0, b"2") == 2
    assert await everything(other) == [b"0", b"1", b"2"]


@virtual
async def test_who_was_away_finds_the_end_without_trying_every_offset() -> None:
    backend = Scripted()
    away, busy = await opened(backend), await opened(backend)
    await away.publish(0, b"first")
    await publish_events(busy, 500)
    backend.calls.clear()
    assert await away.publish(0, b"last") == 501
    assert len(backend.calls) < 40


@virtual
async def test_an_answer_that_was_lost_is_settled_by_looking() -> None:
    backend = Scripted()
    log = await opened(backend, attempts=1)
    await log.publish(0, b"0")
    backend.next("put_if_absent", lands_then(LOST))
    assert await log.publish(0, b"1") == 1
    assert await log.publish(0, b"2") == 2
    assert await everything(log) == [b"0", b"1", b"2"]


@virtual
async def test_an_answer_that_was_lost_may_tell_of_another_publisher_s_event() -> None:
    backend = Scripted()
    log, other = await opened(backend, attempts=1), await opened(backend)
    await log.publish(0, b"0")

    async def be_faster() -> None:
        await other.publish(0, b"theirs")

    backend.next("put_if_absent", lambda apply: lands_then_after(be_faster, LOST)(nothing))
    assert await log.publish(0, b"ours") == 2
    assert await everything(log) == [b"0", b"theirs", b"ours"]


async def nothing() -> None:
    """What a request that was lost on its way comes to."""


@virtual
async def test_an_event_that_may_still_land_is_neither_repeated_nor_reported_as_failed() -> None:
    backend = Scripted()
    log = await opened(backend, attempts=1)
    await log.publish(0, b"0")
    backend.next("put_if_absent", fails(LOST))
    with pytest.raises(OutcomeUnknown, match="may still land"):
        await log.publish(0, b"1")
    assert await everything(log) == [b"0"]
    assert await log.publish(0, b"2") == 1, "the offset is still free"


@virtual
async def test_an_event_that_was_not_sent_is_unavailable() -> None:
    backend = Scripted()
    log = await opened(backend, attempts=1)
    await log.publish(0, b"0")
    backend.next("put_if_absent", fails(Unreachable("connection refused")))
    with pytest.raises(Unavailable):
        await log.publish(0, b"1")
    assert await everything(log) == [b"0"]


@virtual
async def test_without_a_floor_nobody_can_tell_whether_an_event_counts() -> None:
    backend = Scripted()
    log = await opened(backend, attempts=1)
    await log.publish(0, b"0")
    await runtime.sleep(EVENT_LEASE_S)
    backend.next("get", fails(Unavailable("503")), fails(Unavailable("503")))
    with pytest.raises(OutcomeUnknown, match="floor"):
        await log.publish(0, b"1")


@virtual
async def test_a_publisher_that_was_idle_while_its_offset_was_compacted_goes_to_the_end() -> None:
    backend = Scripted()
    idle, busy = await opened(backend), await opened(backend)
    await publish_events(idle, 1)
    await publish_events(busy, 9, first=1)
    await compact_and_delete(backend)
    assert await idle.publish(0, event_bytes(10)) == 10
    known = await followed(busy)
    assert known.snapshots == 1
    assert known.next_offset == 11
    assert event_key(1) not in [meta.key async for page in backend.list("", "") for meta in page]


@virtual
async def test_an_event_created_where_another_was_deleted_counts_for_nobody() -> None:
    backend = Scripted()
    stalled, busy = await opened(backend, patient=True), await opened(backend)
    await publish_events(stalled, 1)
    await runtime.sleep(EVENT_LEASE_S)

    async def much_happens() -> None:
        await publish_events(busy, 9, first=1)
        await compact_and_delete(backend)

    backend.next("put_if_absent", after(much_happens))
    with pytest.raises(OutcomeUnknown, match="was stalled"):
        await stalled.publish(0, event_bytes(77))
    assert any([meta.key == event_key(1) async for page in backend.list("", "") for meta in page])
    known = await followed(await opened(backend))
    assert known.next_offset == 10
    assert known.dumps == (await followed(busy)).dumps
    assert await stalled.publish(0, event_bytes(10)) == 10


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("lost", [0, 3])
def test_an_event_that_is_missing_below_others_is_not_written_anew(
    lost: int, is_local: bool
) -> None:
    async def main(_: Simulation) -> None:
        backend = Scripted()
        backend.is_local = is_local
        await publish_events(await opened(backend), 5)
        await backend.inner.delete(event_key(lost))
        with pytest.raises(RolledBack, match=event_key(lost)):
            await (await opened(backend)).publish(0, b"instead")

    simulate(main)
