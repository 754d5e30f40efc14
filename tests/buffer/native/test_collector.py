"""The collector deletes what nobody can need: first the floor rises, then goes what lies below."""

from __future__ import annotations

import asyncio

import pytest

from headwater.buffer.queue.contract import BatchTrimmed
from headwater.buffer.queue.retention import Retention
from headwater.core import limits, runtime
from headwater.core.errors import Denied, HeadwaterError, Trimmed, Unavailable
from headwater.store import MemoryBackend
from tests.buffer.native.collected import (
    DAY_MS,
    FOREVER,
    HOUR_MS,
    a_queue,
    chunk_numbers,
    in_one_chunk,
    read_on,
    uploads,
)
from tests.buffer.native.given import (
    AT_MS,
    NOTHING_KEPT,
    PREFIX,
    Cloud,
    Queue,
    at_time,
    batch,
    ulid_at,
)
from tests.buffer.native.watched import acknowledge_everything, client
from tests.store.scripted import after, fails, virtual

shapes = pytest.mark.parametrize("shape", [MemoryBackend, Cloud])


@virtual
async def test_the_floor_passes_closed_chunks_alone() -> None:
    queue, _ = await a_queue(2)
    appender = await queue.opened()
    for _ in range(4):
        await appender.append([batch(appender._landed + 1)])  # to a chunk that stays open
        await acknowledge_everything(queue)
        await runtime.sleep(1.0)
        await queue.collector().collect(NOTHING_KEPT)
        floor = (await queue.chunks.floors()).chunk_floor
        below = [number for number in await chunk_numbers(queue) if number < floor]
        assert below
        assert all([(await queue.chunk(number)).closed for number in below])


@shapes
@virtual
async def test_what_is_acknowledged_and_past_the_retention_goes(shape: type[MemoryBackend]) -> None:
    queue, ids = await a_queue(6, acked=4, shape=shape)
    report = await queue.collector().collect(NOTHING_KEPT, full=True)
    assert (report.batches_expired, report.bytes_expired, report.chunks_expired) == (4, 40, 5)
    assert (report.floor_sequence, report.floor_lsn) == (4, 5)
    assert (report.kept_pending, report.kept_retained, report.failed) == (2, 0, 0)
    assert await uploads(queue) == ids[4:]
    assert await chunk_numbers(queue) == [5, 6]


@virtual
async def test_where_acknowledgements_count_nothing_goes_that_is_not_acknowledged() -> None:
    queue, ids = await a_queue(5)
    await runtime.sleep(1e8)
    retention = Retention(0, 0, grace_ms=0, only_acknowledged=True)
    report = await queue.collector().collect(retention, full=True)
    assert (report.batches_expired, report.kept_pending) == (0, 5)
    assert await uploads(queue) == ids
    assert len(await queue.entries()) == 5


@shapes
@virtual
async def test_batches_go_one_by_one_though_their_chunk_stays(shape: type[MemoryBackend]) -> None:
    queue, ids = await in_one_chunk(5, acked=3, shape=shape)
    report = await queue.collector().collect(NOTHING_KEPT, full=True)
    assert (report.floor_sequence, report.floor_lsn) == (3, 4)
    assert (report.batches_expired, report.bytes_expired, report.failed) == (3, 30, 0)
    assert (report.kept_retained, report.kept_pending) == (0, 2)
    assert await uploads(queue) == ids[3:]
    assert await chunk_numbers(queue) == [1]
    assert len((await queue.chunk(1)).entries) == 5
    # The producer's batches are told by the chunk, also those that are gone.
    assert (await queue.appender().open()).producer_sequence == 5
    await (await queue.taken()).dequeue(4)
    report = await queue.collector().collect(NOTHING_KEPT, full=True)
    assert (report.floor_sequence, report.batches_expired) == (5, 2)
    assert await uploads(queue) == []
    assert (await queue.appender().open()).producer_sequence == 5


