"""`headwater.read`: any part of what is retained, noticed by nobody."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater
from headwater.buffer.batch import Batch, Call, Calls
from headwater.buffer.compression import Compression
from headwater.buffer.consumer import Consumer, UnreadableBatch, read
from headwater.buffer.producer import Producer
from headwater.buffer.queue.contract import NewBatch
from headwater.buffer.records import from_values
from headwater.buffer.stream import create_stream
from headwater.core import runtime
from headwater.core.errors import NotFound, Refused, Trimmed, Unavailable
from headwater.store import MemoryBackend, Store, open_store
from tests.buffer.consumer.fakes import FakeQueue, FakeStream
from tests.buffer.consumer.given import FakeStreamWithSchema, rows_of
from tests.store.scripted import Scripted, virtual

COLUMNS = "_value _key _headers _timestamp _operation _lsn _partition _sequence".split()


async def lsns(stream: FakeStream, *args: Any, **options: Any) -> list[int]:
    return [row["_lsn"] for row in await rows_of(await read(stream, None, *args, **options).open())]


async def three_batches() -> FakeQueue:
    """Records 1–2, 3–4 and 5–6, ingested at 1,000, 2,000 and 3,000 ms."""
    queue = FakeQueue()
    for number in (1, 2, 3):
        await queue.add([b"a%d" % number, b"b%d" % number], at_ms=number * 1000)
    return queue


@virtual
async def test_every_record_comes_with_its_defaults_and_its_place() -> None:
    queue = FakeQueue()
    await queue.add([b"x", None], at_ms=1_000)
    reader = await read(queue.stream()).open()
    assert reader.schema.names == COLUMNS
    assert await rows_of(reader) == [
        {
            "_value": value,
            "_key": None,
            "_headers": None,
            "_timestamp": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
            "_operation": 0,
            "_lsn": lsn,
            "_partition": 0,
            "_sequence": 0,
        }
        for lsn, value in ((1, b"x"), (2, None))
    ]


@virtual
async def test_it_opens_nothing_and_fences_nobody() -> None:
    backend = Scripted()
    queue = FakeQueue(backend)
    await queue.add_many(3)
    owner = await Consumer.open(queue.stream(), gc=False)
    assert len(await lsns(queue.stream())) == 6
    await owner.next_descriptors(3)
    await owner.ack_through(2)
    assert queue.epoch == 1
    assert {operation for operation, _ in backend.calls} == {"put", "get"}


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (None, None, [1, 2, 3, 4, 5, 6]),
        ("earliest", "latest", [1, 2, 3, 4, 5, 6]),
        (2, 5, [2, 3, 4]),
        (4, 5, [4]),
        (5, 5, []),
        (7, None, []),
        (70, None, []),
        (None, 70, [1, 2, 3, 4, 5, 6]),
        ("latest", None, []),
        (datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC), None, [3, 4, 5, 6]),
        ("1970-01-01T00:00:01.500Z", "1970-01-01T00:00:03", [3, 4]),
        ("1970-01-01T00:01:00Z", None, []),
        ({0: 3}, {0: 4}, [3]),
        ({}, {}, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_a_part_is_given_by_numbers_words_or_times(
    start: Any, end: Any, expected: list[int]
) -> None:
    @virtual
    async def run() -> None:
        queue = await three_batches()
        assert await lsns(queue.stream(), start, end) == expected

    run()


@virtual
async def test_a_time_inside_a_batch_is_found_to_the_record() -> None:
    queue = FakeQueue()
    calls = Calls.of([Call(0, 1_000, None), Call(2, 2_000, None), Call(3, 3_000, None)])
    batch = Batch(runtime.new_ulid(), from_values([b"a", b"b", b"c", b"d"]), calls)
    await queue.add(batch=batch)
    assert await lsns(queue.stream(), "1970-01-01T00:00:02Z", None) == [3, 4]


@pytest.mark.parametrize("start", ["yesterday", 0, -1, True, ""])
def test_a_position_that_is_none_is_refused(start: Any) -> None:
    @virtual
    async def run() -> None:
        with pytest.raises(Refused):
            await read(FakeQueue().stream(), None, start).open()

    run()


@virtual
async def test_what_was_asked_for_by_number_and_is_gone_is_trimmed() -> None:
    queue = await three_batches()
    queue.floor = 1
    with pytest.raises(Trimmed, match="the oldest one is 3") as told:
        await read(queue.stream(), None, 2).open()
    assert told.value.floor_lsn == 3
    assert await lsns(queue.stream(), 3) == [3, 4, 5, 6]
    assert await lsns(queue.stream(), "earliest") == [3, 4, 5, 6]
    assert await lsns(queue.stream(), "1970-01-01T00:00:00Z") == [3, 4, 5, 6]


@virtual
async def test_the_first_record_asked_for_by_number_is_that_one_or_trimmed() -> None:
    queue = FakeQueue()
    await queue.add_many(2)
    declared = FakeStreamWithSchema(queue, pa.schema([("n", pa.int64())]))
    reader = await read(declared, None, 1, columns=["_lsn"]).open()
    queue.floor = 1  # between opening and reading
    with pytest.raises(Trimmed) as told:
        await anext(reader)
    assert told.value.floor_lsn == queue.entries[1].first_lsn == 3


@virtual
async def test_what_is_appended_after_opening_is_not_read_unless_it_follows() -> None:
    queue = await three_batches()
    reader = await read(queue.stream()).open()
    await queue.add_many(1)
    assert [row["_lsn"] for row in await rows_of(reader)] == [1, 2, 3, 4, 5, 6]


@virtual
async def test_following_waits_ever_longer_and_delivers_what_comes() -> None:
    queue = FakeQueue()
    await queue.add([b"a"])
    reader = await read(queue.stream(), follow=True).open()
    assert (await anext(reader)).num_rows == 1
    waiting = runtime.spawn(reader.next_batch(), name="waiting")
    queue.asked.clear()
    await runtime.sleep(60)
    # 0.1 s, doubled up to 5 s: far fewer than one a second.
    assert 10 <= queue.asked.count("look_after") <= 20
    await queue.add([b"b"])
    found = await waiting
    assert found is not None
    assert found.column("_value").to_pylist() == [b"b"]
    assert "list" not in queue.store.stats.operations


@virtual
async def test_following_reads_partitions_in_turn() -> None:
    queue = await three_batches()
    async with read(queue.stream(partitions=2), follow=True) as reader:
        found = [await anext(reader) for _ in range(6)]
    assert [batch.column("_partition")[0].as_py() for batch in found] == [0, 1] * 3


@virtual
async def test_following_ends_at_its_end() -> None:
    queue = FakeQueue()
    await queue.add([b"a", b"b"])
    reader = await read(queue.stream(), end=4, follow=True).open()
    await anext(reader)
    await queue.add([b"c", b"d"])
    assert (await anext(reader)).column("_lsn").to_pylist() == [3]
    with pytest.raises(StopAsyncIteration):
        await anext(reader)


@virtual
async def test_an_error_of_the_queue_can_be_tried_again() -> None:
    queue = await three_batches()
    reader = await read(queue.stream(), follow=True).open()
    await anext(reader)
    queue.fail("look_after", Unavailable("down"))
    with pytest.raises(Unavailable):
        await anext(reader)
    assert (await anext(reader)).column("_lsn").to_pylist() == [3, 4]


@virtual
async def test_a_part_that_is_known_to_its_end_asks_the_queue_no_more() -> None:
    queue = await three_batches()
    reader = await read(queue.stream(), None, 1, 6).open()
    await anext(reader)
    queue.asked.clear()
    assert [row["_lsn"] for row in await rows_of(reader)] == [3, 4, 5]
    assert queue.asked == []


@virtual
async def test_a_batch_that_cannot_be_read_is_an_error_or_is_listed() -> None:
    queue = await three_batches()
    await queue.store.delete(queue.entries[1].location)
    reader = await read(queue.stream()).open()
    assert (await anext(reader)).column("_lsn").to_pylist() == [1, 2]
    with pytest.raises(headwater.HeadwaterError, match="batch 1 with LSNs 3–4"):
        await anext(reader)
    skipping = await read(queue.stream(), on_bad_batch="skip").open()
    assert [row["_lsn"] for row in await rows_of(skipping)] == [1, 2, 5, 6]
    assert [(lost.first_lsn, lost.last_lsn) for lost in skipping.lost] == [(3, 4)]


@virtual
async def test_a_first_batch_that_cannot_be_read_does_not_keep_one_from_reading_the_rest() -> None:
    queue = await three_batches()
    await queue.store.delete(queue.entries[0].location)
    skipping = await read(queue.stream(), on_bad_batch="skip").open()
    assert [row["_lsn"] for row in await rows_of(skipping)] == [3, 4, 5, 6]
    assert [(lost.first_lsn, lost.last_lsn) for lost in skipping.lost] == [(1, 2)]


@virtual
async def test_a_batch_that_goes_with_the_retention_while_it_is_read_is_trimmed() -> None:
    queue = await three_batches()
    reader = await read(queue.stream(), on_bad_batch="skip", read_ahead_bytes=0).open()
    await anext(reader)
    queue.floor = 2
    await queue.store.delete(queue.entries[1].location)
    with pytest.raises(Trimmed) as told:
        await anext(reader)
    assert told.value.floor_lsn == queue.entries[2].first_lsn == 5


@virtual
async def test_a_time_within_a_lost_batch_begins_with_it_where_it_is_passed_over() -> None:
    stream = await create_stream(Store(MemoryBackend()), "orders")
    async with Producer(stream, linger_ms=5000) as producer:
        await producer.produce([bytes(20_000)])
        await runtime.sleep(2)
        between = datetime.fromtimestamp(runtime.wall_ms() / 1000, UTC)
        await runtime.sleep(1)
        await producer.produce([bytes(20_000)])
        await producer.flush()
        await producer.produce([b"after"])
    (lost, _) = await stream.queue_reader(0).after(None, 9)
    await stream.store.delete(lost.location)
    with pytest.raises(UnreadableBatch):
        await read(stream, start=between).open()
    skipping = await read(stream, start=between, on_bad_batch="skip").open()
    assert [row["_lsn"] for row in await rows_of(skipping)] == [3]
    assert [(lost.first_lsn, lost.last_lsn) for lost in skipping.lost] == [(1, 2)]


# Without a loop


async def filled(url: str, partitions: int) -> None:
    async with open_store(url) as store:
        stream = await create_stream(store, "orders", partitions=partitions)
        for partition in range(partitions):
            await produce(stream, partition, [b"%d-%d" % (partition, n) for n in range(3)])


async def produce(stream: Any, partition: int, values: list[bytes]) -> None:
    """One batch, by the queue's own door."""
    appender = stream.appender(partition, f"p-{runtime.new_ulid()}")
    await appender.open()
    batch = Batch(
        runtime.new_ulid(), from_values(list(values)), Calls.of([Call(0, runtime.wall_ms(), None)])
    )
    data = appender.encode(batch, Compression.NONE)
    await appender.upload(batch.batch_id, data)
    low_ms, high_ms = batch.calls.time_range_ms
    await appender.append([NewBatch(batch.batch_id, 1, len(values), len(data), low_ms, high_ms)])


