"""An upload that nobody appended goes after its grace, and none that somebody appends does."""

from __future__ import annotations

import pytest

from headwater.buffer.queue.contract import AppendedBatch, BelowFloor
from headwater.buffer.queue.native.chunk_log import CollectorRecord
from headwater.buffer.queue.retention import Retention
from headwater.core import limits, runtime
from headwater.store import Register
from tests.buffer.native.collected import FOREVER, HOUR_MS, a_queue, uploads
from tests.buffer.native.given import AT_MS, NOTHING_KEPT, PREFIX, Queue, batch, ulid_at
from tests.buffer.native.watched import client
from tests.store.scripted import after, virtual


@virtual
async def test_an_upload_that_nobody_appended_goes_after_its_grace() -> None:
    queue, ids = await a_queue(2)
    appender = await queue.opened("q")
    orphan = await queue.upload(appender, 1)
    retention = Retention(None, grace_ms=HOUR_MS)
    assert (await queue.collector().collect(retention, full=True)).batches_orphaned == 0
    await runtime.sleep(3601)
    young = await queue.upload(appender, 1)
    report = await queue.collector().collect(retention)
    assert (report.batches_orphaned, report.bytes_orphaned) == (1, 26)
    assert orphan.batch_id <= report.batch_floor < young.batch_id
    assert await uploads(queue) == [*ids, young.batch_id]


@virtual
async def test_an_upload_that_somebody_holds_stays() -> None:
    queue, ids = await a_queue(1)
    appender = await queue.opened("q")
    below, held, above = [(await queue.upload(appender, 1)).batch_id for _ in range(3)]
    await runtime.sleep(1.0)
    holding = Retention(None, grace_ms=0, hold_below=held)
    report = await queue.collector().collect(holding, full=True)
    assert (report.batches_orphaned, report.batch_floor) == (1, below)
    assert await uploads(queue) == [*ids, held, above]
    assert await appender.append([batch(1, batch_id=held, inline=None)]) == [AppendedBatch(1, 2)]
    assert (await queue.collector().collect(FOREVER, full=True)).batches_orphaned == 1


@pytest.mark.parametrize("moment", ["queue.json", "chunks/"])
@virtual
async def test_an_upload_appended_while_the_floor_is_raised_stays(moment: str) -> None:
    queue, _ = await a_queue(1)
    appender = await queue.opened("q")
    await appender.append([batch(1)])
    doomed, appended = await queue.upload(appender, 2), await queue.upload(appender, 2)
    await runtime.sleep(1.0)
    backend, store = client(queue)
    # The collector has seen that nobody appended it; the queue does not yet tell the floor.
    backend.on("put_if_unchanged", moment, after(lambda: appender.append([appended])))
    report = await queue.collector(store=store).collect(FOREVER, full=True)
    assert report.batches_orphaned == 1
    assert appended.batch_id in await uploads(queue)
    assert doomed.batch_id not in await uploads(queue)
    assert (await queue.queue_reader().after(None, 10))[-1].batch_id == appended.batch_id


@virtual
async def test_whoever_appends_behind_the_marker_is_refused_before_anything_is_deleted() -> None:
    queue, _ = await a_queue(1)
    appender = await queue.opened("q")
    await appender.append([batch(1)])
    late = await queue.upload(appender, 2)
    await runtime.sleep(1.0)
    backend, store = client(queue)
    refused: list[str] = []

    async def appends() -> None:
        with pytest.raises(BelowFloor) as error:
            await appender.append([late])
        refused.append(error.value.floor)

    backend.on("delete", "batches/", after(appends))
    await queue.collector(store=store).collect(FOREVER, full=True)
    assert refused == [late.batch_id]


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


@virtual
async def test_an_upload_that_arrives_below_the_floor_is_found_by_a_full_pass() -> None:
    queue, ids = await a_queue(2)
    appender = await queue.opened("q")
    await queue.upload(appender, 1)
    await runtime.sleep(1.0)
    collector = queue.collector()
    await collector.collect(FOREVER, full=True)
    late = await queue.upload(appender, 1, batch_id=ulid_at(AT_MS - HOUR_MS))
    assert (await collector.collect(FOREVER)).batches_orphaned == 0
    assert late.batch_id in await uploads(queue)
    assert (await collector.collect(FOREVER, full=True)).batches_orphaned == 1
    assert await uploads(queue) == ids
    # Once a day every pass is a full one.
    late = await queue.upload(appender, 1, batch_id=ulid_at(AT_MS - HOUR_MS))
    await runtime.sleep(limits.GC_FULL_EVERY_MS / 1000 + 1)
    assert (await queue.collector().collect(FOREVER)).batches_orphaned == 1