@shapes
@virtual
async def test_what_the_floor_passed_within_a_chunk_is_trimmed_for_everybody(
    shape: type[MemoryBackend],
) -> None:
    queue, _ = await in_one_chunk(5, acked=3, shape=shape)
    behind = queue.queue_reader()
    assert len(await behind.after(None, 2)) == 2
    await queue.collector().collect(NOTHING_KEPT)
    queue_reader = queue.queue_reader()
    assert [one.sequence for one in await queue_reader.after(None, 10)] == [3, 4]
    assert [one.sequence for one in await queue_reader.after(2, 10)] == [3, 4]
    assert await queue_reader.sequence_at_lsn(4) == 3
    assert await at_time(queue_reader, 0) == 3
    with pytest.raises(BatchTrimmed) as trimmed:
        await queue_reader.after(1, 10)
    assert trimmed.value.floor_sequence == 3
    with pytest.raises(Trimmed):
        await queue_reader.sequence_at_lsn(3)
    with pytest.raises(Trimmed):
        await queue.queue_consumer().open("g", last_acked_sequence=1)
    await runtime.sleep(limits.FLOOR_LEASE_S)
    with pytest.raises(BatchTrimmed) as trimmed:
        await read_on(behind, 1)
    assert trimmed.value.floor_sequence == 3


@virtual
async def test_chunks_go_though_the_floor_rises_in_every_pass() -> None:
    queue, _ = await a_queue(2, acked=2)
    appender, collector = await queue.opened(), queue.collector()
    left = []
    for sequence in range(3, 30):
        await appender.append([await queue.upload(appender, sequence)])
        await (await queue.taken()).dequeue(sequence - 2)
        await runtime.sleep(10)
        report = await collector.collect(NOTHING_KEPT)
        assert report.floor_sequence == sequence - 1
        left.append(await chunk_numbers(queue))
    assert left[5][0] == 0
    assert left[-1] == [(await queue.chunks.floors()).chunk_floor]


@virtual
async def test_a_batch_that_a_dead_collector_left_below_the_floor_goes_in_a_full_pass() -> None:
    queue, ids = await in_one_chunk(3, acked=2)
    await queue.collector().collect(FOREVER, full=True)
    backend, store = client(queue)
    backend.on("delete", ids[0], fails(Unavailable("503")))
    assert (await queue.collector(store=store).collect(NOTHING_KEPT)).failed == 1
    assert await uploads(queue) == [ids[0], ids[2]]
    await queue.collector().collect(NOTHING_KEPT, full=True)
    assert await uploads(queue) == ids[2:]


@virtual
async def test_what_is_acknowledged_stays_for_the_retention() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    for sequence, hours in enumerate((5, 4, 1), start=1):
        await appender.append([batch(sequence, min_ms=runtime.wall_ms())])
        await runtime.sleep(hours * 3600)
    await acknowledge_everything(queue)
    for hours, floor in ((11, 0), (6, 1), (2, 2)):
        report = await queue.collector().collect(Retention(hours * HOUR_MS))
        assert report.floor_sequence == floor
    assert (await queue.collector().collect(Retention(None))).floor_sequence == 2
    await runtime.sleep(3600)
    assert (await queue.collector().collect(Retention(2 * HOUR_MS))).floor_sequence == 3


@pytest.mark.parametrize(("off_ms", "early"), [(0, 0), (365 * DAY_MS, 0), (-30 * DAY_MS, 1)])
@virtual
async def test_no_producers_clock_decides_how_long_batches_stay(off_ms: int, early: int) -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    for sequence in range(1, 11):
        await appender.append([batch(sequence, min_ms=runtime.wall_ms() + off_ms)])
        await queue.close_last(appender)
        await runtime.sleep(24 * 3600)
    await acknowledge_everything(queue)
    week = Retention(7 * DAY_MS + HOUR_MS)
    # A chunk was written a day. A late clock is believed as far back as the chunk before.
    assert (await queue.collector().collect(week)).floor_sequence == 3 + early
    # Also in the chunk after one that is deleted.
    await runtime.sleep(limits.FLOOR_SETTLE_S + 10)
    assert (await queue.collector().collect(week, full=True)).floor_sequence == 3 + early
    await runtime.sleep(24 * 3600)
    assert (await queue.collector().collect(week)).floor_sequence == 4 + early


