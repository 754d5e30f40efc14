"""Positions by time: the first record whose timestamp, or whose ingestion, is that late."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.buffer.consumer import Consumer, UnreadableBatch, lsn_at_time, read
from headwater.buffer.producer import Producer
from headwater.buffer.producer.call import with_column
from headwater.buffer.queue.contract import TimeBy
from headwater.buffer.queue.retention import Retention
from headwater.buffer.records import INGESTED, TIMESTAMP, from_values
from headwater.buffer.stream import Stream, create_stream
from headwater.buffer.transaction.commit import TransactionCommitter
from headwater.buffer.transaction.record import CommitAttempt
from headwater.buffer.transaction.upload import Uploader
from headwater.core import limits, runtime
from headwater.core.errors import Refused
from headwater.store import MemoryBackend, Store
from headwater.testing import simulate
from tests.buffer.consumer.given import rows_of
from tests.store.scripted import virtual

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_US = 2**63 - 1
KINDS: tuple[TimeBy, ...] = ("timestamp", "ingestion")

Times = Sequence[int | None]
"""The timestamps of some records in microseconds; None for one that has none of its own."""


class Write(NamedTuple):
    """Records that are written together."""

    partition: int
    times: Times
    in_transaction: bool = False


async def _write(stream: Stream, write: Write, number: int) -> None:
    values = [b"x"] * len(write.times)
    if not write.in_transaction:
        async with Producer(stream) as producer:
            at = None if set(write.times) == {None} else pa.array(write.times, pa.int64())
            at = None if at is None else at.cast(pa.timestamp("us", "UTC"))
            await producer.produce(values, timestamps=at, partition=write.partition)
        return
    column = pa.array(write.times, pa.int64()).cast(pa.timestamp("us", "UTC"))
    attempt = CommitAttempt.of_version("job", number, f"run {number}")
    uploader = Uploader(stream, attempt, 0)
    await uploader.add(write.partition, with_column(from_values(values), TIMESTAMP, column))
    await TransactionCommitter(stream, attempt).commit([await uploader.finish()])


async def _scanned(stream: Stream, partition: int) -> list[tuple[int, int, int]]:
    """LSN, timestamp and ingestion time of every retained record, in microseconds."""
    reader = await read(stream, partition=partition, columns=["_lsn", TIMESTAMP, INGESTED]).open()
    found: list[tuple[int, int, int]] = []
    async for batch in reader:
        columns = [column.cast(pa.int64()).to_pylist() for column in batch.columns]
        found += zip(*columns, strict=True)
    await reader.close()
    return found


async def _check(stream: Stream, partition: int) -> None:
    """What is found by time is what reading everything finds."""
    records = await _scanned(stream, partition)
    for kind in KINDS:
        times = [(lsn, at[KINDS.index(kind)]) for lsn, *at in records]
        asked_ms = {-(10**30), 0, 10**30, -(LAST_US // 1000), LAST_US // 1000}
        for _, time_us in times:
            asked_ms |= {time_us // 1000, time_us // 1000 + 1}
        for time_ms in asked_ms:
            wanted = next((lsn for lsn, time_us in times if time_us >= time_ms * 1000), None)
            found = await lsn_at_time(stream, partition=partition, time=time_ms, time_by=kind)
            assert found == wanted, (kind, time_ms)


async def _retain_from(stream: Stream, partition: int, sequence: int) -> None:
    """Delete the batches before one."""
    queue_consumer = stream.queue_consumer(partition)
    await queue_consumer.open("readers")
    if sequence:
        await queue_consumer.dequeue(sequence - 1)
        retention = Retention(retention_ms=0, grace_ms=0)
        await stream.collector(partition).collect(retention, full=True)


near = st.integers(-5000, 5000)
stamps = st.none() | near | st.sampled_from([-LAST_US - 1, LAST_US, 2 * 10**15])
writes = st.builds(
    Write, st.integers(0, 1), st.lists(stamps, min_size=1, max_size=4), st.booleans()
)


@given(st.lists(writes, max_size=10), st.data())
@settings(max_examples=60, deadline=None)
def test_the_offset_found_by_time_is_the_one_that_a_scan_finds(
    history: list[Write], data: st.DataObject
) -> None:
    kept_from = [data.draw(st.integers(0, 10)) for _ in range(2)]

    async def run(_: object) -> None:
        stream = await create_stream(Store(MemoryBackend()), "orders", partitions=2)
        for number, write in enumerate(history):
            await _write(stream, write, number)
            await runtime.sleep(0.004)
        for partition in range(2):
            await _check(stream, partition)
            end = (await stream.queue_reader(partition).state()).next_sequence
            await _retain_from(stream, partition, min(kept_from[partition], end))
            await _check(stream, partition)

    # Chunks of two batches: there are several, and the floor lies within one.
    with mock.patch.object(limits, "CHUNK_MAX_ENTRIES", 2):
        simulate(run, stall_max_s=0)


@virtual
async def test_a_time_goes_by_the_timestamps_of_records_and_not_by_their_ingestion() -> None:
    stream = await create_stream(Store(MemoryBackend()), "orders")
    start_ms = runtime.wall_ms()
    async with Producer(stream) as producer:
        for year in (2001, 2003, 2002, 2005):
            await producer.produce([b"a", b"b"], timestamps=datetime(year, 1, 1, tzinfo=UTC))
            await producer.flush()
            await runtime.sleep(1)
    found = [
        await lsn_at_time(stream, time=f"{year}-01-01")
        for year in (2000, 2001, 2002, 2003, 2004, 2005, 2006)
    ]
    assert found == [1, 1, 3, 3, 7, 7, None]
    assert await lsn_at_time(stream, time=start_ms) is None
    assert await lsn_at_time(stream, time=start_ms + 1, time_by="ingestion") == 3
    rows = await rows_of(await read(stream, None, "2002-01-01", "2004-01-01").open())
    assert [row["_lsn"] for row in rows] == [3, 4, 5, 6]
    ingested = datetime.fromtimestamp((start_ms + 1) / 1000, UTC)
    rows = await rows_of(await read(stream, None, ingested, time_by="ingestion").open())
    assert [row["_lsn"] for row in rows] == [3, 4, 5, 6, 7, 8]
    with pytest.raises(Refused, match='"timestamp" or "ingestion"'):
        await lsn_at_time(stream, time=0, time_by="event")  # type: ignore[arg-type]
    with pytest.raises(Refused, match='"timestamp" or "ingestion"'):
        await read(stream, time_by="event").open()  # type: ignore[arg-type]


@virtual
async def test_a_time_is_exact_to_the_microsecond() -> None:
    stream = await create_stream(Store(MemoryBackend()), "orders")
    at = [EPOCH + timedelta(microseconds=us) for us in (-2_001, -1_999, 1, 2)]
    async with Producer(stream) as producer:
        await producer.produce([b"a"] * 4, timestamps=at)
    for lsn, time in enumerate(at, start=1):
        assert await lsn_at_time(stream, time=time) == lsn
        assert await lsn_at_time(stream, time=time.isoformat()) == lsn
        # Between two microseconds, the record of the earlier one comes before it.
        after = await lsn_at_time(stream, time=f"{time:%Y-%m-%dT%H:%M:%S.%f}001")
        assert after == (lsn + 1 if lsn < len(at) else None)
        assert await lsn_at_time(stream, time=f"{time:%Y-%m-%dT%H:%M:%S.%f}000") == lsn
    assert await lsn_at_time(stream, time=at[-1] + timedelta(microseconds=1)) is None


@virtual
async def test_the_time_of_ingestion_is_a_column_on_request_and_is_not_produced_again() -> None:
    stream = await create_stream(Store(MemoryBackend()), "orders")
    at_ms = runtime.wall_ms()
    async with Producer(stream) as producer:
        await producer.produce([b"a"], timestamps=EPOCH)
    reader = await read(stream).open()
    assert INGESTED not in reader.schema.names
    reader = await read(stream, columns=["_value", TIMESTAMP, INGESTED]).open()
    (batch,) = [batch async for batch in reader]
    (row,) = batch.to_pylist()
    ingested = EPOCH + timedelta(milliseconds=at_ms)
    assert row == {"_value": b"a", TIMESTAMP: EPOCH, INGESTED: ingested}
    await runtime.sleep(5)
    async with Producer(stream) as producer:
        await producer.produce_arrow(batch)
    again = await rows_of(await read(stream, None, 2, columns=[TIMESTAMP, INGESTED]).open())
    assert again == [{TIMESTAMP: EPOCH, INGESTED: ingested + timedelta(seconds=5)}]


@virtual
async def test_a_boundary_batch_that_cannot_be_read_is_named_or_passed_over() -> None:
    stream = await create_stream(Store(MemoryBackend()), "orders")
    async with Producer(stream, linger_ms=60_000) as producer:
        for day in (1, 2):
            at = [datetime(2026, 1, day, hour, tzinfo=UTC) for hour in (1, 2)]
            await producer.produce([b"x" * 40_000] * 2, timestamps=at)
            await producer.flush()
    first, second = await stream.queue_reader(0).after(None, 2)
    await stream.store.delete(second.location)
    # No batch is read where the entries tell.
    assert await lsn_at_time(stream, time="2026-01-02T01:00:00Z") == 3
    assert await lsn_at_time(stream, time="2026-01-03") is None
    assert await lsn_at_time(stream, time="2026-01-01T02:00:00Z") == 2
    with pytest.raises(UnreadableBatch, match="batch 1 with LSNs 3–4"):
        await lsn_at_time(stream, time="2026-01-02T02:00:00Z")
    reader = await read(stream, None, "2026-01-02T02:00:00Z", on_bad_batch="skip").open()
    assert await rows_of(reader) == []
    assert [(lost.first_lsn, lost.last_lsn) for lost in reader.lost] == [(3, 4)]
    assert first.location != second.location


@virtual
async def test_a_batch_that_retention_takes_while_it_is_searched_is_not_the_first_any_more() -> (
    None
):
    stream = await create_stream(Store(MemoryBackend()), "orders")
    async with Producer(stream, linger_ms=60_000) as producer:
        for day in (1, 2):
            at = [datetime(2026, 1, day, hour, tzinfo=UTC) for hour in (1, 2)]
            await producer.produce([b"x" * 40_000] * 2, timestamps=at)
            await producer.flush()
    consumer = await Consumer.open(stream, gc=False)
    await consumer.next_batch()
    await consumer.ack_through(0)
    await consumer.flush()
    fetch = Store.get

    async def collected_first(store: Store, key: str, *args: object, **named: object) -> object:
        if "/batches/" in key:
            retention = Retention(retention_ms=0, grace_ms=0, only_acknowledged=True)
            await stream.collector(0).collect(retention, full=True)
        return await fetch(store, key, *args, **named)  # type: ignore[arg-type]

    with mock.patch.object(Store, "get", collected_first):
        assert await lsn_at_time(stream, time="2026-01-01T02:00:00Z") == 3
    await consumer.close()
