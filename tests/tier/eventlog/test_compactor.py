"""Compaction of the log in object storage: only how little there is to read tells of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core import runtime
from headwater.core.errors import (
    Corrupt,
    NotSupported,
    OutcomeUnknown,
    Refused,
    RolledBack,
    Unavailable,
)
from headwater.core.limits import (
    COMPACT_BYTES_AN_EVENT,
    EVENT_GRACE_MIN_S,
    EVENT_GRACE_S,
    EVENT_LEASE_S,
)
from headwater.store import MemoryBackend, Version
from headwater.store.backend import Condition
from headwater.store.objects import Buffer
from headwater.testing import Simulation, simulate
from headwater.tier import encode_event
from headwater.tier.cache import dump_all
from headwater.tier.eventlog import (
    Compaction,
    Compactor,
    EventUnreadable,
    PartitionFailed,
    SnapshotDelivered,
    StoredEventLog,
)
from headwater.tier.eventlog.stored.floor import Floor
from headwater.tier.eventlog.stored.snapshots import snapshot_key, store_snapshot
from tests.store.scripted import Scripted, after, fails, lands_then, virtual
from tests.tier.event_histories import Said, applied, histories
from tests.tier.eventlog.stored_given import (
    GRACE_S,
    followed,
    opened,
    publish_events,
    replayed,
)

FLOOR = "metadata/0/floor.json"


def event_key(offset: int) -> str:
    return f"metadata/0/{offset:020d}"


async def keys(backend: Scripted) -> list[str]:
    return [meta.key async for page in backend.inner.list("metadata/0/", "") for meta in page]


async def events_there(backend: Scripted) -> list[int]:
    return [int(key[-20:]) for key in await keys(backend) if key[-20:].isdecimal()]


async def snapshots_there(backend: Scripted) -> list[str]:
    return [key for key in await keys(backend) if "/snapshot-" in key]


async def floor_of(log: StoredEventLog) -> Floor:
    return await log.events_of(0).floors.look()


async def damage(backend: Scripted, key: str) -> None:
    """Flip a bit of what stands there."""
    data = bytearray((await backend.inner.get(key)).data)
    data[-1] ^= 1
    await backend.inner.put(key, bytes(data))


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


# Several compactors, and those that come late


@virtual
async def test_of_two_compactors_one_moves_the_floor_and_the_other_leaves_nothing_behind() -> None:
    backend = Scripted()
    log = await opened(backend)
    published = await publish_events(log, 10)
    both = [Compactor(await opened(backend)) for _ in range(2)]
    done = await asyncio.gather(*(one.compact(0, every_events=1) for one in both))
    assert sorted(one.events for one in done) == [0, 10]
    assert len(await snapshots_there(backend)) == 1
    assert (await followed(log)).dumps == replayed(published)


@virtual
async def test_a_stale_compactor_neither_lowers_the_floor_nor_deletes_anything() -> None:
    backend = Scripted()
    log = await opened(backend)
    published = await publish_events(log, 5)
    stale = Compactor(await opened(backend, patient=True))

    async def others_go_further() -> None:
        nonlocal published
        published += await publish_events(log, 5, first=5)
        fresh = Compactor(log)
        await fresh.compact(0, every_events=1)
        published += await publish_events(log, 2, first=10)
        await runtime.sleep(GRACE_S)
        await fresh.compact(0)

    backend.next("put_if_unchanged", after(others_go_further))  # the stale one's move of the floor
    assert await stale.compact(0, every_events=1) == Compaction(0, 10, 0, 0)
    floor = await floor_of(log)
    assert (floor.floor, floor.trimmed) == (10, 10)
    assert await events_there(backend) == [10, 11]
    assert (await followed(await opened(backend))).dumps == replayed(published)


@virtual
async def test_the_snapshot_of_a_stalled_compactor_is_there_when_it_names_it() -> None:
    """Others have compacted less far meanwhile, and deleted what they could."""
    backend = Scripted()
    log = await opened(backend)
    published = await publish_events(log, 4)
    quick = Compactor(log)
    await quick.compact(0, every_events=1)
    published += await publish_events(log, 4, first=4)
    stalled = Compactor(await opened(backend, patient=True))

    async def others_delete() -> None:
        await runtime.sleep(GRACE_S)
        assert (await quick.compact(0)).deleted == 4

    backend.next("put_if_unchanged", after(others_delete))
    assert (await stalled.compact(0, every_events=1)).events == 4
    assert (await followed(await opened(backend))).dumps == replayed(published)


@virtual
async def test_a_compactor_that_is_overtaken_while_it_reads_gives_way() -> None:
    backend = Scripted()
    log = await opened(backend)
    published = await publish_events(log, 4)
    slow, quick = Compactor(await opened(backend, patient=True)), Compactor(log)

    async def all_is_deleted() -> None:
        await quick.compact(0, every_events=1)
        await runtime.sleep(GRACE_S)
        await quick.compact(0)

    events = slow._log.events_of(0)
    read = events.read

    async def late(start: int, count: int) -> Any:
        events.read = read  # type: ignore[method-assign]
        await all_is_deleted()
        return await read(start, count)

    events.read = late  # type: ignore[method-assign]
    assert (await slow.compact(0, every_events=1)).events == 0
    assert (await followed(log)).dumps == replayed(published)


# Crashes


class Crash(Exception):
    """The process ends here."""


class CrashingBackend(MemoryBackend):
    """A store whose client dies at its n-th write, before or after it is carried out."""

    def __init__(self) -> None:
        super().__init__(versions_by_content=True)
        self.dies_at = 0
        self.dies_after = False
        self.is_counting = False
        self.writes = 0

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        version = await self._write(lambda: super(CrashingBackend, self).put(key, data, condition))
        assert isinstance(version, Version)
        return version

    async def delete(self, key: str) -> None:
        await self._write(lambda: super(CrashingBackend, self).delete(key))

    async def _write(self, apply: Callable[[], Awaitable[Any]]) -> Any:
        self.writes += self.is_counting
        dies = self.is_counting and self.writes == self.dies_at
        if dies and not self.dies_after:
            raise Crash
        done = await apply()
        if dies:
            raise Crash
        return done


async def _crash_once(dies_at: int, dies_after: bool) -> bool:
    """Compact, delete, compact: with a death on the way. Whether it came to that."""
    backend = CrashingBackend()
    log = await opened(backend)
    published = await publish_events(log, 6)
    backend.dies_at, backend.dies_after = dies_at, dies_after

    async def tend() -> None:
        compactor = Compactor(await opened(backend))
        await compactor.compact(0, every_events=1)
        await runtime.sleep(GRACE_S)
        await compactor.compact(0, every_events=1)

    async def check() -> None:
        assert (await followed(await opened(backend))).dumps == replayed(published)

    crashed = False
    for number in range(3):
        backend.is_counting = True
        try:
            await tend()
        except Crash:
            crashed = True
        backend.is_counting = False
        await check()
        published += await publish_events(log, 2, first=6 + 2 * number)
    await runtime.sleep(GRACE_S)
    await tend()
    await check()
    left = [key for key in backend._objects if key.startswith("metadata/0/")]
    assert len(left) == 2, f"a floor and its snapshot, and nothing that nobody needs: {left}"
    return crashed


@pytest.mark.parametrize("dies_after", [False, True])
def test_a_crash_at_any_write_leaves_a_log_that_reads_as_before(dies_after: bool) -> None:
    async def main(_: Simulation) -> None:
        dies_at = 1
        while await _crash_once(dies_at, dies_after):
            dies_at += 1
        assert dies_at > 20, "a snapshot, two moves of the floor, and every deletion"

    simulate(main, stall_max_s=0)


@virtual
async def test_a_floor_whose_move_was_not_answered_is_found_where_it_is() -> None:
    backend = Scripted()
    log = await opened(backend, attempts=1)
    published = await publish_events(log, 6)
    backend.next("put_if_unchanged", lands_then(OutcomeUnknown("reset")))
    assert (await Compactor(log).compact(0, every_events=1)).floor == 6
    assert (await followed(await opened(backend))).dumps == replayed(published)


@virtual
async def test_a_snapshot_that_may_not_be_there_moves_no_floor() -> None:
    backend = Scripted()
    log = await opened(backend, attempts=1)
    await publish_events(log, 6)
    backend.next("put", fails(OutcomeUnknown("reset")))
    with pytest.raises(OutcomeUnknown):
        await Compactor(log).compact(0, every_events=1)
    assert (await floor_of(log)).floor == 0


@virtual
async def test_a_snapshot_that_does_not_read_back_moves_no_floor() -> None:
    backend = Scripted()
    log = await opened(backend)
    await publish_events(log, 6)

    async def damaged(apply: Callable[[], Awaitable[Any]]) -> Any:
        version = await apply()
        await damage(backend, (await snapshots_there(backend))[0])
        return version

    backend.next("put", damaged)
    with pytest.raises(Corrupt, match="snapshot"):
        await Compactor(log).compact(0, every_events=1)
    assert (await floor_of(log)).floor == 0


# Damage


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
    snapshot, bad = await anext(subscription.items), await anext(subscription.items)
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
    failed = await anext(subscription.items)
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
    failed = await anext(subscription.items)
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
    floor = await floors.look()
    wrong = msgspec.structs.replace(floor, floor=3)
    await floors._register.update(lambda _: wrong)
    with pytest.raises(Corrupt, match=FLOOR):
        await (await opened(backend)).publish(0, b"x")


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