@virtual
async def test_a_chunk_that_a_clock_ahead_holds_up_is_closed() -> None:
    queue = await Queue().create()
    wrong, right = await queue.opened("wrong"), await queue.opened("right")
    await wrong.append([batch(1, min_ms=runtime.wall_ms() + 365 * DAY_MS)])
    floors = []
    for sequence in range(1, 25):
        await runtime.sleep(24 * 3600)
        await right._tail.find()
        await right.append([batch(sequence, min_ms=runtime.wall_ms())])
        await acknowledge_everything(queue)
        report = await queue.collector().collect(Retention(7 * DAY_MS))
        floors.append(report.floor_sequence)
    assert floors[7] == 0
    assert floors[-1] > 10


@virtual
async def test_the_newest_bytes_are_kept() -> None:
    queue, _ = await a_queue(10, acked=10)
    assert (await queue.collector().collect(Retention(None, 1000))).floor_sequence == 0
    assert (await queue.collector().collect(Retention(None, 30))).floor_sequence == 7
    assert (await queue.collector().collect(Retention(HOUR_MS * 10**5, 30))).floor_sequence == 7


@virtual
async def test_a_pass_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GC_CHUNKS", 20)
    monkeypatch.setattr(limits, "GC_PARALLEL", 4)
    queue, _ = await a_queue(50, acked=50)
    floors = [(await queue.collector().collect(NOTHING_KEPT)).floor_sequence for _ in range(4)]
    assert floors[0] < 30
    assert floors[-1] == 50


@virtual
async def test_a_pass_that_left_something_behind_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GC_CHUNKS", 2)
    monkeypatch.setattr(limits, "GC_PARALLEL", 1)
    queue, _ = await a_queue(5, acked=5)
    collector = queue.collector()
    passes = [await collector.collect(NOTHING_KEPT) for _ in range(3)]
    assert [report.is_cut_short for report in passes] == [True, True, False]
    assert [report.kept_retained for report in passes] == [4, 2, 0]
    # Chunks go once the floor has settled, and some at a time as well.
    monkeypatch.setattr(limits, "GC_LISTED", 4)
    passes = []
    for _ in range(2):
        await runtime.sleep(limits.FLOOR_SETTLE_S)
        passes.append(await collector.collect(NOTHING_KEPT))
    assert [report.chunks_expired for report in passes] == [2, 4]
    assert [report.is_cut_short for report in passes] == [False, True]
    report = await collector.collect(NOTHING_KEPT)
    assert (report.chunks_expired, report.is_cut_short) == (0, False)


@virtual
async def test_what_cannot_be_deleted_does_not_bring_the_next_pass_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue, _ = await a_queue(5, acked=5)
    backend, store = client(queue)
    collector = queue.collector(store=store)
    await collector.collect(NOTHING_KEPT)
    await runtime.sleep(limits.FLOOR_SETTLE_S)
    monkeypatch.setattr(limits, "GC_LISTED", 2)
    backend.on("delete", "chunks/", fails(Denied("not yours")))
    report = await collector.collect(NOTHING_KEPT)
    assert (report.failed, report.is_cut_short) == (1, False)


@virtual
async def test_marks_then_the_floor_then_batches_and_later_the_chunks() -> None:
    queue, _ = await a_queue(6, acked=4)
    backend, store = client(queue)
    await queue.collector(store=store).collect(NOTHING_KEPT, full=True)
    steps = [
        (name, key.removeprefix(f"{PREFIX}/").split("/")[0], at_s)
        for (name, key), at_s in zip(backend.calls, backend.at_s, strict=True)
        if name not in ("get", "head", "list")
    ]
    order = [(name, part) for name, part, _ in steps]
    folded = order.index(("put_if_unchanged", "producers"))
    raised = order.index(("put_if_unchanged", "queue.json"))
    batch_gone = order.index(("delete", "batches"))
    chunk_gone = order.index(("delete", "chunks"))
    assert folded < raised < batch_gone < chunk_gone
    assert steps[chunk_gone][2] - steps[raised][2] >= limits.FLOOR_SETTLE_S


