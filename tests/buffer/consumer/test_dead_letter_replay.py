"""A dead letter whose batch can be read again: read, replayed exactly once, and dropped."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from headwater.buffer.consumer import (
    Consumer,
    DeadLetter,
    ReplayedLetter,
    UnreadableBatch,
    drop_dead_letter,
    fetch_dead_letter,
    list_dead_letters,
    read,
    replay_dead_letter,
)
from headwater.buffer.partitioner import partition_keys
from headwater.buffer.producer import Producer
from headwater.buffer.stream import Stream, create_stream
from headwater.core import runtime
from headwater.core.errors import HeadwaterError, Refused, RolledBack
from headwater.store import MemoryBackend, Store
from tests.buffer.consumer.given import produce, rows_of
from tests.buffer.stream.test_crash import LANDS
from tests.buffer.test_copying import CutOff
from tests.buffer.transaction.given import DAY_S, collect, let_pass
from tests.store.scripted import LOST, Scripted, lands_then, virtual

TIME = datetime(2026, 1, 31, 8, tzinfo=UTC)


async def values_of(stream: Stream) -> list[bytes]:
    async with read(stream, on_bad_batch="skip") as reader:
        return [row["_value"] for row in await rows_of(reader)]


class LostBatch:
    """A stream with three batches, of which the second has a dead letter; its bytes are kept."""

    def __init__(self, stream: Stream, letter: DeadLetter, data: bytes) -> None:
        self.stream = stream
        self.letter = letter
        self._data = data

    @classmethod
    async def given(
        cls, backend: MemoryBackend | Scripted | None = None, *, format: str = "native"
    ) -> LostBatch:
        store = Store(backend or MemoryBackend(versions_by_content=True))
        stream = await create_stream(store, "orders", format=format, retention="forever")
        await produce(stream, [b"1", b"2"], [b"3", b"4"], [b"5"])
        return await cls.of(stream, 1)

    @classmethod
    async def of(cls, stream: Stream, sequence: int, partition: int = 0) -> LostBatch:
        """Lose this batch, and let a consumer write its letter."""
        (batch,) = await stream.queue_reader(partition).after(sequence - 1, 1)
        data = bytes((await stream.store.get(batch.location)).data)
        await stream.store.delete(batch.location)
        async with await Consumer.open(
            stream, partition=partition, gc=False, on_bad_batch="dead_letter"
        ) as consumer:
            for _ in range(sequence + 1):
                await consumer.next_batch()
        (letter,) = await list_dead_letters(stream, partition=partition)
        return cls(stream, letter, data)

    async def restore(self) -> None:
        await self.stream.store.put(self.letter.location, self._data)


@virtual
async def test_a_restored_batch_is_read_with_the_lsns_that_it_had() -> None:
    lost = await LostBatch.given()
    with pytest.raises(UnreadableBatch, match="NotFound"):
        await fetch_dead_letter(lost.stream, lost.letter)
    await lost.restore()
    batch = await fetch_dead_letter(lost.stream, lost.letter)
    assert (batch.entries, batch.lsns.to_pylist()) == ([b"3", b"4"], [3, 4])


@virtual
async def test_it_is_replayed_at_the_end_once_however_often() -> None:
    lost = await LostBatch.given()
    await lost.restore()
    first = await replay_dead_letter(lost.stream, lost.letter)
    again = await replay_dead_letter(lost.stream, lost.letter)
    assert (first.records, first.is_repeated) == (2, False)
    assert again == ReplayedLetter(lost.letter, "orders", 0, True)
    assert await values_of(lost.stream) == [b"1", b"2", b"3", b"4", b"5", b"3", b"4"]


@virtual
async def test_a_batch_that_is_still_missing_is_not_replayed() -> None:
    lost = await LostBatch.given()
    with pytest.raises(UnreadableBatch):
        await replay_dead_letter(lost.stream, lost.letter)
    assert await values_of(lost.stream) == [b"1", b"2", b"5"]
    await lost.restore()
    assert (await replay_dead_letter(lost.stream, lost.letter)).records == 2


@virtual
async def test_a_repeated_replay_needs_no_object() -> None:
    lost = await LostBatch.given()
    await lost.restore()
    await replay_dead_letter(lost.stream, lost.letter)
    await lost.stream.store.delete(lost.letter.location)
    assert (await replay_dead_letter(lost.stream, lost.letter)).is_repeated


@virtual
async def test_it_is_replayed_once_also_when_its_producer_was_forgotten() -> None:
    lost = await LostBatch.given()
    await lost.restore()
    await replay_dead_letter(lost.stream, lost.letter)
    for _ in range(3):
        await let_pass(8 * DAY_S)
        await collect(lost.stream)
    assert (await replay_dead_letter(lost.stream, lost.letter)).is_repeated
    assert (await values_of(lost.stream)).count(b"3") == 2


@virtual
async def test_of_replays_at_the_same_time_one_appends() -> None:
    lost = await LostBatch.given()
    await lost.restore()
    done = await asyncio.gather(*(replay_dead_letter(lost.stream, lost.letter) for _ in range(3)))
    assert sorted(one.records for one in done) == [0, 0, 2]
    assert await values_of(lost.stream) == [b"1", b"2", b"3", b"4", b"5", b"3", b"4"]


@LANDS
@pytest.mark.parametrize("other", [False, True], ids=["same stream", "other stream"])
def test_a_replay_that_is_cut_off_at_any_request_is_completed_by_the_next_one(
    lands: bool, other: bool
) -> None:
    async def is_cut_off(requests: int) -> bool:
        backend = MemoryBackend(versions_by_content=True)
        lost = await LostBatch.given(backend)
        await lost.restore()
        target = await create_stream(lost.stream.store, "again") if other else lost.stream
        dying = Store(CutOff(backend, requests, lands=lands))
        died = False
        try:
            source = Stream(dying, lost.stream.config)
            await replay_dead_letter(source, lost.letter, into=Stream(dying, target.config))
        except HeadwaterError:
            died = True
        before = [] if other else [b"1", b"2", b"3", b"4", b"5"]
        seen = await values_of(target)
        assert seen in (before, [*before, b"3", b"4"]), requests
        await replay_dead_letter(lost.stream, lost.letter, into=target)
        await replay_dead_letter(lost.stream, lost.letter, into=target)
        assert await values_of(target) == [*before, b"3", b"4"], requests
        return died

    @virtual
    async def run() -> None:
        died = [requests for requests in range(40) if await is_cut_off(requests)]
        assert died
        assert died == list(range(len(died)))
        assert len(died) > 10  # record, queue, object, hold, upload, commit, append
        assert len(died) < 40

    run()


@virtual
async def test_a_commit_whose_answer_was_lost_counts() -> None:
    backend = Scripted(MemoryBackend(versions_by_content=True))
    lost = await LostBatch.given(backend)
    await lost.restore()
    backend.next("put_if_absent", *[lands_then(LOST)] * 3)
    backend.next("put_if_unchanged", *[lands_then(LOST)] * 3)
    await replay_dead_letter(lost.stream, lost.letter)
    assert await values_of(lost.stream) == [b"1", b"2", b"3", b"4", b"5", b"3", b"4"]


# What becomes of keys, times and columns


async def keyed(partitions: int) -> LostBatch:
    store = Store(MemoryBackend(versions_by_content=True))
    stream = await create_stream(store, "orders", partitions=partitions)
    async with Producer(stream, linger_ms=0) as producer:
        await (
            await producer.produce(
                [b"x", None, b"z", b"w"],
                keys=[b"a", b"b", None, b"a"],
                headers=[{"h": b"1"}, None, None, None],
                timestamps=[TIME, None, TIME, TIME],
                operations=["insert", "delete", "update", "insert"],
                partition=partitions - 1,
            )
        )
    ((batch,),) = [await stream.queue_reader(partitions - 1).after(None, 9)]
    assert batch.inline is not None
    # As a batch with an object of its own: an inline one is lost only with its chunk.
    fetched = bytes(batch.inline)
    letter = DeadLetter(
        stream=stream.name,
        stream_id=stream.id,
        partition=partitions - 1,
        sequence=batch.sequence,
        location=batch.location,
        batch_id=batch.batch_id,
        first_lsn=batch.first_lsn,
        last_lsn=batch.last_lsn,
        rows=batch.rows,
        size_bytes=batch.size_bytes,
        min_ms=batch.min_ms,
        max_ms=batch.max_ms,
        producer=batch.producer,
        producer_sequence=batch.producer_sequence,
        cause="Corrupt: damaged",
        found_ms=runtime.wall_ms(),
        token="00",
    )
    return LostBatch(stream, letter, fetched)


COLUMNS = ["_key", "_value", "_headers", "_timestamp", "_operation"]


@virtual
async def test_keys_headers_times_and_operations_are_those_of_the_batch() -> None:
    lost = await keyed(2)
    await let_pass(DAY_S)
    await replay_dead_letter(lost.stream, lost.letter)
    async with read(lost.stream, partition=1, columns=COLUMNS) as reader:
        rows = await rows_of(reader)
    assert rows[:4] == rows[4:]
    assert len(rows) == 8


@virtual
async def test_with_other_partitions_records_go_where_their_keys_belong() -> None:
    lost = await keyed(2)
    target = await create_stream(lost.stream.store, "wide", partitions=5)
    await replay_dead_letter(lost.stream, lost.letter, into=target)
    async with read(target, columns=["_key", "_value", "_partition"]) as reader:
        rows = await rows_of(reader)
    assert len(rows) == 4
    hashed = partition_keys(pa.array([b"a", b"b"], pa.binary()), 5).to_pylist()
    expected = {b"a": hashed[0], b"b": hashed[1], None: 1}
    assert {row["_key"]: row["_partition"] for row in rows} == expected
    assert [row["_value"] for row in rows if row["_key"] == b"a"] == [b"x", b"w"]


@virtual
async def test_typed_columns_are_recorded_in_the_target() -> None:
    store = Store(MemoryBackend(versions_by_content=True))
    stream = await create_stream(store, "orders", schema={"id": "int64", "name": "string"})
    appender_rows = pa.RecordBatch.from_pylist([{"id": 7, "name": "x"}])
    async with Producer(stream, linger_ms=0) as producer:
        await (await producer.produce_arrow(appender_rows))
    ((batch,),) = [await stream.queue_reader(0).after(None, 9)]
    lost = await keyed(1)
    letter = {name: getattr(lost.letter, name) for name in DeadLetter.__struct_fields__} | {
        "stream_id": stream.id,
        "location": batch.location,
        "batch_id": batch.batch_id,
        "rows": 1,
    }
    target = await create_stream(store, "again")
    await replay_dead_letter(stream, DeadLetter(**letter), into=target)
    async with read(target, columns=["id", "name"]) as reader:
        assert await rows_of(reader) == [{"id": 7, "name": "x"}]


@virtual
async def test_records_that_do_not_fit_the_target_are_refused_and_nothing_is_appended() -> None:
    lost = await LostBatch.given()
    await lost.restore()
    target = await create_stream(lost.stream.store, "typed", schema={"id": "int64"})
    with pytest.raises(Refused):
        await replay_dead_letter(lost.stream, lost.letter, into=target)
    assert (await target.queue_reader(0).state()).next_lsn == 1


# The published format


@virtual
async def test_a_published_stream_is_replayed_into_a_native_one() -> None:
    lost = await LostBatch.given(format="v1")
    await lost.restore()
    with pytest.raises(Refused, match="published v1 format"):
        await replay_dead_letter(lost.stream, lost.letter)
    target = await create_stream(lost.stream.store, "native")
    await replay_dead_letter(lost.stream, lost.letter, into=target)
    assert await values_of(target) == [b"3", b"4"]


@virtual
async def test_a_batch_that_was_given_up_uncounted_is_counted_when_it_is_back() -> None:
    lost = await LostBatch.given(format="v1")
    assert lost.letter.rows == 0
    with pytest.raises(UnreadableBatch):
        await fetch_dead_letter(lost.stream, lost.letter)
    await lost.restore()
    assert (await fetch_dead_letter(lost.stream, lost.letter)).entries == [b"3", b"4"]


# Retention, and dropping


@virtual
async def test_a_batch_that_retention_has_passed_is_read_by_its_letter() -> None:
    store = Store(MemoryBackend(versions_by_content=True))
    stream = await create_stream(store, "orders", retention_ms=0)
    await produce(stream, [b"1", b"2"], [b"3", b"4"], [b"5"])
    lost = await LostBatch.of(stream, 1)
    async with await Consumer.open(stream, gc=False, on_bad_batch="dead_letter") as consumer:
        for _ in range(3):
            await consumer.next_batch()
        await consumer.ack_through(2)
    await let_pass(DAY_S)
    await collect(stream)
    assert (await stream.queue_reader(0).state()).floor_sequence > 1
    await lost.restore()
    assert (await replay_dead_letter(stream, lost.letter)).records == 2
    assert await values_of(stream) == [b"3", b"4"]


@virtual
async def test_a_letter_of_another_batch_is_refused() -> None:
    lost = await LostBatch.given()
    fields = {name: getattr(lost.letter, name) for name in DeadLetter.__struct_fields__}
    other = DeadLetter(**fields | {"sequence": 2})
    with pytest.raises(RolledBack, match="the queue says"):
        await replay_dead_letter(lost.stream, other)


@virtual
async def test_a_dropped_letter_is_gone_and_its_replay_is_not_forgotten() -> None:
    lost = await LostBatch.given()
    await lost.restore()
    await replay_dead_letter(lost.stream, lost.letter)
    await drop_dead_letter(lost.stream, lost.letter)
    assert await list_dead_letters(lost.stream) == []
    assert (await replay_dead_letter(lost.stream, lost.letter)).is_repeated


@virtual
async def test_a_published_letter_stays_until_its_batch_is_acknowledged() -> None:
    lost = await LostBatch.given(format="v1")
    with pytest.raises(Refused, match="is not acknowledged"):
        await drop_dead_letter(lost.stream, lost.letter)
    async with await Consumer.open(lost.stream, gc=False, on_bad_batch="dead_letter") as consumer:
        for _ in range(2):
            await consumer.next_batch()
        await consumer.ack_through(1)
    await drop_dead_letter(lost.stream, lost.letter)
    assert await list_dead_letters(lost.stream) == []
