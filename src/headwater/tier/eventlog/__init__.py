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
    from headwater.tier.eventlog.compactor import Compaction, Compactor
    from headwater.tier.eventlog.contract import (
        Assignment,
        EventDelivered,
        EventUnreadable,
        LogItem,
        MetadataEventLog,
        PartitionFailed,
        PositionReached,
        SnapshotDelivered,
        Subscription,
    )
    from headwater.tier.eventlog.in_process import InProcessEventLog
    from headwater.tier.eventlog.kafka_log import KafkaEventLog
    from headwater.tier.eventlog.renewal import RenewedLog, renew
    from headwater.tier.eventlog.stored_log import StoredEventLog

__all__ = [
    "Assignment",
    "Compaction",
    "Compactor",
    "EventDelivered",
    "EventUnreadable",
    "InProcessEventLog",
    "KafkaEventLog",
    "LogItem",
    "MetadataEventLog",
    "PartitionFailed",
    "PositionReached",
    "RenewedLog",
    "SnapshotDelivered",
    "StoredEventLog",
    "Subscription",
    "renew",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "compactor": "Compaction Compactor",
        "contract": "Assignment EventDelivered EventUnreadable LogItem MetadataEventLog "
        "PartitionFailed PositionReached SnapshotDelivered Subscription",
        "in_process": "InProcessEventLog",
        "kafka_log": "KafkaEventLog",
        "renewal": "RenewedLog renew",
        "stored_log": "StoredEventLog",
    },
)
