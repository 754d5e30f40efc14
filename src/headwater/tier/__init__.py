"""The tier: sealed segments in object storage, and what is said about them.

Enters: metadata events, and groups of the log. Leaves: which segment holds which LSN, under which
epoch, and the groups again.

    identity  partitions and segments: who is meant
    events    what is said about segments, byte for byte as Kafka says it
    cache     what is known by the events so far
    eventlog  logs that carry the events, in order, to everybody who follows
    snapshot  what the events of a metadata partition come to, in bytes
    manager   follows a log, answers when it has caught up, and publishes
    segment_cover
              which segment each LSN is read from
    walking   long covers and many segments, bit by bit
    segments  ranges of the log as Parquet objects
    reader    ranges of a log, wherever they stand
    jobs      what a leader does: copies, merges, expires, removes, mends
    rebuild   a log of events begun anew where the old one is damaged

Always holds: what a leader publishes after its epoch is over changes nothing; each LSN is read from
one segment, that of the newest epoch.
"""

from typing import TYPE_CHECKING

from headwater.front import exports

if TYPE_CHECKING:
    from headwater.tier.cache import EventOutcome, TierCache
    from headwater.tier.errors import EventRejected, EventUndecodable, NotReady
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
    from headwater.tier.manager import ManagerConfig, TopicMetadataManager
    from headwater.tier.segment_cover import CoverPiece, cover, gaps

__all__ = [
    "CoverPiece",
    "EventOutcome",
    "EventRejected",
    "EventUndecodable",
    "ManagerConfig",
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
    "cover",
    "decode_event",
    "encode_event",
    "gaps",
    "metadata_partition_for",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "cache": "EventOutcome TierCache",
        "errors": "EventRejected EventUndecodable NotReady",
        "event_codec": "decode_event encode_event metadata_partition_for",
        "events": "MetadataEvent PartitionDelete PartitionDeleteState SegmentId SegmentMetadata "
        "SegmentState SegmentUpdate TopicIdPartition",
        "manager": "ManagerConfig TopicMetadataManager",
        "segment_cover": "CoverPiece cover gaps",
    },
)
