"""What nobody can need any more goes, floor first; nothing else does."""

from __future__ import annotations

import pytest

from headwater.buffer.queue import BelowFloor, Placed, Resumed, Retention
from headwater.buffer.queue.native.chunk import encode_chunk
from headwater.core import limits, runtime
from headwater.core.errors import Fenced
from headwater.core.ids import encode_ulid
from headwater.store import MemoryBackend
from tests.buffer.native.given import AT_MS, NOTHING_KEPT, PREFIX, Cloud, Queue, batch, ulid_at
from tests.store.scripted import virtual

shapes = pytest.mark.parametrize("shape", [MemoryBackend, Cloud])
HOUR_MS = 3_600_000


async def _keys(queue: Queue, folder: str) -> list[str]:
    found = [meta.key async for meta in queue.store.list(f"{PREFIX}/{folder}")]
    return [key.rpartition("/")[2] for key in found]


async def _uploaded(queue: Queue, count: int) -> list[str]:
    """So many batches in objects of their own, one chunk each; their ids."""
    appender, ids = await queue.opened(), []
    for sequence in range(1, count + 1):
        new = await queue.upload(appender, sequence)
        await appender.append([new])
        await queue.close_last(appender)
        ids.append(new.batch_id)
    return ids


@shapes
@virtual
async def test_what_is_acknowledged_and_past_the_retention_goes(
    shape: type[MemoryBackend],
) -> None:
    queue = await Queue(shape(versions_by_content=True)).create()
    ids = await _uploaded(queue, 5)
    taker = await queue.taken()
    await taker.dequeue(2)
    report = await queue.collector().collect(NOTHING_KEPT, full=True)
    assert await _keys(queue, "batches") == ids[3:]
    assert (report.batches_expired, report.bytes_expired) == (3, 30)
    assert (report.floor_sequence, report.floor_lsn, report.kept_pending) == (3, 4, 2)
    assert [one.sequence for one in await taker.after(2, 10)] == [3, 4]


@virtual
async def test_what_nobody_acknowledged_stays_whatever_its_age() -> None:
    queue = await Queue().create()
    ids = await _uploaded(queue, 3)
    await runtime.sleep(1e8)
    await queue.collector().collect(NOTHING_KEPT, full=True)
    assert await _keys(queue, "batches") == ids


