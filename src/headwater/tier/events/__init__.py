"""Metadata events: what is said of remote segments, byte for byte as Kafka says it.

Enters: what happened to a segment or a partition. Leaves: bytes, and from bytes the same again.

    event        the three events, checked when they are made
    states       what may follow what
    codec        events in bytes
    fields       Kafka's encoding of single fields
    publisher_epoch
                 under which epoch an event was published
    partitioner  which metadata partition an event goes to

Always holds: an event that exists can be written, and what was written is read as the same event;
no bytes raise anything but `Corrupt`, `NotSupported` and `LimitExceeded`.
"""

from headwater.tier.events.codec import decode_event, encode_event
from headwater.tier.events.event import (
    CUSTOM_METADATA_MAX_BYTES,
    Epochs,
    MetadataEvent,
    PartitionDelete,
    SegmentMetadata,
    SegmentUpdate,
    partition_of,
)
from headwater.tier.events.partitioner import METADATA_PARTITIONS, metadata_partition_for
from headwater.tier.events.publisher_epoch import publisher_epoch_of, stamp, unstamp
from headwater.tier.events.states import (
    PartitionDeleteState,
    SegmentState,
    partition_may_become,
    segment_may_become,
)

__all__ = [
    "CUSTOM_METADATA_MAX_BYTES",
    "Epochs",
    "METADATA_PARTITIONS",
    "MetadataEvent",
    "PartitionDelete",
    "PartitionDeleteState",
    "SegmentMetadata",
    "SegmentState",
    "SegmentUpdate",
    "decode_event",
    "encode_event",
    "metadata_partition_for",
    "partition_may_become",
    "partition_of",
    "publisher_epoch_of",
    "segment_may_become",
    "stamp",
    "unstamp",
]
