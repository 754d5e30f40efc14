"""Remote segments: ranges of the log, each as one Parquet object.

Enters: groups of the log. Leaves: the same groups, by LSN, from object storage.

    plan            what is to be copied into one segment
    field_ids       the ids that Iceberg knows columns by
    columns         the columns of a segment, and which types they may have
    encoder         groups to bytes
    sink            where Parquet writes to
    from_log        from a log, and off the event loop
    description     what a segment says of itself
    seal            what tells an unchanged object from any other
    receipt         what the metadata events say of it
    index           where the records of a segment stand
    decoder         bytes to groups
    storage         what the tier asks of a storage
    object_storage  the one in a store
    object_ranges   reads parts of an object
    object_cache    keeps parts that were read

Always holds: a record comes back as it was, in every column and with its term, or `Corrupt` is
raised; an object is written once, under an id that no other attempt has.
"""

from typing import TYPE_CHECKING

from headwater.front import exports

if TYPE_CHECKING:
    from headwater.tier.segments.columns import FieldIds, can_share
    from headwater.tier.segments.encoder import (
        EncodedSegment,
        SegmentEncoder,
        encode_segment,
        log_range,
    )
    from headwater.tier.segments.footer import (
        Description,
        Receipt,
        SegmentIndex,
        read_index,
        receipt_of,
    )
    from headwater.tier.segments.object_storage import (
        ObjectStorage,
        PreparedSegment,
        RemoteStorage,
        segment_key,
    )
    from headwater.tier.segments.parquet_writer import SegmentConfig, SegmentPlan, new_segment_id
    from headwater.tier.segments.reading import ObjectCache

__all__ = [
    "Description",
    "EncodedSegment",
    "FieldIds",
    "ObjectCache",
    "ObjectStorage",
    "PreparedSegment",
    "Receipt",
    "RemoteStorage",
    "SegmentConfig",
    "SegmentEncoder",
    "SegmentIndex",
    "SegmentPlan",
    "can_share",
    "encode_segment",
    "log_range",
    "new_segment_id",
    "read_index",
    "receipt_of",
    "segment_key",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "columns": "FieldIds can_share",
        "encoder": "EncodedSegment SegmentEncoder encode_segment log_range",
        "footer": "Description Receipt SegmentIndex read_index receipt_of",
        "object_storage": "ObjectStorage PreparedSegment RemoteStorage segment_key",
        "parquet_writer": "SegmentConfig SegmentPlan new_segment_id",
        "reading": "ObjectCache",
    },
)
