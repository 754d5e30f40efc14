"""A partition's cache as a value: the same dump means the same answers, now and after any event."""

from __future__ import annotations

import msgspec

from headwater.core.errors import Corrupt
from headwater.tier.cache.partition_cache import PartitionCache
from headwater.tier.events.event import SegmentMetadata
from headwater.tier.events.states import PartitionDeleteState
from headwater.tier.identity import TopicIdPartition


class PartitionDump(msgspec.Struct, frozen=True):
    """Everything that is known of one partition."""

    partition: TopicIdPartition
    publisher_epoch: int | None
    delete_state: PartitionDeleteState | None
    finishes: int
    segments: tuple[SegmentMetadata, ...]
    """All that are listed, by start offset and id."""
    finished: tuple[int, ...]
    """For each of them, as how manieth it finished; 0 if it has not."""
    referenced: tuple[tuple[int, int, int], ...]
    """Epoch, start offset and place among the segments of what is found by its offsets."""
    highest: tuple[tuple[int, int | None], ...]
    """Every epoch that was ever there, with its highest offset."""


def dump(cache: PartitionCache) -> PartitionDump:
    """The value of a cache."""
    rows = sorted(cache.rows(), key=lambda row: cache.table.sort_key(row))
    places = {row: place for place, row in enumerate(rows)}
    referenced = sorted(
        (epoch, start, places[row])
        for epoch, index in cache.epochs.items()
        for start, row in index.referenced()
    )
    return PartitionDump(
        partition=cache.partition,
        publisher_epoch=cache.publisher_epoch,
        delete_state=cache.delete_state,
        finishes=cache.finishes,
        segments=tuple(map(cache.table.metadata, rows)),
        finished=tuple(cache.table.finished[row] for row in rows),
        referenced=tuple(referenced),
        highest=tuple(
            (epoch, cache.epochs[epoch].highest_offset) for epoch in sorted(cache.epochs)
        ),
    )


def restore(dumped: PartitionDump) -> PartitionCache:
    """The cache that has this value; `Corrupt` if none has."""
    cache = PartitionCache(dumped.partition)
    cache.publisher_epoch = dumped.publisher_epoch
    cache.delete_state = dumped.delete_state
    cache.finishes = dumped.finishes
    try:
        rows = [
            cache.list_segment(segment, finished)
            for segment, finished in zip(dumped.segments, dumped.finished, strict=True)
        ]
        for epoch, highest in dumped.highest:
            cache.epoch(epoch).highest_offset = highest
        for epoch, start, place in dumped.referenced:
            cache.epochs[epoch].restore(start, rows[place])
    except (ValueError, KeyError, IndexError) as error:
        raise Corrupt(f"the dump of {dumped.partition} contradicts itself: {error!r}") from error
    return cache
