"""A `stream.json` that was ever written is still read, and still written to the same bytes.

A file here is never changed. A later version of the format adds a file.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest import mock

import pyarrow as pa

from headwater.buffer.stream import Stream, alter_stream, create_stream, open_stream
from headwater.core import runtime
from headwater.store import MemoryBackend, Store
from tests.golden.fixed_runtime import FixedRuntime

GOLDEN = Path(__file__).parent / "stream.3.json"
KEY = "streams/orders/stream.json"


class StoppedRuntime(FixedRuntime):
    """Neither chance nor time: it is 2026-01-01 for ever."""

    def wall_ms(self) -> int:
        return 1_767_225_600_000


async def _written() -> bytes:
    store = Store(MemoryBackend())
    first = {"id": "int32 not null", "größe": "decimal(10, 2)"}
    added = {
        "at": "timestamp",
        "place": 'struct<street: string not null, "house number": int16>',
        "tags": "list<string not null>",
        "seen": "map<string, date>",
    }
    await create_stream(store, "orders", partitions=2, compression="zstd", schema=first)
    await alter_stream(
        store,
        "orders",
        schema={**first, "id": "int64 not null", **added},
        retention="forever",
        required_group="billing",
        linger_ms=50,
        batch_bytes="1MiB",
    )
    return bytes((await store.get(KEY)).data)


def _bytes_written() -> bytes:
    # Without its queues: they have golden files of their own, and take chance too.
    with (
        runtime.installed(StoppedRuntime()),
        mock.patch("headwater.buffer.stream.streams.create_queue"),
        mock.patch("headwater.buffer.stream.policy.raise_queue_policy", return_value=0),
    ):
        return asyncio.run(_written())


def test_a_stream_is_written_and_read_as_it_always_was() -> None:
    assert _bytes_written() == GOLDEN.read_bytes()

    async def read() -> Stream:
        store = Store(MemoryBackend())
        await store.put(KEY, GOLDEN.read_bytes())
        return await open_stream(store, "orders", writing=True)

    stream = asyncio.run(read())
    config = stream.config
    assert (config.name, config.partitions, config.format) == ("orders", 2, "native")
    assert (config.reader_version, config.writer_version, config.state) == (3, 3, "live")
    assert (config.retention_ms, config.linger_ms, config.batch_bytes) == (-1, 50, 2**20)
    assert (config.required_group, config.policy) == ("billing", 1)
    assert stream.schema_version == 2
    assert stream.schema == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("größe", pa.decimal128(10, 2)),
            pa.field("at", pa.timestamp("us", "UTC")),
            pa.field(
                "place",
                pa.struct(
                    [
                        pa.field("street", pa.string(), nullable=False),
                        pa.field("house number", pa.int16()),
                    ]
                ),
            ),
            pa.field("tags", pa.list_(pa.field("element", pa.string(), nullable=False))),
            pa.field("seen", pa.map_(pa.string(), pa.date32())),
        ]
    )
