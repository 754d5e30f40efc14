"""What queues and batches are made of, as it was first written.

A file here is never changed. A later version of a format adds a file. The bytes of a batch depend
on the version of Arrow that wrote it, so batches are only read.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.buffer.batch import Batch, Call, Calls, decode_batch
from headwater.buffer.producer.call import with_column
from headwater.buffer.queue.native.chunk import (
    Chunk,
    ChunkEntry,
    LatestTimes,
    ProducerIncarnation,
    decode_chunk,
    encode_chunk,
    first_chunk,
)
from headwater.buffer.queue.native.chunk_log import (
    CollectorRecord,
    ConsumerRecord,
    QueueEnd,
    QueueFloors,
)
from headwater.buffer.queue.native.producers import Mark, ProducerRecord, ProducerShard
from headwater.buffer.queue.v1.acked import NumberedEntry, decode_segment, encode_segment
from headwater.buffer.queue.v1.manifest_format import ManifestEntry, MetadataItem
from headwater.buffer.queue.v1.manifest_object import V1Names
from headwater.buffer.records import HEADERS, KEY, from_arrow
from headwater.core import runtime
from headwater.core.lease import SettlingFloor
from headwater.store import MemoryBackend, Register, Store
from tests.golden.fixed_runtime import FixedRuntime

HERE = Path(__file__).parent
QUEUE = "6f1b2c3d-0000-4000-8000-000000000001"
BATCH = "01J5T4R3KXBMZ7QV9N2WSP8YDH"
AT_MS = 1_767_225_600_000

CHUNK = Chunk(
    queue_id=QUEUE,
    number=42,
    token=bytes(range(16)),
    closed=True,
    first_sequence=1000,
    first_lsn=123_456_789_012,
    bytes_before=2**40,
    newest_before=(LatestTimes(AT_MS, AT_MS * 1000), LatestTimes(), LatestTimes(AT_MS + 1, -1)),
    batch_floor=BATCH,
    openings=3,
    recent_openings=(ProducerIncarnation("größe", "b" * 32), ProducerIncarnation("p", "a" * 32)),
    schema_floor=2,
    owners=(ProducerIncarnation("p", "a" * 32), ProducerIncarnation("größe", "b" * 32)),
    entries=(
        ChunkEntry(0, b"\x01" * 16, 7, 4096, AT_MS, AT_MS + 5, None, None, 1, 2),
        ChunkEntry(1, b"\x02" * 16, 0, 0, 0, 0, None, None, 9, 0, b"", b"HWB1 and so on"),
        ChunkEntry(
            0, b"\x03" * 16, 2, 70_000, AT_MS, AT_MS, -5, AT_MS * 1000 + 7, 2, 2, b"offset \xff"
        ),
    ),
)

MARK = Mark(9, 1001, 123_456_789_019, 42, b"offset \xff")
REGISTERS: dict[str, Any] = {
    "queue.3": QueueFloors(QUEUE, 42, 1001, 123_456_789_019, BATCH, AT_MS, 7),
    "end.1": QueueEnd(42, 1000, 123_456_789_012),
    "consumer.2": ConsumerRecord(7, "größe", 1001, 123_456_789_019, 2**40, 42, AT_MS),
    "producers.2": ProducerShard(
        {
            "größe": ProducerRecord("b" * 32, 42, AT_MS, MARK),
            "p": ProducerRecord("a" * 32, 41, AT_MS, silent_looks=3, silent_looked_ms=AT_MS + 9),
            "silent": ProducerRecord("c" * 32, 3, AT_MS, Mark(1, 2, 3, 3), 40),
        },
        17,
    ),
    "gc.1": CollectorRecord(BATCH, 42, (BATCH,), AT_MS, "2bf", 7, 40, SettlingFloor(42, 61_500)),
}

SEGMENT_ENTRIES = [
    ManifestEntry(7, f"ingest/{BATCH}.batch", [MetadataItem(0, -5, b"m")]),
    ManifestEntry(8, "elsewhere/é", []),
    ManifestEntry(9, f"ingest/{BATCH}.batch", [MetadataItem(0, 9, b"")]),
]
SEGMENT_COUNTED = [
    NumberedEntry(100, 2, 17, -5, -5),
    NumberedEntry(102, 0, 7, 50, 60),
    NumberedEntry(102, 0, 0, 9, 9, duplicate=True),
]


def _batch() -> Batch:
    (records,) = from_arrow(pa.table({"n": [1, None, 3], "s": ["ä", "", None]}))
    records = with_column(records, KEY, [b"k", None, b""])
    records = with_column(records, HEADERS, [[("h", b"1")], None, []])
    (ordered,) = from_arrow(pa.Table.from_batches([records]))
    return Batch(BATCH, ordered, Calls.of([Call(0, AT_MS, b"m"), Call(2, AT_MS + 5, None)]))


async def _register(name: str) -> bytes:
    store = Store(MemoryBackend())
    value = REGISTERS[name]
    await Register(store, name, type(value)).update(lambda _: value)
    return bytes((await store.get(name)).data)


def test_a_chunk_is_written_and_read_as_it_always_was() -> None:
    golden = (HERE / "chunk.2").read_bytes()
    assert encode_chunk(CHUNK) == golden
    assert decode_chunk(golden, queue_id=QUEUE, number=42) == CHUNK
    first = (HERE / "first_chunk.2").read_bytes()
    assert encode_chunk(first_chunk(QUEUE)) == first
    assert decode_chunk(first, queue_id=QUEUE, number=0) == first_chunk(QUEUE)


@pytest.mark.parametrize("name", REGISTERS)
def test_the_registers_of_a_queue_are_written_and_read_as_they_always_were(name: str) -> None:
    golden = (HERE / f"{name}.json").read_bytes()
    with runtime.installed(FixedRuntime()):
        assert asyncio.run(_register(name)) == golden

    async def read() -> object:
        store = Store(MemoryBackend())
        await store.put(name, golden)
        return (await Register(store, name, type(REGISTERS[name])).read()).value

    assert asyncio.run(read()) == REGISTERS[name]


@pytest.mark.parametrize(
    ("name", "floors"),
    [
        ("queue.1", QueueFloors(QUEUE, 42, 1000, 123_456_789_012, BATCH, 0)),
        ("queue.2", QueueFloors(QUEUE, 42, 1001, 123_456_789_019, BATCH, AT_MS)),
    ],
)
def test_floors_without_a_time_or_a_policy_are_read_as_they_always_were(
    name: str, floors: QueueFloors
) -> None:
    async def read() -> QueueFloors:
        store = Store(MemoryBackend())
        await store.put("queue", (HERE / f"{name}.json").read_bytes())
        return (await Register(store, "queue", QueueFloors).read()).value

    assert asyncio.run(read()) == floors


def test_a_consumer_that_was_truncated_is_read_as_it_always_was() -> None:
    async def read() -> ConsumerRecord:
        store = Store(MemoryBackend())
        await store.put("consumer", (HERE / "consumer.1.json").read_bytes())
        return (await Register(store, "consumer", ConsumerRecord).read()).value

    assert asyncio.run(read()) == REGISTERS["consumer.2"]


def test_producers_whose_silence_nobody_noted_are_read_as_they_always_were() -> None:
    async def read() -> ProducerShard:
        store = Store(MemoryBackend())
        await store.put("producers", (HERE / "producers.1.json").read_bytes())
        return (await Register(store, "producers", ProducerShard).read()).value

    found = asyncio.run(read())
    assert found.dropped == 17
    assert found.producers == {
        "größe": ProducerRecord("b" * 32, 42, AT_MS, MARK),
        "p": ProducerRecord("a" * 32, 41, AT_MS),
        "silent": ProducerRecord("c" * 32, 3, AT_MS, Mark(1, 2, 3, 3), 40),
    }


@pytest.mark.parametrize("name", ["batch.1", "batch.1.zstd", "batch.1.lz4"])
def test_a_batch_is_read_as_it_always_was(name: str) -> None:
    found = decode_batch((HERE / name).read_bytes(), expected_id=BATCH)
    expected = _batch()
    assert found.records.equals(expected.records)
    assert found.calls.columns.equals(expected.calls.columns)


def test_a_segment_of_acknowledged_entries_is_written_and_read_as_it_always_was() -> None:
    golden = (HERE / "segment.1").read_bytes()
    assert encode_segment(b"t" * 16, SEGMENT_ENTRIES, SEGMENT_COUNTED, 60) == golden
    header, batches = decode_segment(V1Names("ingest", "orders-0"), "key", golden)
    assert (header.first_sequence, header.next_sequence) == (7, 10)
    assert (header.first_lsn, header.next_lsn, header.newest_ms) == (100, 102, 60)
    assert [batch.location for batch in batches] == [one.location for one in SEGMENT_ENTRIES]
    assert [
        (one.first_lsn, one.rows, one.size_bytes, one.min_ms, one.max_ms, one.duplicate)
        for one in batches
    ] == [tuple(counted) for counted in SEGMENT_COUNTED]
