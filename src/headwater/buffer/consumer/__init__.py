"""Consuming: the batches of a partition in order, and what was processed acknowledged.

Enters: descriptors from a queue and batches from a store. Leaves: records as Arrow, numbered.

    Consumer    the owner of a partition: one at a time, acknowledges
    Ownership   the same without reading: for whoever plans, and lets others fetch
    Follower    any other group: a position of its own, acknowledges nothing
    read        looks at what is retained, opens nothing

In files:

    consumer, blocking, ownership, follower    who consumes; group: a position; own_process: forks
    delivery, read_ahead, fetch, riding        from descriptors to batches
    consumed, columns                          a batch, and the columns that readers see
    frontier, backlog, metrics                 what is acknowledged, and what waits
    dead_letter, unreadable                    a batch that cannot be read
    reader, async_reader, reading              reading without consuming, and from where to where
    source, sweeper                            who may consume; garbage collection beside it

Always holds:

- a batch is delivered in its turn, whole, or reported as unreadable: nothing is left out silently;
- an error or a cancellation moves no cursor and no frontier: the same call can be made again;
- only the consumer that opened last acknowledges.
"""

from typing import TYPE_CHECKING

from headwater.front import exports

if TYPE_CHECKING:
    from headwater.buffer.consumer.async_reader import AsyncReader, read_async
    from headwater.buffer.consumer.blocking import BlockingConsumer, Reader, read
    from headwater.buffer.consumer.consumed_batch import CallMetadata, ConsumedBatch, LostRecords
    from headwater.buffer.consumer.consumer import Consumer
    from headwater.buffer.consumer.dead_letter import DeadLetter, list_dead_letters
    from headwater.buffer.consumer.fetcher import FetchHandle, compact_descriptor
    from headwater.buffer.consumer.follower import Follower
    from headwater.buffer.consumer.group import GroupRegister, QueuePosition
    from headwater.buffer.consumer.metrics import ConsumerMetrics, Lag, lag
    from headwater.buffer.consumer.ownership import Ownership, TakenOver
    from headwater.buffer.consumer.positions import lsn_at_time, position_at_time
    from headwater.buffer.consumer.unreadable import UnreadableBatch

__all__ = [
    "AsyncReader",
    "BlockingConsumer",
    "CallMetadata",
    "ConsumedBatch",
    "Consumer",
    "ConsumerMetrics",
    "DeadLetter",
    "FetchHandle",
    "Follower",
    "GroupRegister",
    "Lag",
    "LostRecords",
    "Ownership",
    "QueuePosition",
    "Reader",
    "TakenOver",
    "UnreadableBatch",
    "compact_descriptor",
    "lag",
    "list_dead_letters",
    "lsn_at_time",
    "position_at_time",
    "read",
    "read_async",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "async_reader": "AsyncReader read_async",
        "blocking": "BlockingConsumer Reader read",
        "consumed_batch": "CallMetadata ConsumedBatch LostRecords",
        "consumer": "Consumer",
        "dead_letter": "DeadLetter list_dead_letters",
        "fetcher": "FetchHandle compact_descriptor",
        "follower": "Follower",
        "group": "GroupRegister QueuePosition",
        "metrics": "ConsumerMetrics Lag lag",
        "ownership": "Ownership TakenOver",
        "positions": "lsn_at_time position_at_time",
        "unreadable": "UnreadableBatch",
    },
)
