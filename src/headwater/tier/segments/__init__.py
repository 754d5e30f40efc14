"""Remote segments: ranges of the log, each stored as one Parquet object.

    encoder         encodes groups as a segment, by a plan and settings
    columns         the columns of a segment: their types, Iceberg's field ids, the Parquet writer
    footer          the description and the index of a segment
    seal            the seal of an object, and its receipt in the events
    reading         reads parts of objects and decodes them
    object_storage  stores segments in a store

Always holds: a record is read as it was written, in every column and with its term, or `Corrupt` is
raised; an object is written once, under an id that no other attempt uses.
"""

from typing import TYPE_CHECKING

from headwater.lazy_exports import exports

if TYPE_CHECKING:
    from headwater.tier.segments.encoder import (
        EncodedSegment,
        SegmentConfig,
        SegmentPlan,
        encode_segment,
        log_range,
        new_segment_id,
    )
    from headwater.tier.segments.footer import SegmentIndex, read_index
    from headwater.tier.segments.object_storage import (
        ObjectStorage,
        ParquetSegments,
        PreparedSegment,
        segment_key,
    )
    from headwater.tier.segments.reading import ObjectCache

__all__ = [
    "EncodedSegment",
    "ObjectCache",
    "ObjectStorage",
    "ParquetSegments",
    "PreparedSegment",
    "SegmentConfig",
    "SegmentIndex",
    "SegmentPlan",
    "encode_segment",
    "log_range",
    "new_segment_id",
    "read_index",
    "segment_key",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "encoder": "EncodedSegment SegmentConfig SegmentPlan encode_segment log_range "
        "new_segment_id",
        "footer": "SegmentIndex read_index",
        "object_storage": "ObjectStorage ParquetSegments PreparedSegment segment_key",
        "reading": "ObjectCache",
    },
)