@virtual
async def test_while_a_mark_cannot_be_folded_the_floor_stays() -> None:
    queue, ids = await a_queue(3, acked=3)
    backend, store = client(queue)
    backend.on("put_if_unchanged", "producers/", fails(Denied("403 AccessDenied")))
    with pytest.raises(HeadwaterError):
        await queue.collector(store=store).collect(NOTHING_KEPT)
    assert (await queue.chunks.floors()).chunk_floor == 0
    assert await uploads(queue) == ids


@virtual
async def test_a_delete_that_fails_is_counted_and_met_again() -> None:
    queue, _ = await a_queue(4, acked=4)
    backend, store = client(queue)
    backend.on("delete", "batches/", fails(Unavailable("503")))
    report = await queue.collector(store=store).collect(Retention(0, grace_ms=HOUR_MS))
    assert (report.failed, report.batches_expired) == (1, 3)
    assert len(await uploads(queue)) == 1
    await queue.collector().collect(NOTHING_KEPT, full=True)
    assert await uploads(queue) == []


@virtual
async def test_what_is_not_ours_is_left_alone() -> None:
    queue, _ = await a_queue(2, acked=2)
    foreign = [
        f"{PREFIX}/batches/README.txt",
        f"{PREFIX}/batches/{ulid_at(AT_MS).lower()}",
        f"{PREFIX}/batches/{ulid_at(AT_MS)}.bak",
        f"{PREFIX}/batches/sub/{ulid_at(AT_MS)}",
        f"{PREFIX}/chunks/0",
        f"{PREFIX}/chunks/notes/{0:020d}",
        f"{PREFIX}2/batches/{ulid_at(AT_MS)}",
        f"{PREFIX}2/chunks/{0:020d}",
    ]
    for key in foreign:
        await queue.store.put(key, b"somebody's")
    report = await queue.collector().collect(NOTHING_KEPT, full=True)
    assert (report.batches_expired, report.batches_orphaned) == (2, 0)
    left = [meta.key async for meta in queue.store.list()]
    assert set(foreign) <= set(left)


@shapes
@virtual
async def test_collectors_that_run_at_once_do_it_once(shape: type[MemoryBackend]) -> None:
    queue, ids = await a_queue(12, acked=8, shape=shape)
    appender = await queue.opened("q")
    for _ in range(5):
        await queue.upload(appender, 1)
    await runtime.sleep(1.0)
    clients = [client(queue, latency_s=0.01 * (1 + number)) for number in range(4)]
    reports = await asyncio.gather(
        *(queue.collector(store=store).collect(NOTHING_KEPT, full=True) for _, store in clients)
    )
    assert {report.floor_sequence for report in reports} == {8}
    assert sum(report.batches_expired for report in reports) == 8
    assert await uploads(queue) == ids[8:]
    assert (await chunk_numbers(queue))[0] == (await queue.chunks.floors()).chunk_floor
    assert [sequence for _, sequence in await queue.entries()] == [9, 10, 11, 12]
    assert (await queue.appender().open()).producer_sequence == 12


@virtual
async def test_a_slow_collector_takes_no_floor_back() -> None:
    queue, ids = await a_queue(8, acked=2)
    backend, store = client(queue)

    async def another_comes_further() -> None:
        await (await queue.taken()).dequeue(5)
        await queue.collector().collect(NOTHING_KEPT)

    backend.on("put_if_unchanged", "queue.json", after(another_comes_further))
    report = await queue.collector(store=store).collect(NOTHING_KEPT)
    assert (report.floor_sequence, report.batches_expired) == (6, 0)
    assert await uploads(queue) == ids[6:]
    assert [one.sequence for one in await queue.queue_reader().after(None, 10)] == [6, 7]
