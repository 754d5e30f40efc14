"""One partition as a metadata manager knows it, for the jobs."""

from __future__ import annotations

from headwater.core.errors import Refused
from headwater.tier.cache import EventOutcome
from headwater.tier.errors import NotReady
from headwater.tier.events import (
    MetadataEvent,
    PartitionDeleteState,
    SegmentId,
    SegmentMetadata,
    TopicIdPartition,
)
from headwater.tier.manager import TopicMetadataManager
from headwater.tier.segment_cover import CoverPiece


class ManagedPartition:
    """`PartitionMetadata` by a manager, which follows the partition's events.

    `NotReady` where it does not: of a metadata partition that is not assigned a manager knows
    nothing, and whoever decides by that would take all segments for gone.
    """

    def __init__(self, manager: TopicMetadataManager, partition: TopicIdPartition) -> None:
        self._manager = manager
        self._partition = partition

    async def refresh(self) -> None:
        """See `PartitionMetadata`."""
        try:
            await self._manager.refresh(self._manager.metadata_partition(self._partition))
        except Refused:
            self._following()  # says so if it is not assigned, or was taken away meanwhile
            raise

    async def publish(self, event: MetadataEvent, *, publisher_epoch: int) -> EventOutcome:
        """See `PartitionMetadata`."""
        return await self._following().publish(event, publisher_epoch=publisher_epoch)

    def segments(self) -> list[SegmentMetadata]:
        """All that are listed, in order of their start offsets, at once."""
        return self._following().segments(self._partition)

    def segments_part(
        self, first_lsn: int, most_segments: int
    ) -> tuple[list[SegmentMetadata], int | None]:
        """See `PartitionMetadata`."""
        known = self._following().partition(self._partition)
        return ([], None) if known is None else known.segments_part(first_lsn, most_segments)

    def cover(self, first_lsn: int, end_lsn: int) -> list[CoverPiece]:
        """See `PartitionMetadata`."""
        return self._following().cover(self._partition, first_lsn, end_lsn)

    def delete_state(self) -> PartitionDeleteState | None:
        """See `PartitionMetadata`."""
        return self._following().delete_state(self._partition)

    def find(self, segment_id: SegmentId) -> SegmentMetadata | None:
        """See `PartitionMetadata`."""
        known = self._following().partition(self._partition)
        return None if known is None else known.find(segment_id)

    def segments_in(self, first_lsn: int, end_lsn: int) -> list[SegmentMetadata]:
        """See `PartitionMetadata`."""
        known = self._following().partition(self._partition)
        return [] if known is None else known.segments_in(first_lsn, end_lsn)

    def unfinished(self) -> list[SegmentMetadata]:
        """See `PartitionMetadata`."""
        known = self._following().partition(self._partition)
        return [] if known is None else known.unfinished()

    def cover_part(
        self, first_lsn: int, end_lsn: int, most_segments: int
    ) -> tuple[list[CoverPiece], int]:
        """See `PartitionMetadata`."""
        known = self._following().partition(self._partition)
        if known is None:
            return [], end_lsn
        return known.cover_part(first_lsn, end_lsn, most_segments)

    def _following(self) -> TopicMetadataManager:
        metadata_partition = self._manager.metadata_partition(self._partition)
        # Whoever is ready is assigned: the list of all that are is made only for those who are not.
        is_ready = self._manager.is_ready(metadata_partition)
        if not is_ready and metadata_partition not in self._manager.assigned():
            raise NotReady(
                f"nobody follows metadata partition {metadata_partition}, which has the events of "
                f"{self._partition}: assign it (reconcile_assignment), then try again",
                partition=metadata_partition,
            )
        return self._manager
