"""The ingestion buffer. For builders; users: docs/api.md.

Batches of records in object storage, and the queue that orders them.

Enters: records from producers. Leaves: batches in order, each once, with their records numbered.

    stream/       a stream: its id, partitions, schema and retention (stream.json)
    producer/     values, rows or Arrow in; batches uploaded and appended in order
    queue/        the order of a partition's batches: native, or the published v1 manifest
    transaction/  batches of many writers appended together, for Spark's sinks
    consumer/     batches out: to the owner that acknowledges, to followers and readers
    retained, truncation, copying          verifying, deleting and copying what is retained
    blocking                               streams and lag without an event loop
    records, types, conversion, partitioner   the record model and its types
    batch, arrow_stream, compression       the bytes of a batch

Always holds:

- what was accepted is delivered exactly once and in order, to the owner and to every follower;
- LSNs are dense within a partition, from 1, fixed by the append, and never change;
- bytes from the store are untrusted: sizes are checked before anything is allocated, checksums
  before anything is parsed;
- an unused column costs nothing.
"""

from typing import TYPE_CHECKING

from headwater.lazy_exports import exports

if TYPE_CHECKING:
    from headwater.buffer.consumer import BlockingConsumer, Consumer, Follower, lag, read
    from headwater.buffer.murmur2 import partition_for_key
    from headwater.buffer.producer import BlockingProducer, BufferFull, Producer
    from headwater.buffer.stream import (
        Stream,
        alter_stream,
        create_stream,
        delete_stream,
        list_streams,
        open_stream,
    )

__all__ = [
    "BlockingConsumer",
    "BlockingProducer",
    "BufferFull",
    "Consumer",
    "Follower",
    "Producer",
    "Stream",
    "alter_stream",
    "create_stream",
    "delete_stream",
    "lag",
    "list_streams",
    "open_stream",
    "partition_for_key",
    "read",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "consumer": "BlockingConsumer Consumer Follower lag read",
        "murmur2": "partition_for_key",
        "producer": "BlockingProducer BufferFull Producer",
        "stream": "Stream alter_stream create_stream delete_stream list_streams open_stream",
    },
)
