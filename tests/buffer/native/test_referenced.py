"""What chunks refer to is kept in mind within bounds, and an error only ever keeps an upload."""

from __future__ import annotations

import pytest

from headwater.buffer.queue.native.chunk import ProducerIncarnation
from headwater.buffer.queue.native.orphans import ReferencedIds
from headwater.buffer.queue.retention import Retention
from headwater.core import limits, runtime
from headwater.core.runtime import encode_ulid
from tests.buffer.native.collected import FOREVER, uploads
from tests.buffer.native.given import Queue, batch
from tests.buffer.native.watched import client
from tests.store.scripted import virtual

KIB = 1024


def _ids(count: int, start: int = 0) -> list[str]:
    return [encode_ulid(number << 40) for number in range(start, start + count)]


@virtual
async def test_an_id_that_was_added_is_always_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GC_REFERENCED", 10)
    monkeypatch.setattr(limits, "GC_FILTER_BYTES", 2 * KIB)
    referenced, ids = ReferencedIds(), _ids(1000)
    for first in range(0, 1000, 7):
        referenced.add(ids[first : first + 7])
    assert all(one in referenced for one in ids)
    assert set(referenced.newest()) <= set(ids)
    assert 10 <= len(referenced.newest()) <= 20
    assert referenced.blurred_through < referenced.newest()[0]


@virtual
async def test_few_ids_are_taken_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GC_REFERENCED", 10)
    monkeypatch.setattr(limits, "GC_FILTER_BYTES", 2 * KIB)
    referenced = ReferencedIds()
    referenced.add(_ids(1600))
    others = [encode_ulid((number << 40) + 1) for number in range(1500)]
    assert sum(one in referenced for one in others) < 1500 / 20


async def _retained(queue: Queue, count: int) -> list[str]:
    """So many batches in objects of their own, all of them referred to."""
    last, owner, ids = await queue.chunk(0), ProducerIncarnation("p", "1"), _ids(count, start=1)
    for first in range(0, count, 25):
        group = [
            batch(first + place + 1, batch_id=batch_id, inline=None)
            for place, batch_id in enumerate(ids[first : first + 25])
        ]
        for one in group:
            await queue.store.put(queue.chunks.batch_key(one.batch_id), b"x")
        last = last.written(runtime.new_token(), owner=owner, batches=group, closed=True)
        await queue.put_chunks([last])
    return ids


@virtual
async def test_a_full_pass_keeps_in_mind_and_lists_no_more_than_its_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "GC_REFERENCED", 20)
    monkeypatch.setattr(limits, "GC_FILTER_BYTES", 2 * KIB)
    monkeypatch.setattr(limits, "GC_LISTED", 50)
    queue = await Queue().create()
    ids = await _retained(queue, 500)
    appender = await queue.opened("q")
    for number in (100, 300, 499):
        await queue.upload(appender, 1, batch_id=encode_ulid((number << 40) + 1))
    await runtime.sleep(1.0)
    kept: list[int] = []
    newest = ReferencedIds.newest

    def counted(referenced: ReferencedIds) -> list[str]:
        kept.append(len(newest(referenced)))
        return newest(referenced)

    monkeypatch.setattr(ReferencedIds, "newest", counted)
    backend, store = client(queue)
    report = await queue.collector(store=store).collect(FOREVER, full=True)
    assert max(kept) <= 40
    listings = [key for name, key in backend.calls if name == "list" and "/batches" in key]
    assert len(listings) == 503 // 50 + 1
    assert report.batches_orphaned == 3
    assert await uploads(queue) == ids
    # It is remembered how far it came: the next one goes on from there.
    backend.calls.clear()
    await queue.collector(store=store).collect(FOREVER)
    listings = [key for name, key in backend.calls if name == "list" and "/batches" in key]
    assert [key.rpartition("/")[2] for key in listings] == [ids[-1]]


@virtual
async def test_what_is_not_kept_in_mind_while_somebody_holds_the_floor_is_not_deleted_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "GC_REFERENCED", 20)
    monkeypatch.setattr(limits, "GC_FILTER_BYTES", 2 * KIB)
    queue = await Queue().create()
    ids = await _retained(queue, 200)
    await queue.collector().collect(Retention(None, grace_ms=0, hold_below=ids[50]))
    await queue.collector().collect(Retention(None, grace_ms=0, hold_below=ids[60]))
    report = await queue.collector().collect(FOREVER)
    assert report.batches_orphaned == 0
    assert await uploads(queue) == ids
