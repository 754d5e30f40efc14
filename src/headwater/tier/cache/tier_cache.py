"""What is known of the remote segments of many partitions: events go in, answers come out.

Each event comes once, in the order of its log. Whether all have come is not known here: whoever
reads the log knows.
"""

from __future__ import annotations

from headwater.tier.cache.outcome import Outcome
from headwater.tier.cache.partition_cache import PartitionCache
from headwater.tier.errors import EventRejected
from headwater.tier.events.event import (
    MetadataEvent,
    PartitionDelete,
    SegmentMetadata,
    partition_of,
)
from headwater.tier.events.publisher_epoch import publisher_epoch_of
from headwater.tier.events.states import PartitionDeleteState
from headwater.tier.identity import TopicIdPartition
from headwater.tier.segment_cover import CoverPiece


class TierCache:
    """Partitions by their identity. Not for several threads at once."""

    def __init__(self) -> None:
        self._partitions: dict[TopicIdPartition, PartitionCache] = {}
        self._last_epochs: dict[TopicIdPartition, int] = {}
        """Of partitions that are deleted: what a stale leader says of them stays stale."""

    def apply(self, event: MetadataEvent, publisher_epoch: int | None = None) -> Outcome:
        """Follow an event.

        `publisher_epoch` is what stood beside the event; one about a segment carries its own.
        Raises `EventRejected` if the event does not follow, and `Corrupt` if its custom metadata
        begin with HWM1 and are cut off; it changed nothing then.
        """
        partition = partition_of(event)
        epoch = publisher_epoch_of(event, publisher_epoch)
        known = cache = self._partitions.get(partition)
        if cache is None:
            cache = PartitionCache(partition)
            cache.publisher_epoch = self._last_epochs.get(partition)
        if epoch is not None:
            if cache.publisher_epoch is not None and epoch < cache.publisher_epoch:
                return Outcome.STALE
            outcome = cache.apply(event)
            cache.publisher_epoch = epoch
        else:
            outcome = cache.apply(event)
        # An event about a segment takes nothing away from what is known of its partition.
        if known is None or isinstance(event, PartitionDelete):
            self._keep(cache)
        return outcome

    def follow(
        self, event: MetadataEvent, publisher_epoch: int | None = None
    ) -> Outcome | EventRejected:
        """As `apply`, for whoever reads a log: an event that does not follow is left out.

        Everybody reads the same events and leaves out the same ones.
        """
        try:
            return self.apply(event, publisher_epoch)
        except EventRejected as rejected:
            return rejected

    def replace(self, cache: PartitionCache) -> None:
        """Know of a partition what this one knows, as restored from a snapshot."""
        self._partitions.pop(cache.partition, None)
        self._last_epochs.pop(cache.partition, None)
        self._keep(cache)

    def partitions(self) -> list[TopicIdPartition]:
        """Those of which something is known, deleted ones left out."""
        return list(self._partitions)

    def partition(self, partition: TopicIdPartition) -> PartitionCache | None:
        """What is known of one partition."""
        return self._partitions.get(partition)

    def deleted(self) -> dict[TopicIdPartition, int]:
        """Partitions that are deleted or of which only a publisher's epoch is known, with that."""
        return dict(self._last_epochs)

    def publisher_epoch(self, partition: TopicIdPartition) -> int | None:
        """The newest epoch that has published for a partition, also if that is deleted."""
        cache = self._partitions.get(partition)
        return cache.publisher_epoch if cache else self._last_epochs.get(partition)

    def segment_at(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> SegmentMetadata | None:
        """The finished segment that holds an offset under an epoch."""
        cache = self._partitions.get(partition)
        return cache.segment_at(epoch, offset) if cache else None

    def segment_at_time(
        self, partition: TopicIdPartition, epoch: int, timestamp_ms: int, first_offset: int = 0
    ) -> SegmentMetadata | None:
        """The first segment of an epoch, from an offset on, with a record of this time or later."""
        cache = self._partitions.get(partition)
        return cache.segment_at_time(epoch, timestamp_ms, first_offset) if cache else None

    def highest_offset(self, partition: TopicIdPartition, epoch: int) -> int | None:
        """The last offset of an epoch that was ever finished."""
        cache = self._partitions.get(partition)
        return cache.highest_offset(epoch) if cache else None

    def segments(self, partition: TopicIdPartition) -> list[SegmentMetadata]:
        """All segments that are listed, in order of their start offsets."""
        cache = self._partitions.get(partition)
        return list(cache.segments()) if cache else []

    def segments_of(self, partition: TopicIdPartition, epoch: int) -> list[SegmentMetadata]:
        """The segments with offsets of an epoch, in order of their start offsets."""
        cache = self._partitions.get(partition)
        return cache.segments_of(epoch) if cache else []

    def cover(self, partition: TopicIdPartition, first_lsn: int, end_lsn: int) -> list[CoverPiece]:
        """What to read for [first_lsn, end_lsn), each LSN from one segment."""
        cache = self._partitions.get(partition)
        return cache.cover(first_lsn, end_lsn) if cache else []

    def delete_state(self, partition: TopicIdPartition) -> PartitionDeleteState | None:
        """How far the deletion of a partition has come; None also when it is over."""
        cache = self._partitions.get(partition)
        return cache.delete_state if cache else None

    def _keep(self, cache: PartitionCache) -> None:
        partition = cache.partition
        if cache.delete_state is PartitionDeleteState.FINISHED:
            self._partitions.pop(partition, None)
        elif not cache.is_blank:
            self._partitions[partition] = cache
            self._last_epochs.pop(partition, None)
            return
        if cache.publisher_epoch is not None:
            self._last_epochs[partition] = cache.publisher_epoch
