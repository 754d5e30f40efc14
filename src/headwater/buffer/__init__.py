"""The ingestion buffer: batches of records in object storage, and the queue that orders them.

Enters: records from producers. Leaves: batches in order, each once, with their records numbered.

Built so far: the record model, the native batch, the published v1 batch and manifest, and Kafka's
partitioner. Streams, queue, producer and consumer build on them.

Always holds:

- bytes from the store are trusted in nothing: sizes are checked before anything is allocated,
  checksums before anything is parsed;
- a column that nobody uses costs nothing.
"""

from headwater.buffer.batch import Batch, decode_batch, encode_batch, read_footer
from headwater.buffer.calls import Call, Calls
from headwater.buffer.compression import Compression
from headwater.buffer.partitioner import partition_for_key, partition_keys
from headwater.buffer.records import Operation, from_arrow, from_values

__all__ = [
    "Batch",
    "Call",
    "Calls",
    "Compression",
    "Operation",
    "decode_batch",
    "encode_batch",
    "from_arrow",
    "from_values",
    "partition_for_key",
    "partition_keys",
    "read_footer",
]
