"""Compaction where something cannot be read: it is named, and nothing is deleted."""

from __future__ import annotations

import msgspec
import pytest

from headwater.core import runtime
from headwater.core.errors import (
    Corrupt,
    NotSupported,
    RolledBack,
)
from headwater.testing import Simulation, simulate
from headwater.tier.eventlog import (
    Compactor,
    EventUnreadable,
    PartitionFailed,
    SnapshotDelivered,
    StoredEventLog,
)
from headwater.tier.eventlog.stored_events import store_snapshot
from headwater.tier.snapshot import dump_all
from tests.store.scripted import Scripted, virtual
from tests.tier.event_histories import applied
from tests.tier.eventlog.stored_given import (
    FLOOR,
    GRACE_S,
    damage,
    event_key,
    events_there,
    opened,
    publish_events,
    replayed,
    snapshots_there,
)


@virtual
async def test_compaction_stops_before_a_damaged_event_and_names_it() -> None:
    backend = Scripted()
    published = await publish_events(await opened(backend), 8)
    await damage(backend, event_key(5))
    log = await opened(backend)
    compactor = Compactor(log)
    done = await compactor.compact(0, every_events=1)
    assert (done.floor, done.events) == (5, 5)
    assert isinstance(done.stopped_by, Corrupt)
    assert event_key(5) in str(done.stopped_by)
    again = await compactor.compact(0, every_events=1)
    assert (again.floor, again.events) == (5, 0)
    subscription = await log.subscribe({0: 0})
    snapshot, bad = await anext(subscription), await anext(subscription)
    assert isinstance(snapshot, SnapshotDelivered)
    assert dump_all(snapshot.cache) == replayed(published[:5])
    assert isinstance(bad, EventUnreadable)
    await log.close()


@virtual
async def test_compaction_stops_before_bytes_that_are_no_event() -> None:
    backend = Scripted()
    log = await opened(backend, 2)
    await publish_events(log, 3)
    await log.publish(0, b"\xff nothing of the kind")
    await publish_events(log, 3, first=3)
    compactor = Compactor(log, every_events=1)
    done = await compactor.pass_over_all()
    assert [one.floor for one in done] == [3, 0]
    assert isinstance(done[0].stopped_by, Corrupt | NotSupported)
    assert event_key(3) in str(compactor.failures[0])
    assert 1 not in compactor.failures


@virtual
async def test_a_damaged_snapshot_is_named_and_nothing_is_deleted_on_its_strength() -> None:
    backend = Scripted()
    log = await opened(backend)
    await publish_events(log, 6)
    compactor = Compactor(log)
    await compactor.compact(0, every_events=1)
    (key,) = await snapshots_there(backend)
    await damage(backend, key)
    subscription = await log.subscribe({0: 0})
    failed = await anext(subscription)
    assert isinstance(failed, PartitionFailed)
    assert isinstance(failed.error, Corrupt)
    assert key in str(failed.error)
    await runtime.sleep(GRACE_S)
    with pytest.raises(Corrupt, match=key):
        await compactor.compact(0)
    assert await events_there(backend) == list(range(6))
    await log.close()


@virtual
async def test_a_lost_snapshot_is_named_and_nothing_is_deleted() -> None:
    backend = Scripted()
    log = await opened(backend)
    await publish_events(log, 6)
    compactor = Compactor(log)
    await compactor.compact(0, every_events=1)
    (key,) = await snapshots_there(backend)
    await backend.inner.delete(key)
    await runtime.sleep(GRACE_S)
    with pytest.raises(RolledBack, match=key):
        await compactor.compact(0)
    assert await events_there(backend) == list(range(6))
    assert isinstance((await _first_item(log)).error, RolledBack)


async def _first_item(log: StoredEventLog) -> PartitionFailed:
    subscription = await log.subscribe({0: 0})
    failed = await anext(subscription)
    assert isinstance(failed, PartitionFailed)
    await log.close()
    return failed


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"partition": 1}, "partition 1 of 2"),
        ({"partition_count": 3}, "of 3"),
    ],
)
def test_a_snapshot_of_something_else_is_not_used(change: dict[str, int], told: str) -> None:
    """Though the floor names it: somebody has copied objects about."""

    async def main(_: Simulation) -> None:
        backend = Scripted()
        log = await opened(backend, 2)
        await publish_events(log, 6)
        events = log.events_of(0)
        for name, value in change.items():
            setattr(events, name, value)
        snapshot = await store_snapshot(events, applied([]), 5)
        events.partition, events.partition_count = 0, 2
        await events.floors.move(6, snapshot)
        error = (await _first_item(log)).error
        assert isinstance(error, Corrupt)
        assert told in str(error)

    simulate(main)


@virtual
async def test_a_floor_that_contradicts_itself_is_corrupt() -> None:
    backend = Scripted()
    log = await opened(backend)
    floors = log.events_of(0).floors
    floor = await floors.read()
    wrong = msgspec.structs.replace(floor, floor=3)
    await floors._register.update(lambda _: wrong)
    with pytest.raises(Corrupt, match=FLOOR):
        await (await opened(backend)).publish(0, b"x")
