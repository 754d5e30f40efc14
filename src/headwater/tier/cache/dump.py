"""A cache as a value: the same dumps mean the same answers, now and after any event.

A dump is a copy of the cache's columns, which takes tens of milliseconds for a million segments.
The segments are made of it one at a time when somebody goes through them, which takes seconds and
may be done on a thread while the cache goes on.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property
from typing import TypeVar, overload

import msgspec

from headwater.core.errors import Corrupt
from headwater.tier.cache.partition_cache import PartitionCache
from headwater.tier.cache.tier_cache import TierCache
from headwater.tier.events.event import SegmentMetadata
from headwater.tier.events.states import PartitionDeleteState
from headwater.tier.identity import TopicIdPartition

T = TypeVar("T")


class PartitionDump(msgspec.Struct, frozen=True):
    """Everything that is known of one partition."""

    partition: TopicIdPartition
    publisher_epoch: int | None
    delete_state: PartitionDeleteState | None
    finishes: int
    segments: Sequence[SegmentMetadata]
    """All that are listed, by start offset and id."""
    finished: Sequence[int]
    """For each of them, as how manieth it finished; 0 if it has not."""
    referenced: Sequence[tuple[int, int, int]]
    """Epoch, start offset and place among the segments of what is found by its offsets."""
    highest: tuple[tuple[int, int | None], ...]
    """Every epoch that was ever there, with its highest offset."""


class _Lazy(Sequence[T]):
    """Things that are made when somebody goes through them, each time anew."""

    def __init__(self, length: int, made: Callable[[], Iterator[T]]) -> None:
        self._length = length
        self._made = made

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        return self._made()

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __repr__(self) -> str:
        return repr(tuple(self))


class _Columns:
    """What a cache knew of its segments at one moment."""

    def __init__(self, cache: PartitionCache) -> None:
        self._table = copy(cache.table)
        self._rows = cache.rows()
        self._referenced = {
            epoch: cache.epochs[epoch].referenced() for epoch in sorted(cache.epochs)
        }

    @cached_property
    def _order(self) -> array[int]:
        return array("i", sorted(self._rows, key=self._table.sort_key))

    @property
    def referenced_count(self) -> int:
        return sum(len(rows) for _, rows in self._referenced.values())

    def segments(self) -> Iterator[SegmentMetadata]:
        return map(self._table.metadata, self._order)

    def finished(self) -> Iterator[int]:
        return map(self._table.finished.__getitem__, self._order)

    def referenced(self) -> Iterator[tuple[int, int, int]]:
        places = array("i", bytes(4 * len(self._table.start)))
        for place, row in enumerate(self._order):
            places[row] = place
        for epoch, (starts, rows) in self._referenced.items():
            for start, row in zip(starts, rows, strict=True):
                yield epoch, start, places[row]


def dump(cache: PartitionCache) -> PartitionDump:
    """The value of a cache."""
    columns, count = _Columns(cache), cache.segment_count
    return PartitionDump(
        partition=cache.partition,
        publisher_epoch=cache.publisher_epoch,
        delete_state=cache.delete_state,
        finishes=cache.finishes,
        segments=_Lazy(count, columns.segments),
        finished=_Lazy(count, columns.finished),
        referenced=_Lazy(columns.referenced_count, columns.referenced),
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
