"""Which metadata a record of a published v1 batch has, looked up one record at a time."""

from __future__ import annotations

from headwater.buffer.queue.v1.manifest_format import ManifestEntry, MetadataItem


def item_for(entry: ManifestEntry, record_index: int) -> MetadataItem | None:
    """The last item that starts at or before this record; None if there is none."""
    for item in reversed(entry.metadata):
        if item.start_index <= record_index:
            return item
    return None