@virtual
async def test_what_was_looked_at_is_not_listed_again() -> None:
    queue, ids = await a_queue(30)
    await queue.collector().collect(FOREVER, full=True)
    backend, store = client(queue)
    await queue.collector(store=store).collect(FOREVER)
    listed = [key for name, key in backend.calls if name == "list" and "/batches" in key]
    assert listed
    assert all(key >= f"{PREFIX}/batches/{ids[-1]}" for key in listed)
    read = [key for name, key in backend.calls if name == "get" and "/chunks/" in key]
    assert len(read) <= 2 * limits.GC_PARALLEL + 2


@virtual
async def test_uploads_are_listed_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GC_LISTED", 5)
    queue, ids = await a_queue(7)
    appender = await queue.opened("q")
    for _ in range(23):
        await queue.upload(appender, 1)
    await runtime.sleep(1.0)
    orphaned = 0
    for _ in range(8):
        orphaned += (await queue.collector().collect(FOREVER)).batches_orphaned
    assert orphaned == 23
    assert await uploads(queue) == ids


@virtual
async def test_a_pass_goes_on_while_there_are_more_than_it_lists_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "GC_LISTED", 2)
    queue = await Queue().create()
    appender, collector = await queue.opened(), queue.collector()
    await collector.collect(NOTHING_KEPT, full=True)
    for sequence in range(1, 6):
        await queue.upload(appender, sequence)
        await runtime.sleep(1.0)
    assert (await collector.collect(NOTHING_KEPT)).batches_orphaned == 5
    assert await uploads(queue) == []


@virtual
async def test_a_pass_writes_to_the_last_chunk_once_however_much_it_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One write after another would let no producer come to the chunk."""
    monkeypatch.setattr(limits, "GC_LISTED", 2)
    queue, ids = await a_queue(3)
    appender = await queue.opened("q")
    await appender.append([batch(1)])
    for _ in range(9):
        await queue.upload(appender, 1)
    await runtime.sleep(1.0)
    backend, store = client(queue)
    report = await queue.collector(store=store).collect(FOREVER)
    assert report.batches_orphaned == 9
    assert await uploads(queue) == ids
    writes = [key for name, key in backend.calls if name.startswith("put") and "/chunks/" in key]
    assert len(writes) == 1


@virtual
async def test_a_pass_does_not_run_after_what_is_uploaded_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "GC_LISTED", 2)
    queue = await Queue().create()
    appender = await queue.opened()
    for _ in range(4):
        await queue.upload(appender, 1)
    backend, store = client(queue)

    async def goes_on() -> None:
        await runtime.sleep(1.0)
        await queue.upload(appender, 1)
        backend.on("delete", "batches/", after(goes_on))

    backend.on("delete", "batches/", after(goes_on))
    await runtime.sleep(1.0)
    report = await queue.collector(store=store).collect(FOREVER)
    assert report.batches_orphaned == 4
    assert len(await uploads(queue)) == 2
    # A producer that uploads under an id above the floor is not refused.
    assert await appender.append([await queue.upload(appender, 1)]) == [AppendedBatch(0, 1)]


@virtual
async def test_a_slow_pass_does_not_take_back_how_far_another_came() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    await queue.upload(appender, 1)
    await runtime.sleep(1.0)
    backend, store = client(queue)
    further: list[str] = []

    async def another() -> None:
        await queue.upload(appender, 1)
        await runtime.sleep(1.0)
        further.append((await queue.collector().collect(FOREVER)).batch_floor)

    backend.on("delete", "batches/", after(another))
    await queue.collector(store=store).collect(FOREVER)
    scanned = Register(queue.store, f"{PREFIX}/gc.json", CollectorRecord)
    assert [(await scanned.read()).value.batch_floor] == further
