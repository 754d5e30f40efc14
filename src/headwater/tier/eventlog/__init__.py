"""Logs of metadata events: what happened to segments, in order, for all that follow.

Enters: events in bytes. Leaves: the same bytes in the order of their offsets, first the existing
ones and then new ones as they come.

    contract             what every log can do and promises, and what the implementations share
    in_process           a log within one process
    stored_log           a log in object storage, the default; `log.json`
    stored_events        its events, and the snapshots of older ones
    stored_floor         its keys, and the register of a partition's floor
    stored_subscription  following it
    compactor            replaces its old events by snapshots
    renewal              starts a new log with the state of another one
    kafka_log            a log in a topic of Kafka
    kafka_topic          the topic, sending to it, and Kafka's errors
    kafka_subscription   following it

Always holds: an offset is delivered once to a subscription, after all lower ones of its partition;
what cannot be delivered is reported, never skipped.
"""

from typing import TYPE_CHECKING

from headwater.lazy_exports import exports

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
