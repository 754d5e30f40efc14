"""The collector deletes what our consumer acknowledged, after the retention, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headwater.buffer.queue.contract import Collected
from headwater.buffer.queue.retention import Retention
from headwater.buffer.queue.v1.collector import V1Collector
from headwater.buffer.queue.v1.reader import V1Queue
from headwater.core import limits, runtime
from headwater.core.errors import Denied, RolledBack, Unavailable
from headwater.store import MemoryBackend, Store
from headwater.store.local import LocalBackend
from tests.buffer.queue_v1.given import (
    MANIFEST,
    PREFIX,
    QUEUE,
    OtherProducer,
    Queue,
    either,
    memory,
    produce,
    real,
    scripted,
    uploaded,
)
from tests.buffer.queue_v1.test_crash import Died, Dying
from tests.store.scripted import Scripted, after, fails, virtual

HOUR_MS = 3_600_000
AT_ONCE = Retention(0)


async def given(queue: Queue, *ages_ms: int) -> list[str]:
    """A batch of one record for each age; returns where they stand."""
    await queue.made()
    appender = queue.appender()
    for _ in ages_ms:
        await produce(appender, b"x", time_ms=runtime.wall_ms())
    where = [entry.location for entry in (await queue.manifest()).entries]
    for location, age_ms in zip(where, ages_ms, strict=True):
        written(queue, location, runtime.wall_ms() - age_ms)
    return where


def written(queue: Queue, location: str, time_ms: int) -> None:
    """Let the store have written an object at this time."""
    backend = queue.store._backend
    if isinstance(backend, MemoryBackend):
        found = backend._objects[location]
        meta = found.meta._replace(modified_ms=time_ms)
        backend._objects[location] = found._replace(meta=meta)
    else:
        assert isinstance(backend, LocalBackend)
        os.utime(backend._path(location), ns=(time_ms * 10**6, time_ms * 10**6))


async def acknowledged(queue: Queue, *through: int) -> None:
    queue_consumer = await queue.opened()
    for sequence in through:
        await queue_consumer.dequeue(sequence)


async def batches(queue: Queue) -> list[str]:
    return [meta.key async for meta in queue.store.list() if meta.key.endswith(".batch")]


@pytest.mark.parametrize("kind", ["memory", "local"])
@real
async def test_acknowledged_and_past_the_retention_goes(kind: str, tmp_path: Path) -> None:
    queue = either(kind, tmp_path)
    where = await given(queue, 3 * HOUR_MS, 2 * HOUR_MS, 2 * HOUR_MS, HOUR_MS, 9 * HOUR_MS)
    await acknowledged(queue, 2, 3)
    done = await queue.collector().collect(Retention(2 * HOUR_MS))
    assert await batches(queue) == sorted(where[3:])
    assert (done.batches_expired, done.bytes_expired, done.chunks_expired) == (3, 36, 1)
    assert (done.kept_retained, done.kept_pending) == (1, 1)
    assert (done.floor_sequence, done.floor_lsn) == (3, 4)
    state = await queue.queue_reader().state()
    assert (state.floor_sequence, state.floor_lsn) == (3, 4)
    again = await queue.collector().collect(Retention(2 * HOUR_MS))
    assert again == Collected(kept_retained=1, kept_pending=1, floor_sequence=3, floor_lsn=4)


@virtual
async def test_the_floor_may_stand_inside_a_segment() -> None:
    queue = memory()
    where = await given(queue, 2 * HOUR_MS, HOUR_MS)
    await acknowledged(queue, 1)
    done = await queue.collector().collect(Retention(2 * HOUR_MS))
    assert (done.batches_expired, done.chunks_expired, done.floor_sequence) == (1, 0, 1)
    assert [batch.location for batch in await queue.queue_reader().after(None, 9)] == where[1:]
    done = await queue.collector().collect(AT_ONCE)
    assert (done.batches_expired, done.chunks_expired, done.floor_sequence) == (1, 1, 2)
    assert await batches(queue) == []


@virtual
async def test_an_old_batch_behind_a_young_one_waits() -> None:
    queue = memory()
    where = await given(queue, 0, 9 * HOUR_MS)
    await acknowledged(queue, 1)
    done = await queue.collector().collect(Retention(HOUR_MS))
    assert (done.batches_expired, done.kept_retained) == (0, 2)
    assert await batches(queue) == sorted(where)


@pytest.mark.parametrize("off_ms", [-1000 * HOUR_MS, 0, 1000 * HOUR_MS])
@virtual
async def test_no_producers_clock_decides_how_long_batches_stay(off_ms: int) -> None:
    queue = await memory().made()
    await produce(queue.appender(), b"x", time_ms=runtime.wall_ms() + off_ms)
    await acknowledged(queue, 0)
    await runtime.sleep(3600)
    assert (await queue.collector().collect(Retention(2 * HOUR_MS))).batches_expired == 0
    await runtime.sleep(3600)
    assert (await queue.collector().collect(Retention(2 * HOUR_MS))).batches_expired == 1


@virtual
async def test_an_object_that_is_gone_holds_nothing_back() -> None:
    queue = memory()
    where = await given(queue, 0, 3 * HOUR_MS)
    await acknowledged(queue, 1)
    await queue.store.delete(where[0])
    done = await queue.collector().collect(Retention(2 * HOUR_MS))
    assert done.floor_sequence == 2


@virtual
async def test_a_size_to_keep_counts_from_the_newest() -> None:
    queue = memory()
    where = await given(queue, 0, 0, 0)
    await acknowledged(queue, 0, 2)
    done = await queue.collector().collect(Retention(None, retention_bytes=24))
    assert (done.batches_expired, done.kept_retained) == (1, 2)
    assert await batches(queue) == sorted(where[1:])
    done = await queue.collector().collect(Retention(None, retention_bytes=12))
    assert done.batches_expired == 1
    done = await queue.collector().collect(Retention(None))
    assert done.batches_expired == 0


@virtual
async def test_what_nobody_acknowledged_stays_however_old() -> None:
    queue = memory()
    where = await given(queue, 9 * HOUR_MS, 9 * HOUR_MS)
    done = await queue.collector().collect(AT_ONCE, full=True)
    assert done == Collected(kept_pending=2)
    assert await batches(queue) == sorted(where)


@virtual
async def test_what_was_uploaded_and_never_appended_stays() -> None:
    queue = memory()
    await given(queue, 0)
    batch = await uploaded(queue.appender(), b"late", time_ms=0)
    await acknowledged(queue, 0)
    await queue.collector().collect(AT_ONCE, full=True)
    assert await batches(queue) == [f"{PREFIX}/{batch.batch_id}.batch"]


@pytest.mark.parametrize(
    "location",
    [
        "elsewhere/01ARYZ6S41TSV4RRFFQ69G5FAV.batch",
        f"{PREFIX}/nested/01ARYZ6S41TSV4RRFFQ69G5FAV.batch",
        f"{PREFIX}/not-a-ulid.batch",
        f"{PREFIX}2/01ARYZ6S41TSV4RRFFQ69G5FAV.batch",
        f"{PREFIX}/01ARYZ6S41TSV4RRFFQ69G5FAV/000000000000000",
        f"{PREFIX}/01ARYZ6S41TSV4RRFFQ69G5FAV/000000000000000A",
        f"{PREFIX}/01ARYZ6S41TSV4RRFFQ69G5FAV/0000000000000000.batch",
        f"{PREFIX}/01ARYZ6S41TSV4RRFFQ69G5FAV/01ARYZ6S41TSV4RRFFQ69G5FAV/0000000000000000",
        f"{PREFIX}/headwater/0000000000000000",
        f"{PREFIX}2/01ARYZ6S41TSV4RRFFQ69G5FAV/0000000000000000",
        "01ARYZ6S41TSV4RRFFQ69G5FAV/0000000000000000",
    ],
)
@virtual
async def test_what_does_not_stand_where_our_batches_do_is_never_deleted(location: str) -> None:
    queue = await memory().made()
    await OtherProducer(queue).produce(location, b"a")
    await acknowledged(queue, 0)
    done = await queue.collector().collect(AT_ONCE, full=True)
    assert (done.batches_expired, done.floor_sequence, done.batches_left) == (0, 1, 1)
    assert (await queue.collector().collect(AT_ONCE, full=True)).batches_left == 0
    await queue.store.head(location)


@virtual
async def test_batches_named_as_the_go_producer_names_them_go_with_the_retention() -> None:
    queue = await memory().made()
    run = f"{PREFIX}/01ARYZ6S41TSV4RRFFQ69G5FAV"
    where = [f"{run}/{ordinal:016x}" for ordinal in (0, 1, 0xABCDEF)]
    for location in where:
        await OtherProducer(queue).produce(location, b"a", b"b")
    # What nobody appended, or nobody acknowledged, is not looked for by its name.
    await OtherProducer(queue).put(f"{run}/{7:016x}", b"x")
    await acknowledged(queue, 1)
    done = await queue.collector().collect(AT_ONCE, full=True)
    assert (done.batches_expired, done.batches_left, done.floor_lsn) == (2, 0, 5)
    left = [key for key in await queue.keys() if key.startswith(run)]
    assert left == sorted([where[2], f"{run}/{7:016x}"])


@virtual
async def test_a_go_named_batch_that_comes_again_goes_with_the_later_entry() -> None:
    queue = await memory().made()
    location = f"{PREFIX}/01ARYZ6S41TSV4RRFFQ69G5FAV/{0:016x}"
    await OtherProducer(queue).produce(location, b"a")
    await OtherProducer(queue).enqueue(location)
    await acknowledged(queue, 0)
    await queue.collector().collect(AT_ONCE, full=True)
    assert location in await queue.keys()
    await acknowledged(queue, 1)
    await queue.collector().collect(AT_ONCE, full=True)
    assert location not in await queue.keys()


@virtual
async def test_what_is_acknowledged_and_still_in_the_manifest_stays() -> None:
    backend = Dying()
    queue = Queue(Store(backend))
    where = await given(queue, HOUR_MS, HOUR_MS, HOUR_MS)
    queue_consumer = await queue.opened()
    await queue_consumer.dequeue(0)
    backend.writes_left = 2
    with pytest.raises(Died):
        await queue_consumer.dequeue(1)
    backend.writes_left = None
    assert (await queue.side()).sequence == 2
    # Another implementation's consumer would find the entry, and not its batch.
    done = await queue.collector().collect(AT_ONCE)
    assert (done.floor_sequence, done.kept_retained) == (1, 1)
    assert await batches(queue) == sorted(where[1:])
    await queue.opened()
    assert (await queue.collector().collect(AT_ONCE)).floor_sequence == 2


@virtual
async def test_a_batch_that_was_appended_twice_goes_with_the_later_entry() -> None:
    queue = memory()
    (location,) = await given(queue, HOUR_MS)
    await OtherProducer(queue).enqueue(location)
    await acknowledged(queue, 0)
    assert (await queue.collector().collect(AT_ONCE)).batches_expired == 0
    assert await batches(queue) == [location]
    await acknowledged(queue, 1)
    await queue.collector().collect(AT_ONCE)
    assert await batches(queue) == []


@virtual
async def test_the_floor_is_written_before_anything_is_deleted() -> None:
    backend = Dying()
    queue = Queue(Store(backend))
    where = await given(queue, HOUR_MS, HOUR_MS)
    await acknowledged(queue, 1)
    side = f"{PREFIX}/headwater/side.json"
    backend.written.clear()
    segments = await queue.segments()
    for writes in range(4):
        backend.writes_left = writes
        with pytest.raises(Died):
            await queue.collector().collect(AT_ONCE)
        assert not backend.deleted or side in backend.written
        if writes > 1:  # the first one asks the store for the time
            assert (await queue.queue_reader().state()).floor_sequence == 2
    backend.writes_left = None
    done = await queue.collector().collect(AT_ONCE)
    assert await batches(queue) == []
    assert set(backend.deleted) == {*where, segments[1]}
    assert (await queue.side()).swept_sequence == done.floor_sequence == 2


@virtual
async def test_a_collector_with_an_old_look_passes_over_nothing_that_was_pending_then() -> None:
    backend, queue = scripted()
    await given(queue, HOUR_MS, HOUR_MS)
    await acknowledged(queue, 0)

    async def another_comes_further_and_dies() -> None:
        await acknowledged(queue, 1)
        failing = Scripted(backend.inner)
        failing.next("delete", *[fails(Denied("403"))] * 10)
        done = await queue.collector(Store(failing)).collect(AT_ONCE)
        assert (done.floor_sequence, done.failed > 0) == (2, True)

    backend.next("put_if_unchanged", after(another_comes_further_and_dies))
    await queue.collector(Store(backend)).collect(AT_ONCE)
    await queue.collector().collect(AT_ONCE)
    assert await batches(queue) == []


@pytest.mark.parametrize("error", [Unavailable("503"), Denied("403")])
@virtual
async def test_a_delete_that_fails_is_counted_and_tried_again(error: Exception) -> None:
    backend, queue = scripted()
    where = await given(queue, HOUR_MS, HOUR_MS, HOUR_MS)
    await acknowledged(queue, 0, 1, 2)
    collector = queue.collector(Store(backend))
    go_on = [_lands, *[fails(error)] * 10]
    backend.next("delete", *go_on)
    done = await collector.collect(AT_ONCE)
    assert (done.batches_expired, done.failed > 0, done.floor_sequence) == (1, True, 3)
    assert await batches(queue) == sorted(where[1:])
    backend._steps.clear()
    done = await collector.collect(AT_ONCE)
    assert (done.batches_expired, done.failed) == (2, 0)
    assert await batches(queue) == []
    assert not [key for key in await queue.keys() if "/acked/" in key]


async def _lands(apply: object) -> object:
    return await apply()  # type: ignore[operator]


@virtual
async def test_a_pass_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "V1_COLLECT_BATCHES", 2)
    queue = memory()
    await given(queue, HOUR_MS, HOUR_MS, HOUR_MS)
    await acknowledged(queue, 2)
    passes = [await queue.collector().collect(AT_ONCE) for _ in range(3)]
    assert [done.batches_expired for done in passes] == [2, 1, 0]
    assert [done.is_cut_short for done in passes] == [True, False, False]


@virtual
async def test_a_full_pass_removes_a_segment_that_came_late() -> None:
    queue = memory()
    await given(queue, HOUR_MS)
    await acknowledged(queue, 0)
    key = (await queue.segments())[0]
    late = (await queue.store.get(key)).data
    await queue.collector().collect(AT_ONCE)
    await queue.store.put(key, late)
    assert (await queue.collector().collect(AT_ONCE)).chunks_expired == 0
    assert (await queue.collector().collect(AT_ONCE, full=True)).chunks_expired == 1


@virtual
async def test_nothing_is_deleted_from_a_queue_that_went_back() -> None:
    queue = memory()
    where = await given(queue, HOUR_MS)
    await acknowledged(queue, 0)
    await queue.store.put(MANIFEST, bytes(20) + b"\x01\x00")
    with pytest.raises(RolledBack):
        await queue.collector().collect(AT_ONCE)
    assert await batches(queue) == where


@virtual
async def test_two_queues_in_nested_folders_do_not_touch_each_other() -> None:
    store = memory().store
    outer, inner = Queue(store), Queue(store, prefix=f"{PREFIX}/inner")
    await given(outer, HOUR_MS)
    where = await given(inner, HOUR_MS, HOUR_MS)
    await acknowledged(outer, 0)
    await acknowledged(inner, 0)
    await V1Collector(V1Queue(store, PREFIX, QUEUE)).collect(AT_ONCE, full=True)
    assert await batches(inner) == sorted(where)


# The required group


async def dequeued(queue: Queue) -> int:
    """How many batches are out of the manifest."""
    state = await queue.queue_reader().state()
    assert len((await queue.manifest()).entries) == state.pending
    return state.acked_sequence


def required(below_lsn: int, *, retention_ms: int | None = None) -> Retention:
    """The group is at this LSN."""
    return Retention(retention_ms, required_group="billing", below_lsn=below_lsn)


@virtual
async def test_what_the_required_group_has_processed_is_dequeued_and_nothing_else() -> None:
    queue = memory()
    await given(queue, 0, 0, 0)
    for below_lsn, front in ((1, 0), (3, 2), (3, 2), (4, 3)):
        await queue.collector().collect(required(below_lsn))
        assert await dequeued(queue) == front
    assert (await queue.queue_reader().state()).group == "billing"
    assert len(await batches(queue)) == 3  # within the retention


@virtual
async def test_a_batch_that_is_processed_in_part_is_not_dequeued() -> None:
    queue = memory()
    await queue.made()
    appender = queue.appender()
    await produce(appender, b"a", b"b", b"c")
    await produce(appender, b"d")
    await queue.collector().collect(required(3))
    assert await dequeued(queue) == 0
    await queue.collector().collect(required(4))
    assert await dequeued(queue) == 1


@virtual
async def test_what_is_dequeued_for_the_required_group_goes_once_it_is_past_the_retention() -> None:
    queue = memory()
    where = await given(queue, 2 * HOUR_MS, 2 * HOUR_MS, 0)
    done = await queue.collector().collect(required(3, retention_ms=HOUR_MS))
    assert (done.batches_expired, done.kept_pending) == (2, 1)
    assert await batches(queue) == where[2:]


@virtual
async def test_without_a_required_group_nothing_is_dequeued_or_deleted() -> None:
    queue = memory()
    where = await given(queue, 2 * HOUR_MS, 2 * HOUR_MS)
    await queue.collector().collect(AT_ONCE)
    assert await dequeued(queue) == 0
    assert await batches(queue) == where


@virtual
async def test_two_collectors_that_dequeue_take_turns() -> None:
    queue = memory()
    await given(queue, 0, 0, 0)
    first, second = queue.collector(), queue.collector()
    await first.collect(required(2))
    await second.collect(required(3))
    await first.collect(required(4))  # fenced: the next pass opens again
    await first.collect(required(4))
    assert await dequeued(queue) == 3
