"""Logs of metadata events: what was said about segments, in order, for everybody who follows.

Enters: events in bytes. Leaves: the same bytes in the order of their offsets, first those that were
there and then those that come.

    contract    what every log can do, and what it promises
    items       what a subscription delivers
    partitioned what the logs have in common
    turns       a subscription whose partitions take turns
    in_process  a log within one process
    stored      a log in object storage, the default
    kafka       a log in a topic of Kafka

Always holds: an offset is delivered once to a subscription, after all lower ones of its partition;
whatever cannot be delivered is told, never skipped.
"""

from typing import TYPE_CHECKING

from headwater.front import exports

if TYPE_CHECKING:
    from headwater.tier.eventlog.contract import Assignment, MetadataEventLog, Subscription
    from headwater.tier.eventlog.in_process import InProcessEventLog
    from headwater.tier.eventlog.items import (
        EventDelivered,
        EventUnreadable,
        Item,
        PartitionFailed,
        PositionReached,
        SnapshotDelivered,
    )
    from headwater.tier.eventlog.kafka import KafkaEventLog
    from headwater.tier.eventlog.stored import Compaction, Compactor, Renewed, StoredEventLog, renew

__all__ = [
    "Assignment",
    "Compaction",
    "Compactor",
    "EventDelivered",
    "EventUnreadable",
    "InProcessEventLog",
    "Item",
    "KafkaEventLog",
    "MetadataEventLog",
    "PartitionFailed",
    "PositionReached",
    "Renewed",
    "SnapshotDelivered",
    "StoredEventLog",
    "Subscription",
    "renew",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "contract": "Assignment MetadataEventLog Subscription",
        "in_process": "InProcessEventLog",
        "items": "EventDelivered EventUnreadable Item PartitionFailed PositionReached "
        "SnapshotDelivered",
        "kafka": "KafkaEventLog",
        "stored": "Compaction Compactor Renewed StoredEventLog renew",
    },
)
