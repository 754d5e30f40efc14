"""Logs of metadata events: publishers append events, and every subscriber gets them in order.

    contract            what every log promises, what they share, and a log within one process
    stored_log          a log in object storage, the default, and subscriptions to it
    stored_events       its keys and events, the snapshots of older ones, the floor between them
    compactor           replaces its old events by snapshots
    renewal             starts a new log with the state of another one
    kafka_log           a log in a Kafka topic, and the settings of Kafka's clients
    kafka_topic         the topic, sending to it, and Kafka's errors
    kafka_subscription  subscriptions to it

Always holds: an offset is delivered once to a subscription, after all lower ones of its partition;
an event that cannot be delivered is reported, never skipped.
"""

from typing import TYPE_CHECKING

from headwater.lazy_exports import exports

if TYPE_CHECKING:
    from headwater.tier.eventlog.compactor import Compaction, Compactor
    from headwater.tier.eventlog.contract import (
        EventDelivered,
        EventUnreadable,
        InProcessEventLog,
        LogItem,
        MetadataEventLog,
        PartitionFailed,
        PositionReached,
        SnapshotDelivered,
        Subscription,
    )
    from headwater.tier.eventlog.kafka_log import KafkaEventLog
    from headwater.tier.eventlog.renewal import renew
    from headwater.tier.eventlog.stored_log import StoredEventLog

__all__ = [
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
    "SnapshotDelivered",
    "StoredEventLog",
    "Subscription",
    "renew",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "compactor": "Compaction Compactor",
        "contract": "EventDelivered EventUnreadable InProcessEventLog LogItem MetadataEventLog "
        "PartitionFailed PositionReached SnapshotDelivered Subscription",
        "kafka_log": "KafkaEventLog",
        "renewal": "renew",
        "stored_log": "StoredEventLog",
    },
)