@virtual
async def test_what_is_acknowledged_stays_for_the_retention() -> None:
    queue = await Queue().create()
    now_ms = runtime.wall_ms()
    appender = await queue.opened()
    for sequence, age_ms in enumerate((3 * HOUR_MS, 2 * HOUR_MS, 0), start=1):
        await appender.append([batch(sequence, min_ms=now_ms - age_ms, size_bytes=100)])
        await queue.close_last(appender)
    await (await queue.taken()).dequeue(2)
    collector = queue.collector()

    async def floor(retention: Retention) -> int:
        return (await collector.collect(retention)).floor_sequence

    assert await floor(Retention(retention_ms=None)) == 0
    assert await floor(Retention(retention_ms=4 * HOUR_MS)) == 0
    assert await floor(Retention(retention_ms=None, retention_bytes=300)) == 0
    assert await floor(Retention(retention_ms=HOUR_MS * 5 // 2)) == 1
    assert await floor(Retention(retention_ms=None, retention_bytes=100)) == 2
    assert await floor(Retention(retention_ms=0)) == 3


@virtual
async def test_an_upload_that_nobody_appended_goes_after_its_grace_time() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    orphan = await queue.upload(appender, 1)
    grace = Retention(retention_ms=None, grace_ms=60_000)
    report = await queue.collector().collect(grace)
    assert (report.batches_orphaned, await _keys(queue, "batches")) == (0, [orphan.batch_id])
    await runtime.sleep(61.0)
    kept = await queue.upload(appender, 1)
    await appender.append([kept])
    report = await queue.collector().collect(grace)
    assert (report.batches_orphaned, report.bytes_orphaned) == (1, 26)
    assert await _keys(queue, "batches") == [kept.batch_id]
    assert report.batch_floor == orphan.batch_id


@virtual
async def test_the_floor_stays_below_what_somebody_holds() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    ids = [ulid_at(AT_MS + minute * 60_000) for minute in range(4)]
    for batch_id in ids:
        await appender.upload(batch_id, b"x")
    await queue.collector().collect(Retention(0, grace_ms=0, hold_below=ids[2]))
    assert await _keys(queue, "batches") == ids[2:]
    held = batch(1, batch_id=ids[2], inline=None)
    assert await appender.append([held]) == [Placed(0, 1)]


@virtual
async def test_an_upload_that_is_appended_between_the_looks_is_kept() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    new = await queue.upload(appender, 1)
    await runtime.sleep(1.0)
    collector = queue.collector()
    update = collector._chunks.register.update

    async def append_first(change: object) -> object:
        # The orphan has been listed; before the floor is raised, it is appended.
        collector._chunks.register.update = update  # type: ignore[method-assign]
        await appender.append([new])
        return await update(change)  # type: ignore[arg-type]

    collector._chunks.register.update = append_first  # type: ignore[method-assign,assignment]
    report = await collector.collect(NOTHING_KEPT)
    assert (report.batches_orphaned, await _keys(queue, "batches")) == (0, [new.batch_id])
    assert len(await queue.entries()) == 1


@virtual
async def test_many_uploads_go_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GC_LISTED", 2)
    queue = await Queue().create()
    appender, collector = await queue.opened(), queue.collector()
    await collector.collect(NOTHING_KEPT, full=True)
    for sequence in range(1, 6):
        await queue.upload(appender, sequence)
        await runtime.sleep(1.0)
    assert (await collector.collect(NOTHING_KEPT)).batches_orphaned == 5
    assert await _keys(queue, "batches") == []


@virtual
async def test_an_upload_that_came_late_is_found_by_a_full_pass() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    await appender.upload(encode_ulid(9), b"x")
    await queue.collector().collect(NOTHING_KEPT)
    await appender.upload(encode_ulid(5), b"late")
    assert (await queue.collector().collect(NOTHING_KEPT)).batches_orphaned == 0
    assert (await queue.collector().collect(NOTHING_KEPT, full=True)).batches_orphaned == 1
    assert await _keys(queue, "batches") == []


@virtual
async def test_chunks_are_deleted_only_when_the_floor_has_settled() -> None:
    queue = await Queue().create()
    await queue.fill(3)
    await (await queue.taken()).dequeue(2)
    collector = queue.collector()
    assert (await collector.collect(NOTHING_KEPT)).floor_sequence == 3
    before = await _keys(queue, "chunks")
    assert len(before) >= 4
    await runtime.sleep(limits.FLOOR_SETTLE_S / 2)
    await collector.collect(NOTHING_KEPT)
    assert await _keys(queue, "chunks") == before
    await runtime.sleep(limits.FLOOR_SETTLE_S)
    await collector.collect(NOTHING_KEPT)
    assert len(await _keys(queue, "chunks")) == 1


@virtual
async def test_what_a_stalled_writer_left_goes_and_what_it_names_stays() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    new = await queue.upload(appender, 1)
    lost = appender._tail.chunk.written(
        b"t" * 16, owner=appender._marks.owner, batches=[new], closed=True
    )
    await queue.fill(2, "other")
    await (await queue.taken()).dequeue(1)
    await queue.collector().collect(Retention(0), full=True)
    assert await appender.append([new]) == [Placed(2, 3)]
    await queue.store.put(queue.chunks.key(1), encode_chunk(lost))
    await queue.collector().collect(Retention(0), full=True)
    assert not await queue.chunks.exists(1)
    assert await _keys(queue, "batches") == [new.batch_id]


@virtual
async def test_a_mark_outlives_the_chunks_it_was_taken_from() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    await appender.append([batch(1, metadata=b"one"), batch(2, metadata=b"two")])
    await (await queue.taken()).dequeue(1)
    await queue.collector().collect(NOTHING_KEPT, full=True)
    assert await _keys(queue, "chunks") == ["00000000000000000002"]
    assert await queue.appender().open() == Resumed(2, b"two", 1)


@virtual
async def test_nothing_is_folded_from_a_chunk_that_was_never_in_the_queue() -> None:
    queue = await Queue().create()
    stalled = await queue.opened("stalled")
    late = stalled._tail.chunk.written(
        b"t" * 16, owner=stalled._marks.owner, batches=[batch(1)], closed=True
    )
    await queue.fill(3, "other")
    taker = await queue.taken()
    await taker.dequeue(2)
    slow = queue.collector()
    run = slow._chunks.run

    async def stall(first: int, count: int) -> object:
        # Another collector was quicker, and what it deleted is created again by a late request.
        slow._chunks.run = run  # type: ignore[method-assign]
        await queue.collector().collect(NOTHING_KEPT, full=True)
        await queue.store.put(queue.chunks.key(1), encode_chunk(late))
        return await run(1, count)

    slow._chunks.run = stall  # type: ignore[method-assign,assignment]
    await slow.collect(NOTHING_KEPT)
    assert await queue.appender("stalled").open() == Resumed(0, None)


# Producers that were silent for long


async def _expired(queue: Queue, *, passes: int = 3) -> int:
    """Everything read and deleted, and a week gone by; how many producers were forgotten."""
    await runtime.sleep(limits.PRODUCER_EXPIRY_MS / 1000 + 3600)
    forgotten = 0
    for _ in range(passes):
        await queue.fill(1, "lively")
        taker = await queue.taken()
        await taker.dequeue((await queue.looker().state()).next_sequence - 1)
        report = await queue.collector().collect(NOTHING_KEPT, full=True)
        forgotten += report.producers_forgotten
    return forgotten


@virtual
async def test_who_was_silent_for_long_is_closed_and_forgotten() -> None:
    queue = await Queue().create()
    await queue.fill(2, "gone")
    lively = await queue.opened("lively")
    await lively.append([batch(1, min_ms=runtime.wall_ms())])
    assert await _expired(queue, passes=4) == 1
    assert await queue.appender("gone").open() == Resumed(0, None, is_known=False)


@virtual
async def test_who_is_closed_is_refused_before_its_mark_is_dropped() -> None:
    queue = await Queue().create()
    sleeper = await queue.opened("sleeper")
    await sleeper.append([batch(1)])
    assert sleeper._keeping is not None
    sleeper._keeping.cancel()  # its machine stands still
    await _expired(queue, passes=1)
    with pytest.raises(Fenced, match="silent for so long"):
        await sleeper.append([batch(2)])
    assert await queue.appender("sleeper").open() == Resumed(1, None, 0)


@virtual
async def test_who_comes_back_between_closing_and_forgetting_goes_on() -> None:
    queue = await Queue().create()
    await queue.fill(2, "sleeper")
    await _expired(queue, passes=1)
    again = queue.appender("sleeper")
    assert (await again.open()).producer_sequence == 2
    await again.append([batch(3)])
    for _ in range(3):
        await (await queue.taken()).dequeue((await queue.looker().state()).next_sequence - 1)
        await queue.collector().collect(NOTHING_KEPT, full=True)
        await queue.fill(1, "lively")
    assert (await queue.appender("sleeper").open()).producer_sequence == 3


@virtual
async def test_who_is_open_and_idle_stays_known() -> None:
    queue = await Queue().create()
    idle = await queue.opened("idle")
    await idle.append([batch(1)])
    await _expired(queue)
    assert await idle.append([batch(2)])


@virtual
async def test_an_upload_below_the_floor_stays_refused_after_its_marker_is_deleted() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    old = await queue.upload(appender, 1)
    await runtime.sleep(1.0)
    await queue.collector().collect(NOTHING_KEPT)
    await queue.fill(5, "other")
    await (await queue.taken()).dequeue(4)
    await queue.collector().collect(NOTHING_KEPT, full=True)
    await queue.fill(1, "another")
    with pytest.raises(BelowFloor):
        await appender.append([old])
