"""The ingestion buffer: batches of records in object storage, and the queue that orders them.

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
    from headwater.buffer.batch import Batch, Call, Calls, decode_batch, encode_batch, read_footer
    from headwater.buffer.compression import Compression
    from headwater.buffer.consumer import (
        BlockingConsumer,
        ConsumedBatch,
        Consumer,
        Follower,
        lag,
        list_dead_letters,
        read,
        read_async,
    )
    from headwater.buffer.murmur2 import partition_for_key
    from headwater.buffer.partitioner import partition_keys
    from headwater.buffer.producer import BlockingProducer, BufferFull, Producer
    from headwater.buffer.queue import Descriptor
    from headwater.buffer.records import Operation, from_arrow, from_values
    from headwater.buffer.stream import (
        Stream,
        adopt_stream,
        alter_stream,
        create_stream,
        delete_stream,
        list_streams,
        open_stream,
    )

__all__ = [
    "Batch",
    "BlockingConsumer",
    "BlockingProducer",
    "BufferFull",
    "Call",
    "Calls",
    "Compression",
    "ConsumedBatch",
    "Consumer",
    "Descriptor",
    "Follower",
    "Operation",
    "Producer",
    "Stream",
    "adopt_stream",
    "alter_stream",
    "create_stream",
    "decode_batch",
    "delete_stream",
    "encode_batch",
    "from_arrow",
    "from_values",
    "lag",
    "list_dead_letters",
    "list_streams",
    "open_stream",
    "partition_for_key",
    "partition_keys",
    "read",
    "read_async",
    "read_footer",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "batch": "Batch Call Calls decode_batch encode_batch read_footer",
        "compression": "Compression",
        "consumer": "BlockingConsumer ConsumedBatch Consumer Follower lag list_dead_letters read "
        "read_async",
        "murmur2": "partition_for_key",
        "partitioner": "partition_keys",
        "producer": "BlockingProducer BufferFull Producer",
        "queue": "Descriptor",
        "records": "Operation from_arrow from_values",
        "stream": "Stream adopt_stream alter_stream create_stream delete_stream list_streams "
        "open_stream",
    },
)
