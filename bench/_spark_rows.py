"""The rows that are measured: Kafka's columns with values of one size, and where they are put."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.buffer.producer import Producer
from headwater.buffer.stream import create_stream
from headwater.store import open_store

KAFKA_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "timestampType int"
)
CALL_ROWS = 1_000


def values(rows: int, size: int) -> list[bytes]:
    """Values that do not compress."""
    noise = os.urandom(rows + size)
    return [noise[start : start + size] for start in range(rows)]


def kafka_columns(rows: int, size: int) -> pa.RecordBatch:
    """One batch in the columns that Spark's Kafka source and Headwater's show."""
    return pa.record_batch(
        {
            "key": pa.nulls(rows, pa.binary()),
            "value": pa.array(values(rows, size), pa.binary()),
            "topic": pa.array(["bench"] * rows),
            "partition": pa.array([0] * rows, pa.int32()),
            "offset": pa.array(range(rows), pa.int64()),
            "timestamp": pa.array([0] * rows, pa.timestamp("us", "UTC")),
            "timestampType": pa.array([1] * rows, pa.int32()),
        }
    )


async def fill_stream(url: str, name: str, rows: int, size: int, batches: int) -> None:
    """Rows in so many batches of a stream."""
    async with open_store(url) as store:
        await create_stream(store, name)
        async with Producer(store, name, batch_bytes=1 << 27) as producer:
            left = rows
            for number in range(batches, 0, -1):
                share = left // number
                left -= share
                for start in range(0, share, CALL_ROWS):
                    await producer.produce(values(min(CALL_ROWS, share - start), size))
                await producer.flush()


def fill_parquet(folder: Path, rows: int, size: int, files: int) -> None:
    """The same rows in so many Parquet files, uncompressed as the batches are."""
    folder.mkdir(parents=True)
    each = max(1, rows // files)
    made = pa.Table.from_batches([kafka_columns(min(each, 200_000), size)])
    times = max(1, each // made.num_rows)
    table = pa.concat_tables([made] * times)
    for number in range(files):
        pq.write_table(table, folder / f"part-{number:05}.parquet", compression="none")


def rows_of(progress: Any) -> int:
    """What a query says it has read."""
    return sum(int(one["numInputRows"]) for one in progress)
