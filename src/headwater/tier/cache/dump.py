"""A cache as a value: the same dumps mean the same answers, now and after any event."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headwater.core.errors import Corrupt
from headwater.tier.cache.partition_cache import PartitionCache
from headwater.tier.cache.tier_cache import TierCache
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


def dump_all(cache: TierCache) -> tuple[PartitionDump, ...]:
    """The values of all partitions of a cache, ordered by their identity.

    A partition that is deleted has one as well: without its last publisher's epoch, what a stale
    leader says of it would count again.
    """
    caches = [one for one in map(cache.partition, cache.partitions()) if one is not None]
    for partition, epoch in cache.deleted().items():
        blank = PartitionCache(partition)
        blank.publisher_epoch = epoch
        caches.append(blank)
    caches.sort(key=lambda one: (one.partition.topic_id.int, one.partition.partition))
    return tuple(map(dump, caches))


def restore_all(dumps: Iterable[PartitionDump]) -> TierCache:
    """The cache whose partitions have these values; `Corrupt` if none has."""
    cache = TierCache()
    for dumped in dumps:
        cache.replace(restore(dumped))
    return cache
