"""What segments say of themselves: read from the ends of their objects, and checked by the seal."""

from __future__ import annotations

import uuid
from typing import Final

from headwater.core.errors import Corrupt
from headwater.store import Store
from headwater.tier.events import SegmentMetadata
from headwater.tier.identity import SegmentId, TopicIdPartition
from headwater.tier.segments.object_ranges import open_index
from headwater.tier.segments.object_storage import segment_key
from headwater.tier.segments.receipt import UNKNOWN_XXH3, Receipt

NOBODY: Final = -1
"""The broker of an event that no leader has published."""


async def described(store: Store, segment_id: SegmentId, *, stored_ms: int = 0) -> SegmentMetadata:
    """The event that a segment's copy began, by the end of its object.

    `Corrupt` if that is damaged or another segment's. Who copied it is not in it: the epoch in the
    custom metadata is the newest one of its records.
    """
    key = segment_key(segment_id)
    _, index = await open_index(store, key, None)
    said = index.description
    if said.identity != segment_id:
        raise Corrupt(f"{key} holds {said.identity}")
    receipt = Receipt(
        said.rows,
        index.size_bytes,
        len(index.seal.footer),
        said.schema_version,
        said.sequences,
        UNKNOWN_XXH3,
    )
    return SegmentMetadata(
        segment_id=segment_id,
        start_offset=said.first_lsn,
        end_offset=said.last_lsn,
        broker_id=NOBODY,
        max_timestamp_ms=said.max_timestamp_ms,
        event_timestamp_ms=stored_ms,
        epochs=said.epochs,
        size_bytes=index.size_bytes,
        custom_metadata=receipt.stamped(said.epochs[-1][0]),
        txn_index_empty=True,
    )


def segment_id_of(partition: TopicIdPartition, key: str) -> SegmentId | None:
    """Which segment of a partition stands under a key; None if it is none of its."""
    try:
        name = uuid.UUID(key.rpartition("/")[2].removesuffix(".parquet"))
    except ValueError:
        return None
    found = SegmentId(partition, name)
    return found if segment_key(found) == key else None
