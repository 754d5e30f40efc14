"""A published v1 stream that asks for leniency reads what the reference reads."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from headwater.buffer.consumer import Consumer, UnreadableBatch, read
from headwater.buffer.producer import Producer
from headwater.buffer.queue.v1.batch_format import FOOTER_BYTES, encode_batch
from headwater.buffer.stream import alter_stream, create_stream, open_stream
from headwater.core.errors import Corrupt, Refused
from headwater.store import MemoryBackend, Store
from tests.store.scripted import virtual

FOLDER = "streams/orders/0/ingest"


async def stream_with(trailing: bytes = b"", *entries: bytes, **settings: Any) -> Store:
    """A stream with one foreign batch, which has bytes after its last record, and these entries."""
    store = Store(MemoryBackend())
    await create_stream(store, "orders", format="v1", **settings)
    whole = encode_batch([b"a", b"b"])
    await store.put(f"{FOLDER}/other.batch", whole[:-FOOTER_BYTES] + trailing + whole[-7:])
    listed = entries or (entry(0),)
    end = struct.pack("<IQQH", len(listed), len(listed), 0, 1)
    await store.put(f"{FOLDER}/manifest", b"".join(listed) + end)
    return store


def entry(sequence: int, trailing: bytes = b"") -> bytes:
    location = f"{FOLDER}/other.batch".encode()
    body = struct.pack("<QH", sequence, len(location)) + location + struct.pack("<I", 0) + trailing
    return struct.pack("<I", len(body)) + body


async def values(store: Store) -> list[bytes]:
    async with read(store, "orders") as reader:
        return [value for rows in [r async for r in reader] for value in rows["_value"].to_pylist()]


@virtual
async def test_bytes_after_the_last_record_are_damage_unless_the_stream_is_lenient() -> None:
    store = await stream_with(b"zz")
    with pytest.raises(UnreadableBatch):
        await values(store)
    await alter_stream(store, "orders", v1_reading="lenient")
    assert await values(store) == [b"a", b"b"]
    async with await Consumer.open(store, "orders", gc=False) as consumer:
        batch = await consumer.next_batch()
        assert batch is not None
        assert batch.entries == [b"a", b"b"]
    await alter_stream(store, "orders", v1_reading="strict")
    with pytest.raises(UnreadableBatch):
        await values(store)


@virtual
async def test_bytes_after_the_items_of_an_entry_stay_where_they_are() -> None:
    store = await stream_with(b"", entry(0, b"??"))
    with pytest.raises(Corrupt):
        await values(store)
    await alter_stream(store, "orders", **{"v1.reading": "lenient"})
    async with Producer(store, "orders") as producer:
        await producer.produce([b"c"])
    assert await values(store) == [b"a", b"b", b"c"]
    assert entry(0, b"??") in bytes((await store.get(f"{FOLDER}/manifest")).data)


@pytest.mark.parametrize("sequences", [(0, 0, 2), (0, 2, 1)])
def test_sequences_out_of_order_are_damage_either_way(sequences: tuple[int, ...]) -> None:
    @virtual
    async def run() -> None:
        store = await stream_with(b"", *map(entry, sequences), v1_reading="lenient")
        with pytest.raises(Corrupt, match="manifest"):
            await values(store)

    run()


@virtual
async def test_only_a_published_stream_can_ask_and_others_write_nothing_of_it() -> None:
    store = Store(MemoryBackend())
    with pytest.raises(Refused, match="published v1"):
        await create_stream(store, "native", v1_reading="lenient")
    await create_stream(store, "native", v1_reading="strict")
    assert b"v1_reading" not in bytes((await store.get("streams/native/stream.json")).data)
    await create_stream(store, "old", format="v1", v1_reading="lenient")
    assert (await open_stream(store, "old")).config.is_lenient
    with pytest.raises(Refused, match="strict or lenient"):
        await alter_stream(store, "old", v1_reading="yes")
