"""Consuming: the batches of a partition in order, and what was processed acknowledged.

Enters: descriptors from a queue and batches from a store. Leaves: records as Arrow, numbered.

    Consumer    the owner of a partition: one at a time; acknowledges
    Ownership   the same without reading, for planners that let other processes fetch
    Follower    any other group: has its own position, acknowledges nothing
    read        reads what is retained; fences nothing

In files:

    consumer, ownership, follower          the classes above; collecting garbage beside an owner
    reader, positions                      reading without consuming, from one position to another
    blocking                               consumer and reader for blocking code
    delivery, fetcher                      from descriptors to batches, in order
    consumed_batch                         a batch, and the columns that readers see
    dead_letter, dead_letter_replay        batches that cannot be read, and what becomes of them
    progress                               positions of groups, lag and metrics

Always holds:

- a batch is delivered in its turn and whole, or reported as unreadable: none is skipped silently;
- an error or a cancellation moves no cursor and no frontier: the same call can be repeated;
- only the consumer that opened last acknowledges.
"""

from typing import TYPE_CHECKING

from headwater.lazy_exports import exports

if TYPE_CHECKING:
    from headwater.buffer.consumer.blocking import BlockingConsumer, BlockingReader
    from headwater.buffer.consumer.consumed_batch import CallMetadata, ConsumedBatch
    from headwater.buffer.consumer.consumer import Consumer
    from headwater.buffer.consumer.dead_letter import (
        DeadLetter,
        LostRecords,
        UnreadableBatch,
        list_dead_letters,
    )
    from headwater.buffer.consumer.dead_letter_replay import (
        ReplayedLetter,
        drop_dead_letter,
        fetch_dead_letter,
        replay_dead_letter,
    )
    from headwater.buffer.consumer.fetcher import FetchHandle, compact_descriptor
    from headwater.buffer.consumer.follower import Follower
    from headwater.buffer.consumer.ownership import Ownership, TakenOver
    from headwater.buffer.consumer.positions import lsn_at_time, position_at_time
    from headwater.buffer.consumer.progress import ConsumerMetrics, FollowerRegister, Lag, lag
    from headwater.buffer.consumer.reader import Reader, read

__all__ = [
    "BlockingConsumer",
    "BlockingReader",
    "CallMetadata",
    "ConsumedBatch",
    "Consumer",
    "ConsumerMetrics",
    "DeadLetter",
    "FetchHandle",
    "Follower",
    "FollowerRegister",
    "Lag",
    "LostRecords",
    "Ownership",
    "Reader",
    "ReplayedLetter",
    "TakenOver",
    "UnreadableBatch",
    "compact_descriptor",
    "drop_dead_letter",
    "fetch_dead_letter",
    "lag",
    "list_dead_letters",
    "lsn_at_time",
    "position_at_time",
    "read",
    "replay_dead_letter",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "reader": "Reader read",
        "blocking": "BlockingConsumer BlockingReader",
        "consumed_batch": "CallMetadata ConsumedBatch",
        "consumer": "Consumer",
        "dead_letter": "DeadLetter LostRecords UnreadableBatch list_dead_letters",
        "dead_letter_replay": (
            "ReplayedLetter drop_dead_letter fetch_dead_letter replay_dead_letter"
        ),
        "fetcher": "FetchHandle compact_descriptor",
        "follower": "Follower",
        "progress": "ConsumerMetrics FollowerRegister Lag lag",
        "ownership": "Ownership TakenOver",
        "positions": "lsn_at_time position_at_time",
    },
)