def test_an_address_is_enough(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    asyncio.run(filled(url, 2))
    table = headwater.blocking.read(url, "orders").to_table()
    assert table["_value"].to_pylist() == [b"0-0", b"0-1", b"0-2", b"1-0", b"1-1", b"1-2"]
    assert table["_partition"].to_pylist() == [0, 0, 0, 1, 1, 1]
    assert table["_lsn"].to_pylist() == [1, 2, 3, 1, 2, 3]
    only = headwater.blocking.read(url, "orders", start=2, partition=1)
    assert [batch["_value"].to_pylist() for batch in only] == [[b"1-1", b"1-2"]]


def test_other_libraries_take_the_reader_as_it_is(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    asyncio.run(filled(url, 1))
    assert pa.table(headwater.blocking.read(url, "orders")).num_rows == 3
    assert headwater.blocking.read(url, "orders").to_reader().read_all().num_rows == 3
    with headwater.blocking.read(url, "orders") as reader:
        assert pa.Table.from_batches(reader).num_rows == 3


def test_a_reader_that_follows_is_iterated_and_is_no_table(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    asyncio.run(filled(url, 2))
    with headwater.blocking.read(url, "orders", follow=True) as reader:
        assert next(iter(reader))["_partition"].to_pylist() == [0, 0, 0]
        assert next(iter(reader))["_partition"].to_pylist() == [1, 1, 1]
        with pytest.raises(Refused, match="never ends"):
            reader.to_table()


def test_a_stream_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(headwater.HeadwaterError):
        headwater.blocking.read(f"file://{tmp_path}/store", "orders")


def test_reading_by_its_short_name_with_a_loop(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    asyncio.run(filled(url, 1))

    async def run() -> None:
        async with headwater.read(url, "orders") as reader:
            assert len(await rows_of(reader)) == 3
            assert reader.stream.name == "orders"
        with pytest.raises(Refused, match=r"this reader is closed: call read\(\) again"):
            await reader.open()
        lsns = [batch["_lsn"].to_pylist() async for batch in headwater.read(url, "orders")]
        assert lsns == [[1, 2, 3]]
        table = await headwater.read(url, "orders", start=2).to_table()
        assert table["_lsn"].to_pylist() == [2, 3]
        frame = await headwater.read(url, "orders", columns=["_lsn"]).to_pandas()
        assert list(frame["_lsn"]) == [1, 2, 3]
        with pytest.raises(Refused, match="never ends"):
            await headwater.read(url, "orders", follow=True).to_table()

    asyncio.run(run())


@virtual
async def test_a_reader_is_opened_when_it_is_used() -> None:
    store = open_store("memory://")
    reader = headwater.read(store, "orders")
    for name in ("schema", "stream"):
        with pytest.raises(Refused, match="this reader is not open: use it in a `with` block"):
            getattr(reader, name)
    with pytest.raises(NotFound):
        await anext(reader)
    await create_stream(store, "orders")
    assert [batch async for batch in reader] == []


@pytest.mark.parametrize(
    ("source", "name", "options", "why"),
    [
        (None, "orders", {}, "a store is needed here"),
        ("memory://", None, {}, "name of the stream"),
        ("memory://", "orders", {"on_bad_batch": "no"}, "on_bad_batch is 'no'"),
        ("memory://", "orders", {"time_by": "event"}, "time_by is 'event'"),
    ],
)
def test_reading_refuses_wrong_arguments_at_once(
    source: Any, name: Any, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(Refused, match=why):
        headwater.read(source, name, **options)


def test_a_store_of_its_own_is_closed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/store"
    asyncio.run(filled(url, 1))
    closed: list[Store] = []

    async def close(self: Store) -> None:
        closed.append(self)

    async def run() -> None:
        assert len([batch async for batch in headwater.read(url, "orders")]) == 1

    monkeypatch.setattr(Store, "close", close)
    asyncio.run(run())
    assert len(closed) == 1
