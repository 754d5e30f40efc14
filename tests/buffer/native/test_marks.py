"""A mark only rises, and no producer's record is taken from whoever lives under its id."""

from __future__ import annotations

import msgspec
import pytest

from headwater.buffer.queue.contract import ProducerState
from headwater.buffer.queue.native.chunk import LatestTimes
from headwater.buffer.queue.native.chunk_log import ChunkLog
from headwater.buffer.queue.native.producers import (
    SILENT_LOOKS,
    Mark,
    ProducerRecord,
    ProducerRegistration,
    ProducerShard,
    fold_marks,
    shard_name,
)
from headwater.core import limits, runtime
from tests.buffer.native.given import NOTHING_KEPT, PREFIX, QUEUE, Queue, batch
from tests.buffer.native.watched import acknowledge_everything, client
from tests.store.scripted import after, virtual

EXPIRY_S = limits.PRODUCER_EXPIRY_MS / 1000


@virtual
async def test_a_mark_that_is_renewed_late_takes_nothing_back() -> None:
    queue = await Queue().create()
    marks = ProducerRegistration(queue.store, PREFIX, "p")
    await marks.open(0)
    later = Mark(5, 9, 10, 3)
    await marks.renew(later)
    await marks.renew(Mark(4, 7, 8, 2))
    assert await marks.read() == later


def test_what_an_earlier_life_appended_is_not_folded_into_a_later_one() -> None:
    reopened = ProducerShard({"p": ProducerRecord("2", anchor=7, anchor_ms=0)})
    assert fold_marks(reopened, {"p": Mark(5, 9, 10, 6)}) == reopened
    assert fold_marks(reopened, {"p": Mark(1, 9, 10, 7)}).producers["p"].mark == Mark(1, 9, 10, 7)


@virtual
async def test_a_batch_that_is_folded_while_it_is_looked_for_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And where it stood, a stalled writer left a chunk in which it is not."""
    monkeypatch.setattr("headwater.buffer.queue.native.producers.READ_AHEAD", 1)
    queue = await Queue().create()
    await queue.fill(1, "p")
    await queue.fill(2, "other")
    stale = msgspec.structs.replace(await queue.chunk(2), number=1)
    backend, store = client(queue)
    marks = ProducerRegistration(store, PREFIX, "p")
    shard = await queue.store.get(f"{PREFIX}/producers/{shard_name('p')}.json")
    assert b'"mark":null' in bytes(shard.data)
    before = await marks.open(0)

    async def collected() -> None:
        await acknowledge_everything(queue)
        await queue.collector().collect(NOTHING_KEPT, full=True)
        for number in range(4):
            newest = (LatestTimes(),) * number.bit_count()
            ghost = msgspec.structs.replace(stale, number=number, newest_before=newest)
            await queue.put_chunks([ghost])

    backend.on("get", "chunks/", after(collected))
    found = await marks.last_accepted(ChunkLog(store, PREFIX, QUEUE), before, 3)
    assert found is not None
    assert found.producer_sequence == 1


async def _fallen_silent(queue: Queue) -> None:
    """A producer of which nothing is kept, and that the next pass closes."""
    await queue.fill(1, "sleeper")
    await acknowledge_everything(queue)
    for _ in range(SILENT_LOOKS):
        await queue.collector().collect(NOTHING_KEPT)
        await runtime.sleep(EXPIRY_S / SILENT_LOOKS + 600)


@virtual
async def test_a_producer_is_known_while_the_chunk_that_closed_it_is_kept() -> None:
    queue = await Queue().create()
    await _fallen_silent(queue)
    for _ in range(3):
        report = await queue.collector().collect(NOTHING_KEPT)
        assert report.producers_forgotten == 0
    assert await queue.appender("sleeper").open() == ProducerState(1, None, 0)


@pytest.mark.parametrize("writes_before", [0, 1, 2])
@virtual
async def test_who_opens_again_while_it_is_closed_stays(writes_before: int) -> None:
    queue = await Queue().create()
    await _fallen_silent(queue)
    again = queue.appender("sleeper")
    backend, store = client(queue)

    async def nothing() -> None:
        pass

    async def opens() -> None:
        assert (await again.open()).producer_sequence == 1

    record = f"producers/{shard_name('sleeper')}"
    for _ in range(writes_before):
        backend.on("put_if_unchanged", record, after(nothing))
    backend.on("put_if_unchanged", record, after(opens))
    await queue.collector(store=store).collect(NOTHING_KEPT)
    await again.append([batch(2, min_ms=runtime.wall_ms())])
    for _ in range(3):
        await queue.fill(1, "lively")
        await acknowledge_everything(queue)
        await queue.collector().collect(NOTHING_KEPT, full=True)
    await again.append([batch(3, min_ms=runtime.wall_ms())])
    assert (await queue.appender("sleeper").open()).producer_sequence == 3
