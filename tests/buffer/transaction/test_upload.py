"""A task's uploads: bounded, in order, and told when something went wrong beside it."""

from __future__ import annotations

import pytest

from headwater.buffer.transaction.commit import TransactionCommitter
from headwater.buffer.transaction.holds import Holder, HoldLost
from headwater.buffer.transaction.upload import IN_FLIGHT, PENDING_BATCHES, Uploader, split
from headwater.core import runtime
from headwater.core.errors import LimitExceeded, Refused
from headwater.store import MemoryBackend, Version
from headwater.store.backend import Condition
from headwater.store.objects import Buffer
from tests.buffer.transaction.given import (
    DAY_S,
    a_stream,
    micro_batch,
    records,
    upload,
    values_of,
)
from tests.store.scripted import virtual


class Counting(MemoryBackend):
    """Counts uploads under way at once, each of which takes a while."""

    def __init__(self) -> None:
        super().__init__(versions_by_content=True)
        self.now = self.most = self.total = 0
        self.refuses = False

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        if "/batches/" not in key:
            return await super().put(key, data, condition)
        self.now += 1
        self.most, self.total = max(self.most, self.now), self.total + 1
        await runtime.sleep(1)
        self.now -= 1
        if self.refuses:
            raise Refused("no")
        return await super().put(key, data, condition)


@virtual
async def test_uploads_go_on_beside_the_task_and_no_more_of_them_than_there_is_room_for() -> None:
    backend = Counting()
    stream, attempt = await a_stream(backend, partitions=1), micro_batch(0)
    uploader = Uploader(stream, attempt, 0, batch_bytes=1)
    for number in range(20):
        await uploader.add(0, records([str(number)]))
    done = await uploader.finish()
    assert (backend.most, backend.total) == (IN_FLIGHT, 20)
    await TransactionCommitter(stream, attempt).commit([done])
    assert await values_of(stream) == [str(number) for number in range(20)]


@virtual
async def test_rows_are_gathered_to_batches_of_the_size_asked_for() -> None:
    stream, attempt = await a_stream(partitions=1), micro_batch(0)
    piece = records(["x" * 100] * 10)
    uploader = Uploader(stream, attempt, 0, batch_bytes=3 * piece.nbytes)
    for _ in range(7):
        await uploader.add(0, piece)
    done = await uploader.finish()
    assert [one.rows for one in done.uploads[0]] == [30, 30, 10]


@virtual
async def test_what_is_gathered_is_bounded_however_many_partitions_there_are() -> None:
    stream, attempt = await a_stream(partitions=64), micro_batch(0)
    piece = records(["x" * 100] * 10)
    uploader = Uploader(stream, attempt, 0, batch_bytes=10 * piece.nbytes)
    for number in range(640):
        await uploader.add(number % 64, piece)
        assert uploader._pending_bytes <= PENDING_BATCHES * 10 * piece.nbytes
    assert (await uploader.finish()).rows == 6400


@virtual
async def test_a_piece_larger_than_a_batch_is_split_down_to_single_records() -> None:
    big = records(["x" * 100] * 9)
    assert [one.num_rows for one in split(big, 300)] == [2, 2, 2, 1, 2]
    assert [one.num_rows for one in split(big, 1)] == [1] * 9
    assert split(records([]), 1) == []


@virtual
async def test_an_upload_that_fails_beside_the_task_fails_the_task() -> None:
    backend = Counting()
    stream = await a_stream(backend, partitions=1)
    backend.refuses = True
    uploader = Uploader(stream, micro_batch(0), 0, batch_bytes=1)
    await uploader.add(0, records(["a"]))
    with pytest.raises(Refused, match="no"):
        await uploader.finish()
    await runtime.sleep(2)
    with pytest.raises(Refused, match="no"):
        await uploader.add(0, records(["b"]))


@virtual
async def test_a_task_whose_hold_is_gone_fails_before_it_has_read_everything() -> None:
    stream, attempt = await a_stream(partitions=1), micro_batch(0)
    uploader = Uploader(stream, attempt, 0, batch_bytes=1)
    await uploader.add(0, records(["a"]))
    await Holder(stream, attempt).drop()
    await runtime.sleep(DAY_S)
    with pytest.raises(HoldLost):
        await uploader.add(0, records(["b"]))


@virtual
async def test_a_cancelled_task_ends_what_it_does_beside() -> None:
    backend = Counting()
    stream = await a_stream(backend, partitions=1)
    uploader = Uploader(stream, micro_batch(0), 0, batch_bytes=1)
    await uploader.add(0, records(["a"]))
    await runtime.sleep(0.5)
    await uploader.cancel()
    assert uploader._renewing is not None
    await runtime.sleep(1)
    assert uploader._renewing.cancelled()
    assert [meta async for meta in stream.store.list("streams") if "/batches/" in meta.key] == []


@virtual
async def test_a_task_without_rows_takes_no_hold() -> None:
    stream = await a_stream()
    done = await upload(stream, micro_batch(0), 3, {})
    assert (done.task, done.hold_token, done.uploads, done.rows) == (3, "", {}, 0)


@virtual
async def test_a_record_above_the_limit_is_refused() -> None:
    stream = await a_stream()
    uploader = Uploader(stream, micro_batch(0), 0)
    with pytest.raises(LimitExceeded, match="RECORD_MAX_BYTES"):
        await uploader.add(0, records(["x" * (16 * 1024 * 1024 + 1)]))


@pytest.mark.parametrize("batch_bytes", [0, 200 * 1024 * 1024])
def test_a_batch_size_that_cannot_be_is_refused(batch_bytes: int) -> None:
    @virtual
    async def history() -> None:
        stream = await a_stream()
        with pytest.raises(Refused, match="batchBytes"):
            Uploader(stream, micro_batch(0), 0, batch_bytes=batch_bytes)

    history()
