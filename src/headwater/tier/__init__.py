"""The tier: sealed segments and their metadata events. For builders; users: docs/api.md.

    events         metadata events, partitions and segment ids
    event_codec    events as bytes, as Kafka writes them
    eventlog       logs that carry the events, in order, to all subscribers
    cache          the state after the events (segment_table has its columns)
    snapshot       the state as a value and as bytes
    segment_cover  which segment each LSN is read from
    manager        follows an event log, keeps their state, publishes new ones
    segments       ranges of the log as Parquet objects
    reader         reads LSNs from the local log and the tier
    jobs           what a leader does: copies, merges, expires, removes, repairs
    rebuild        a new event log where the old one is damaged (event_replay reads that)

Always holds: events published under a stale epoch are ignored; each LSN is read from one segment,
the one of the newest epoch.
"""

from typing import TYPE_CHECKING

from headwater.lazy_exports import exports

if TYPE_CHECKING:
    from headwater.tier.cache import EventOutcome, TierCache
    from headwater.tier.errors import EventRejected, NotReady
    from headwater.tier.event_codec import decode_event, encode_event, metadata_partition_for
    from headwater.tier.events import (
        MetadataEvent,
        PartitionDelete,
        PartitionDeleteState,
        SegmentId,
        SegmentMetadata,
        SegmentState,
        SegmentUpdate,
        TopicIdPartition,
    )
    from headwater.tier.manager import TopicMetadataManager
    from headwater.tier.segment_cover import gaps

__all__ = [
    "EventOutcome",
    "EventRejected",
    "MetadataEvent",
    "NotReady",
    "PartitionDelete",
    "PartitionDeleteState",
    "SegmentId",
    "SegmentMetadata",
    "SegmentState",
    "SegmentUpdate",
    "TierCache",
    "TopicIdPartition",
    "TopicMetadataManager",
    "decode_event",
    "encode_event",
    "gaps",
    "metadata_partition_for",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "cache": "EventOutcome TierCache",
        "errors": "EventRejected NotReady",
        "event_codec": "decode_event encode_event metadata_partition_for",
        "events": "MetadataEvent PartitionDelete PartitionDeleteState SegmentId SegmentMetadata "
        "SegmentState SegmentUpdate TopicIdPartition",
        "manager": "TopicMetadataManager",
        "segment_cover": "gaps",
    },
)
