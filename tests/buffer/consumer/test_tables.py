"""`ConsumedBatch.table()`: the columns and types of the stream, whatever a batch was written in."""

from __future__ import annotations

import pickle

import pyarrow as pa

from headwater.buffer.consumer import Consumer
from headwater.buffer.producer import Producer
from headwater.buffer.stream import create_stream
from headwater.store import Store, open_store
from tests.store.scripted import virtual

NARROW = pa.table({"id": pa.array([1], pa.int32())})
WIDE = pa.table({"id": pa.array([1 << 40], pa.int64()), "name": ["n"]})


async def produced(store: Store, *tables: pa.Table) -> None:
    """Each table as a batch of its own."""
    for table in tables:
        async with await Producer.open(store, "orders", linger_ms=0) as producer:
            await producer.produce_arrow(table)


@virtual
async def test_batches_from_before_and_after_a_widening_are_one_table() -> None:
    store = open_store("memory://")
    await create_stream(store, "orders")
    await produced(store, NARROW, WIDE)
    async with await Consumer.open(store, "orders", gc=False) as consumer:
        batches = [await consumer.next_batch() for _ in range(2)]
        tables = [batch.table() for batch in batches if batch is not None]
    assert [table.schema.field("id").type for table in tables] == [pa.int64()] * 2
    found = pa.concat_tables(tables).select(["id", "name", "_lsn"]).to_pylist()
    assert found == [
        {"id": 1, "name": None, "_lsn": 1},
        {"id": 1 << 40, "name": "n", "_lsn": 2},
    ]
    assert batches[0] is not None
    assert batches[0].records.schema.field("id").type == pa.int32(), "as it was written"


@virtual
async def test_a_consumer_that_is_open_learns_of_columns_that_come_later() -> None:
    store = open_store("memory://")
    await create_stream(store, "orders")
    async with await Consumer.open(store, "orders", gc=False) as consumer:
        await produced(store, NARROW)
        before = await consumer.next_batch()
        assert before is not None
        assert before.table().schema.field("id").type == pa.int32(), "nothing wider is recorded"
        await produced(store, WIDE, NARROW)
        later = [await consumer.next_batch() for _ in range(2)]
        tables = [batch.table() for batch in (before, *later) if batch is not None]
    assert pa.concat_tables(tables)["id"].to_pylist() == [1, 1 << 40, 1]


@virtual
async def test_a_fetch_handle_takes_the_types_along_and_hides_nothing_that_came_later() -> None:
    store = open_store("memory://")
    await create_stream(store, "orders")
    await produced(store, NARROW, pa.table({"id": pa.array([2], pa.int64())}))
    async with await Consumer.open(store, "orders", gc=False) as consumer:
        await produced(store, WIDE)
        handle = consumer.fetch_handle()
        narrow, wider, widest = await consumer.next_descriptors(3)
        again = pickle.loads(pickle.dumps(handle.recorded))
        assert again.schema == handle.recorded.schema
        tables = [(await handle.fetch(one)).table() for one in (narrow, wider, widest)]
    assert [table.schema.field("id").type for table in tables] == [pa.int64()] * 3
    assert tables[2]["name"].to_pylist() == ["n"]
