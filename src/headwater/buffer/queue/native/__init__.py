"""The native queue: numbered chunks of entries, the last of which grows.

Enters: batches and their counts, from appenders. Leaves: descriptors with sequences and LSNs.

    queue.json      floors: what is dead
    end.json        how far the queue has come at least
    chunks/<n>      entries; the last chunk may be open, and then whoever appends adds to it
    batches/<ULID>  the batches, but for small ones, which ride in their entries
    producers/…     marks: each producer's last accepted batch
    consumer.json   the owner, its epoch, what is acknowledged
    gc.json         how far the collector has looked

In files:

    chunk, chunks, records      one chunk's bytes; all of them, with floors; the registers
    tail, turns, ends           the end of the queue: written to, whose turn it is, noted down
    appender, marks             a producer's door, and its record
    reading, taker, looker      reading on; the owning consumer's door, everybody's
    collector                   the collector's door: expiring, orphans (referenced), forgetting

Always holds:

- a chunk is created on a closed one, so sequences and LSNs are dense and never given twice;
- floors rise before anything is deleted, and marks are folded before floors rise;
- what an append, a poll or a dequeue moves does not depend on how much is pending.
"""

from typing import TYPE_CHECKING

from headwater.front import exports

if TYPE_CHECKING:
    from headwater.buffer.queue.native.appender import NativeAppender
    from headwater.buffer.queue.native.chunk_log import ChunkLog, create_native_queue
    from headwater.buffer.queue.native.clients import NativeConsumer, NativeReader
    from headwater.buffer.queue.native.collector import NativeCollector
    from headwater.buffer.queue.native.tail import QueueTail, raise_schema_floor

__all__ = [
    "ChunkLog",
    "NativeAppender",
    "NativeCollector",
    "NativeConsumer",
    "NativeReader",
    "QueueTail",
    "create_native_queue",
    "raise_schema_floor",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "appender": "NativeAppender",
        "chunk_log": "ChunkLog create_native_queue",
        "clients": "NativeConsumer NativeReader",
        "collector": "NativeCollector",
        "tail": "QueueTail raise_schema_floor",
    },
)
