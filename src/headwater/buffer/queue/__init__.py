"""Queues: the order of a partition's batches, in the native format or the published one.

`contract` has the four interfaces; `native` and `v1` implement them.

Always holds: a sequence and its LSNs, once assigned, never belong to another batch.
"""

from typing import TYPE_CHECKING

from headwater.lazy_exports import exports

if TYPE_CHECKING:
    from headwater.buffer.queue.contract import (
        AppendedBatch,
        Appender,
        BatchTrimmed,
        BelowFloor,
        Collected,
        Collector,
        Counters,
        Descriptor,
        NewBatch,
        ProducerState,
        QueueConsumer,
        QueuePosition,
        QueueReader,
        QueueState,
        Retention,
        TimeBy,
        Uncounted,
    )

__all__ = [
    "AppendedBatch",
    "Appender",
    "BatchTrimmed",
    "BelowFloor",
    "Collected",
    "Collector",
    "Counters",
    "Descriptor",
    "NewBatch",
    "ProducerState",
    "QueueConsumer",
    "QueuePosition",
    "QueueReader",
    "QueueState",
    "Retention",
    "TimeBy",
    "Uncounted",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "contract": "AppendedBatch Appender BatchTrimmed BelowFloor Collected Collector Counters "
        "Descriptor NewBatch ProducerState QueueConsumer QueuePosition QueueReader QueueState "
        "Retention TimeBy Uncounted",
    },
)
