"""Following the log in object storage: what it costs, and that nothing is passed over."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import msgspec
import pytest
import xxhash

from headwater.core import runtime
from headwater.core.errors import Corrupt, RolledBack, Unavailable
from headwater.core.limits import (
    EVENT_END_CHECK_S,
    EVENT_LEASE_S,
    EVENT_READS_AT_ONCE,
    EVENTS_READY,
    LIST_PAGE_KEYS,
)
from headwater.testing import Simulation, simulate
from headwater.tier.eventlog import (
    Compactor,
    EventDelivered,
    EventUnreadable,
    LogItem,
    PartitionFailed,
    SnapshotDelivered,
    StoredEventLog,
)
from headwater.tier.eventlog.stored_events import SnapshotName, StoredEvents
from headwater.tier.snapshot import Snapshot, dump_all, encode_snapshot
from tests.store.scripted import Apply, Scripted, Step, after, fails, stalls, virtual
from tests.tier.eventlog.stored_given import (
    GRACE_S,
    Known,
    damage,
    event_bytes,
    event_key,
    followed,
    opened,
    publish_events,
    replayed,
)


async def items(log: StoredEventLog, count: int, start_offset: int = 0) -> list[LogItem]:
    subscription = await log.subscribe({0: start_offset})
    taken = [await anext(subscription) for _ in range(count)]
    await subscription.close()
    return taken


# High-water marks


@virtual
async def test_a_mark_that_has_not_moved_costs_one_request() -> None:
    backend = Scripted()
    log = await opened(backend, 3)
    await log.publish(1, b"x")
    backend.calls.clear()
    assert await (await opened(backend, 3)).high_water_marks() == {0: 0, 1: 1, 2: 0}
    first_looks = [one for one in backend.calls if "/1/" not in one[1] and "log.json" not in one[1]]
    assert len(first_looks) == 2 * 3, "floor, next offset, and what lies beyond"
    assert await log.high_water_marks() == {0: 0, 1: 1, 2: 0}
    backend.calls.clear()
    assert await log.high_water_marks() == {0: 0, 1: 1, 2: 0}
    assert sorted(backend.calls) == [
        ("head", f"metadata/{partition}/{offset:020d}")
        for partition, offset in ((0, 0), (1, 1), (2, 0))
    ]
    backend.calls.clear()
    assert await log.high_water_marks([1]) == {1: 1}
    assert backend.calls == [("head", f"metadata/1/{1:020d}")], "nobody else is asked"


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 100, 999, 1000, 1001, 1002, 2500])
def test_requests_for_a_mark_grow_with_the_logarithm_of_what_is_new(
    count: int, is_local: bool
) -> None:
    async def main(simulation: Simulation) -> None:
        backend = Scripted()
        backend.is_local = is_local
        log, publisher = await opened(backend), await opened(backend)
        await log.high_water_marks()
        for _ in range(count):
            await publisher.publish(0, b"x")
        backend.calls.clear()
        assert await log.high_water_marks() == {0: count}
        assert len(backend.calls) <= 2 * math.log2(count + 1) + 2
        if not is_local and count < LIST_PAGE_KEYS:
            assert len(backend.calls) == 2, "the next offset, and one page of what is after it"

    simulate(main, stall_max_s=0)


@virtual
async def test_a_partition_that_cannot_be_asked_has_no_mark() -> None:
    backend = Scripted()
    log = await opened(backend, 2, attempts=1)
    await log.high_water_marks()
    backend.next("head", fails(Unavailable("503")))
    assert len(await log.high_water_marks()) == 1


# Waiting at the end


@virtual
async def test_polls_grow_rarer_while_nothing_comes() -> None:
    backend = Scripted()
    log, publisher = await opened(backend), await opened(backend)
    await publisher.publish(0, b"0")
    subscription = await log.subscribe({0: 0})
    await anext(subscription)
    backend.calls.clear()
    await runtime.sleep(60.0)
    in_the_first_minute = backend.count("get")
    await runtime.sleep(600.0)
    in_ten_more = backend.count("get") - in_the_first_minute
    assert 12 <= in_the_first_minute <= 20
    assert in_ten_more == pytest.approx(120 + 600 / EVENT_LEASE_S, abs=4), "every 5 s, and floors"
    await publisher.publish(0, b"1")
    began_s = runtime.monotonic_s()
    await anext(subscription)
    assert runtime.monotonic_s() - began_s <= 5.0
    await log.close()


@virtual
async def test_what_a_handle_publishes_its_own_followers_have_at_once_and_for_nothing() -> None:
    backend = Scripted()
    log = await opened(backend)
    subscription = await log.subscribe({0: 0})
    await runtime.sleep(30.0)
    backend.calls.clear()
    began_s = runtime.monotonic_s()
    await log.publish(0, b"mine")
    assert await anext(subscription) == EventDelivered(0, 0, b"mine", None)
    assert runtime.monotonic_s() == began_s
    assert ("get", event_key(0)) not in backend.calls
    await log.close()


@virtual
async def test_so_they_have_what_it_publishes_while_it_is_made_sure_where_the_end_is() -> None:
    backend = Scripted()
    log = await opened(backend)
    subscription = await log.subscribe({0: 0})
    await runtime.sleep(EVENT_END_CHECK_S / 2)
    published_s = 0.0

    async def publish() -> None:
        nonlocal published_s
        await log.publish(0, b"mine")
        published_s = runtime.monotonic_s()

    backend.next("list", lands_then_goes_on(publish))
    assert await anext(subscription) == EventDelivered(0, 0, b"mine", None)
    assert runtime.monotonic_s() == published_s
    await log.close()


@virtual
async def test_the_end_is_not_where_a_question_stood_still_while_it_was_compacted() -> None:
    backend = Scripted()
    log, publisher = await opened(backend, patient=True), await opened(backend)
    await publish_events(publisher, 5)
    assert await log.high_water_marks() == {0: 5}

    async def compacted() -> None:
        await publish_events(publisher, 4, first=5)
        compactor = Compactor(publisher)
        await compactor.compact(0, every_events=1)
        await runtime.sleep(GRACE_S)
        assert (await compactor.compact(0)).deleted == 9

    backend.next("head", after(compacted))
    assert await log.high_water_marks() == {0: 9}
    await log.close()


@virtual
@pytest.mark.parametrize("wall_s", [EVENT_LEASE_S, -1.0])
async def test_a_floor_is_not_counted_on_when_only_the_wall_clock_went_on(wall_s: float) -> None:
    log = await opened(Scripted())
    floors = log.events_of(0).floors
    await floors.read()
    assert floors.leased.covers(0)
    wall_ms = runtime.wall_ms() + int(wall_s * 1000)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runtime, "wall_ms", lambda: wall_ms)
        assert not floors.leased.covers(0)
    await log.close()


@virtual
async def test_what_nobody_takes_is_not_fetched_without_end() -> None:
    backend = Scripted()
    log, publisher = await opened(backend), await opened(backend)
    published = [str(number).encode() for number in range(1000)]
    for payload in published:
        await publisher.publish(0, payload)
    subscription = await log.subscribe({0: 0})
    backend.calls.clear()
    await runtime.sleep(60.0)
    assert backend.count("get") <= EVENTS_READY + EVENT_READS_AT_ONCE + 1
    taken = [await anext(subscription) for _ in range(1000)]
    assert [one.payload for one in taken if isinstance(one, EventDelivered)] == published
    await log.close()


@virtual
async def test_catching_up_asks_for_each_event_once() -> None:
    backend = Scripted()
    log = await opened(backend)
    await publish_events(await opened(backend), 500)
    backend.calls.clear()
    await items(log, 500)
    of_events = [key for name, key in backend.calls if name == "get" and key < "metadata/0/f"]
    beyond_the_end = sum(key > event_key(499) for key in of_events)
    assert len(of_events) == 500 + beyond_the_end
    assert beyond_the_end <= EVENT_READS_AT_ONCE


@virtual
@pytest.mark.parametrize("start_offset", [0, 7])
async def test_a_backlog_is_asked_for_at_once_from_its_first_event_on(start_offset: int) -> None:
    backend = Scripted()
    backend.is_local = False
    log = await opened(backend)
    await publish_events(await opened(backend), 500)
    backend.calls.clear()
    await items(log, 1, start_offset)
    floor_and_listing, first_reads = backend.calls[:2], backend.calls[2 : 2 + EVENT_READS_AT_ONCE]
    assert sorted(name for name, _ in floor_and_listing) == ["get", "list"]
    assert sorted(first_reads) == [
        ("get", event_key(start_offset + number)) for number in range(EVENT_READS_AT_ONCE)
    ]


def lands_then_goes_on(action: Apply) -> Step:
    """Carried out, and answered after something else happened."""

    async def step(apply: Apply) -> Any:
        answer = await apply()
        await action()
        return answer

    return step


# What goes wrong


@virtual
async def test_a_damaged_event_is_told_under_its_name_and_those_after_it_follow() -> None:
    backend = Scripted()
    log = await opened(backend)
    published = await publish_events(log, 5)
    await damage(backend, event_key(2))
    found = await items(await opened(backend), 5)
    bad = found.pop(2)
    assert isinstance(bad, EventUnreadable)
    assert (bad.partition, bad.offset) == (0, 2)
    assert isinstance(bad.error, Corrupt)
    assert event_key(2) in str(bad.error)
    assert [one.payload for one in found if isinstance(one, EventDelivered)] == [
        *published[:2],
        *published[3:],
    ]


@virtual
async def test_an_event_of_another_log_is_told_too() -> None:
    backend, foreign = Scripted(), Scripted()
    log, other = await opened(backend), await opened(foreign)
    await publish_events(log, 2)
    await publish_events(other, 2)
    await backend.inner.put(event_key(1), (await foreign.inner.get(event_key(1))).data)
    bad = (await items(await opened(backend), 2))[1]
    assert isinstance(bad, EventUnreadable)
    assert str(other.log_id) in str(bad.error)


@virtual
async def test_a_missing_event_ends_the_partition_and_is_named() -> None:
    backend = Scripted()
    log = await opened(backend)
    await publish_events(log, 5)
    await backend.inner.delete(event_key(2))
    failed = (await items(await opened(backend), 3))[2]
    assert isinstance(failed, PartitionFailed)
    assert isinstance(failed.error, RolledBack)
    assert event_key(2) in str(failed.error)


@virtual
async def test_an_end_that_was_known_and_went_back_is_told() -> None:
    backend = Scripted()
    log, publisher = await opened(backend), await opened(backend)
    await publish_events(publisher, 3)
    assert await log.high_water_marks() == {0: 3}
    await backend.inner.delete(event_key(2))
    failed = (await items(log, 3))[2]
    assert isinstance(failed, PartitionFailed)
    assert isinstance(failed.error, RolledBack)


@virtual
async def test_a_store_that_does_not_answer_ends_the_partition_which_may_be_added_again() -> None:
    backend = Scripted()
    log = await opened(backend, attempts=1)
    await publish_events(await opened(backend), 3)
    subscription = await log.subscribe({0: 0})
    await anext(subscription)
    backend.next("get", *(fails(Unavailable("503")) for _ in range(200)))
    failed: LogItem | None = None
    while not isinstance(failed, PartitionFailed):
        failed = await anext(subscription)
    assert isinstance(failed.error, Unavailable)
    assert subscription.assigned() == []
    backend._steps.clear()
    await publish_events(await opened(backend), 1, first=3)
    subscription.add(0, 3)
    assert await anext(subscription) == EventDelivered(0, 3, event_bytes(3), None)
    await log.close()


@virtual
async def test_a_mistake_in_the_code_ends_the_items_with_it() -> None:
    backend = Scripted()
    log = await opened(backend)

    async def broken(*_: object) -> list[EventDelivered]:
        raise ZeroDivisionError("a mistake")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StoredEvents, "read", broken)
        subscription = await log.subscribe({0: 0})
        with pytest.raises(ZeroDivisionError):
            await anext(subscription)
    await log.close()


# Falling behind the floor


@virtual
async def test_a_reader_in_the_middle_of_what_is_deleted_goes_on_with_the_snapshot() -> None:
    backend = Scripted()
    log, publisher = await opened(backend, patient=True), await opened(backend)
    published = await publish_events(publisher, 300)
    subscription = await log.subscribe({0: 0})
    known = Known()
    for _ in range(10):
        known.take(await anext(subscription))
    compactor = Compactor(publisher)
    await compactor.compact(0, every_events=1)
    published += await publish_events(publisher, 4, first=300)
    await runtime.sleep(GRACE_S)
    assert (await compactor.compact(0)).deleted == 300
    while known.next_offset < 304:
        known.take(await anext(subscription))
    assert known.snapshots == 1
    assert known.dumps == replayed(published)
    await log.close()


@virtual
async def test_a_reader_below_the_floor_keeps_its_events_for_the_grace() -> None:
    backend = Scripted()
    log, publisher = await opened(backend), await opened(backend)
    published = await publish_events(publisher, 300)
    subscription = await log.subscribe({0: 0})
    known = Known()
    known.take(await anext(subscription))
    await Compactor(publisher).compact(0, every_events=1)
    while known.next_offset < 300:
        known.take(await anext(subscription))
    assert known.snapshots == 0
    assert known.dumps == replayed(published)
    await log.close()


@virtual
async def test_a_snapshot_that_is_replaced_while_it_is_read_is_not_missed() -> None:
    backend = Scripted()
    publisher = await opened(backend)
    published = await publish_events(publisher, 5)
    compactor = Compactor(publisher)
    await compactor.compact(0, every_events=1)
    published += await publish_events(publisher, 5, first=5)
    reader = await opened(backend, patient=True)
    # The floor, and then the snapshot that it named.
    backend.next("get", stalls(0), stalls(3 * GRACE_S))

    async def replace_it() -> None:
        for _ in range(2):
            await runtime.sleep(GRACE_S)
            await compactor.compact(0, every_events=1)

    subscription = await reader.subscribe({0: 0})
    await asyncio.gather(replace_it())
    item = await anext(subscription)
    assert isinstance(item, SnapshotDelivered)
    assert (item.through_offset, dump_all(item.cache)) == (9, replayed(published))
    await reader.close()


@virtual
async def test_a_snapshot_is_asked_for_by_the_floor_that_was_just_read() -> None:
    backend = Scripted()
    publisher = await opened(backend)
    await publish_events(publisher, 5)
    await Compactor(publisher).compact(0, every_events=1)
    reader = await opened(backend)
    backend.calls.clear()
    await items(reader, 1)
    keys = [key.rpartition("/")[2] for name, key in backend.calls if name == "get"]
    assert [key.partition("-")[0] for key in keys[:2]] == ["floor.json", "snapshot"]


@virtual
async def test_following_from_the_floor_itself_needs_no_snapshot() -> None:
    backend = Scripted()
    log = await opened(backend)
    await publish_events(log, 6)
    await Compactor(log).compact(0, every_events=1)
    await publish_events(log, 1, first=6)
    known = await followed(await opened(backend), 6)
    assert (known.snapshots, known.next_offset) == (0, 7)


@virtual
async def test_a_snapshot_that_contradicts_itself_ends_the_partition() -> None:
    log = await opened(Scripted())
    published = await publish_events(log, 6)
    events = log.events_of(0)
    whole = replayed(published)
    bad = (msgspec.structs.replace(whole[0], referenced=((99, 0, 0),)), *whole[1:])
    data = encode_snapshot(Snapshot(events.log_id, events.partition_count, 0, 5, bad))
    name = SnapshotName("0" * 32, len(data), xxhash.xxh3_64_hexdigest(data))
    await events.store.put(events.keys.snapshot(5, name.token), data)
    await events.floors.move(6, name)
    subscription = await log.subscribe({0: 0})
    failed = await anext(subscription)
    assert isinstance(failed, PartitionFailed)
    assert isinstance(failed.error, Corrupt)
    assert "contradicts itself" in str(failed.error)
    await log.close()
