"""Compaction of the log in object storage: only how little there is to read tells of it."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core import runtime
from headwater.core.errors import (
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.core.limits import (
    COMPACT_BYTES_AN_EVENT,
    EVENT_GRACE_MIN_S,
    EVENT_GRACE_S,
    EVENT_LEASE_S,
)
from headwater.testing import Simulation, simulate
from headwater.tier import encode_event
from headwater.tier.eventlog import (
    Compaction,
    Compactor,
)
from headwater.tier.eventlog.stored_events import snapshot_key
from headwater.tier.snapshot import dump_all
from tests.store.scripted import Scripted, fails, virtual
from tests.tier.event_histories import Said, applied, histories
from tests.tier.eventlog.stored_given import (
    FLOOR,
    GRACE_S,
    event_key,
    events_there,
    floor_of,
    followed,
    opened,
    publish_events,
    replayed,
    snapshots_there,
)

# A snapshot and the events after it are all events


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_snapshot_and_the_events_after_it_are_a_full_replay_at_every_floor(
    data: st.DataObject,
) -> None:
    """Compacted after any events, again and again, and followed from any offset."""
    history: list[Said] = data.draw(histories(max_size=8))
    cuts = set(data.draw(st.lists(st.integers(1, max(1, len(history))), max_size=3)))
    start = data.draw(st.integers(0, len(history)))
    deletes = data.draw(st.booleans())

    async def main(_: Simulation) -> None:
        backend = Scripted()
        log = await opened(backend)
        compactor = Compactor(log)
        for number, (event, epoch) in enumerate(history, start=1):
            await log.publish(0, encode_event(event), publisher_epoch=epoch)
            if number in cuts:
                await compactor.compact(0, every_events=1)
                assert (await floor_of(log)).floor == number
                if deletes:
                    await runtime.sleep(GRACE_S)
                    await compactor.compact(0)
        assert (await followed(log)).dumps == dump_all(applied(history))
        # A reader that has applied some goes on with the rest, or with a snapshot in their place.
        reader = await opened(backend)
        floor = (await floor_of(reader)).floor
        rest = await followed(reader, start)
        assert rest.next_offset == len(history)
        assert rest.snapshots == (1 if start < floor else 0)
        if start < floor:
            assert rest.dumps == dump_all(applied(history))

    simulate(main, stall_max_s=0)


@virtual
async def test_compaction_goes_on_from_the_last_snapshot() -> None:
    backend = Scripted()
    log = await opened(backend)
    published = await publish_events(log, 10)
    compactor = Compactor(log)
    assert await compactor.compact(0, every_events=1) == Compaction(0, 10, 10, 0)
    published += await publish_events(log, 5, first=10)
    backend.calls.clear()
    fresh = Compactor(await opened(backend))
    assert await fresh.compact(0, every_events=1) == Compaction(0, 15, 5, 0)
    assert not any(key < event_key(10) for operation, key in backend.calls if operation == "get")
    known = await followed(await opened(backend))
    assert (known.snapshots, known.dumps) == (1, replayed(published))


@virtual
async def test_little_is_not_compacted() -> None:
    backend = Scripted()
    log = await opened(backend)
    compactor = Compactor(log, every_events=10)
    await publish_events(log, 9)
    assert await compactor.compact(0) == Compaction(0, 0, 0, 0)
    await publish_events(log, 1, first=9)
    assert await compactor.compact(0) == Compaction(0, 10, 10, 0)


@virtual
async def test_a_large_snapshot_is_written_less_often() -> None:
    backend = Scripted()
    log = await opened(backend)
    compactor = Compactor(log, every_events=1)
    await publish_events(log, 400)
    await compactor.compact(0)
    name = (await floor_of(log)).snapshot
    assert name is not None
    enough = name.size_bytes // COMPACT_BYTES_AN_EVENT
    assert enough > 1
    await publish_events(log, enough - 1, first=400)
    assert (await compactor.compact(0)).events == 0
    await publish_events(log, 1, first=399 + enough)
    assert (await compactor.compact(0)).events == enough


# What is deleted, and when


@virtual
async def test_nothing_is_deleted_before_the_grace_and_then_what_the_snapshot_holds() -> None:
    backend = Scripted()
    log = await opened(backend)
    published = await publish_events(log, 10)
    compactor = Compactor(log)
    await compactor.compact(0, every_events=1)
    published += await publish_events(log, 3, first=10)
    await runtime.sleep(EVENT_GRACE_S - 1)
    assert (await compactor.compact(0)).deleted == 0
    assert await events_there(backend) == list(range(13))
    await runtime.sleep(2)
    assert (await compactor.compact(0)).deleted == 10
    assert await events_there(backend) == [10, 11, 12]
    floor = await floor_of(log)
    assert (floor.floor, floor.trimmed) == (10, 10)
    assert (await followed(await opened(backend))).dumps == replayed(published)


@virtual
async def test_a_compactor_that_has_just_come_waits_for_the_grace_too() -> None:
    backend = Scripted()
    log = await opened(backend)
    await publish_events(log, 10)
    await Compactor(log).compact(0, every_events=1)
    await runtime.sleep(10 * GRACE_S)
    later = Compactor(await opened(backend))
    assert (await later.compact(0)).deleted == 0
    await runtime.sleep(GRACE_S)
    assert (await later.compact(0)).deleted == 10


@virtual
async def test_snapshots_that_were_replaced_go_with_the_events() -> None:
    backend = Scripted()
    log = await opened(backend)
    compactor = Compactor(log)
    for number in range(3):
        await publish_events(log, 2, first=2 * number)
        await compactor.compact(0, every_events=1)
    assert len(await snapshots_there(backend)) == 3
    for _ in range(2):  # one floor is waited for after the other
        await runtime.sleep(GRACE_S)
        await compactor.compact(0)
    floor = await floor_of(log)
    assert await snapshots_there(backend) == [snapshot_key(log.events_of(0), floor)]


@pytest.mark.parametrize("restarts", [False, True])
def test_deletions_that_were_interrupted_go_on_in_the_next_pass(restarts: bool) -> None:
    simulate(lambda _: _interrupt_deletions(restarts), stall_max_s=0)


async def _interrupt_deletions(restarts: bool) -> None:
    backend = Scripted()
    log = await opened(backend, attempts=1)
    await publish_events(log, 40)
    compactor = Compactor(log)
    await compactor.compact(0, every_events=1)
    await runtime.sleep(GRACE_S)
    backend.next("delete", *(fails(Unavailable("503")) for _ in range(20)))
    with pytest.raises(OutcomeUnknown):
        await compactor.compact(0)
    assert await events_there(backend) == list(range(40))
    backend._steps.clear()
    if restarts:
        compactor = Compactor(await opened(backend))
    assert (await compactor.compact(0)).deleted == 40
    assert await events_there(backend) == []


@virtual
async def test_a_pass_over_a_quiet_partition_costs_two_requests() -> None:
    backend = Scripted()
    log = await opened(backend)
    await publish_events(log, 3)
    compactor = Compactor(log)
    await compactor.compact(0, every_events=1)
    await runtime.sleep(GRACE_S)
    await compactor.compact(0)
    backend.calls.clear()
    await compactor.compact(0)
    assert backend.calls == [("get", FLOOR), ("head", event_key(3))]


def test_a_grace_that_publishers_cannot_count_on_is_refused() -> None:
    async def main(_: Simulation) -> None:
        log = await opened(Scripted())
        with pytest.raises(Refused, match="EVENT_GRACE_MIN_S"):
            Compactor(log, grace_s=EVENT_GRACE_MIN_S - 1)
        with pytest.raises(Refused, match="every_events"):
            Compactor(log, every_events=0)

    simulate(main)
    assert EVENT_GRACE_MIN_S > 2 * EVENT_LEASE_S


# Passes


@virtual
async def test_passes_go_on_whatever_fails() -> None:
    backend = Scripted()
    log = await opened(backend, attempts=1)
    await publish_events(log, 3)
    compactor = Compactor(log, every_events=1)
    backend.next("get", fails(Unavailable("503")))
    running = runtime.spawn(compactor.run(interval_s=100.0), name="compactor")
    await runtime.sleep(1.0)
    assert isinstance(compactor.failures[0], Unavailable)
    await runtime.sleep(200.0)
    assert compactor.failures == {}
    assert (await floor_of(log)).floor == 3
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


# The grace


@virtual
async def test_compactors_that_come_and_go_wait_for_the_grace_together() -> None:
    backend = Scripted()
    log = await opened(backend)
    await publish_events(log, 10)
    await Compactor(log).compact(0, every_events=1)
    deleted = []
    for _ in range(5):
        await runtime.sleep(10 * GRACE_S)  # what passed while none was there does not count
        job = Compactor(await opened(backend))
        deleted.append((await job.compact(0)).deleted)
        await runtime.sleep(EVENT_GRACE_S / 4 + 1)
        deleted.append((await job.compact(0)).deleted)
    assert deleted == [0, 0, 0, 0, 0, 0, 0, 10, 0, 0]


@virtual
async def test_compactors_at_the_same_time_count_no_time_twice() -> None:
    backend = Scripted()
    log = await opened(backend)
    await publish_events(log, 10)
    crowd = [Compactor(await opened(backend)) for _ in range(6)]
    await crowd[0].compact(0, every_events=1)
    passed_s = 0.0
    while passed_s < EVENT_GRACE_S:
        done = await asyncio.gather(*(one.compact(0) for one in crowd))
        assert [one.deleted for one in done] == [0] * 6
        await runtime.sleep(500)
        passed_s += 500
    assert (await crowd[0].compact(0)).deleted == 10
