"""The cache: the state of remote segments after the metadata events applied so far.

`TierCache` applies each event once, in the order of the log. It does not know whether it has seen
all events; the reader of the log knows that. `PartitionCache` is the state of one partition.

The rules are Kafka's. A look-up by epoch and offset takes the last finished segment of that epoch
that starts at or before the offset. It is a miss if the epoch ends in that segment before the
offset: from the start of the next epoch on, the segment belongs to another lineage.

Always holds: an event that is rejected, repeated or stale changes nothing; the highest offset of
an epoch never goes down; a segment is listed until it is deleted; an LSN is in at most one piece
of a cover.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from headwater.tier.errors import EventRejected
from headwater.tier.events import (
    MetadataEvent,
    PartitionDelete,
    PartitionDeleteState,
    SegmentId,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TopicIdPartition,
    partition_may_become,
    partition_of,
    publisher_epoch_of,
    segment_may_become,
)
from headwater.tier.offset_index import EpochIndex, StartIndex
from headwater.tier.segment_cover import CoverPiece, cover
from headwater.tier.segment_table import NOT_FINISHED, SegmentTable


class EventOutcome(StrEnum):
    """What an event changed; one that does not follow is rejected by an error instead."""

    CHANGED = "changed"
    REPEATED = "repeated"
    """What it says was so already."""
    STALE = "stale"
    """Its publisher's epoch is over: it changed nothing, and never will."""


class PartitionCache:
    """The segments of one partition. An event that is rejected changes nothing."""

    def __init__(self, partition: TopicIdPartition) -> None:
        self.partition = partition
        self.delete_state: PartitionDeleteState | None = None
        """How far the deletion of the whole partition has come, if somebody deletes it."""
        self.publisher_epoch: int | None = None
        """The newest epoch under which an event was published that was applied here."""
        self.finishes = 0
        """How many copies have finished so far."""
        self.table = SegmentTable(partition)
        self._listed = StartIndex(self.table.end.__getitem__)
        self._unfinished: set[int] = set()
        """Rows of segments that are being copied or deleted: few, whatever the tier has."""
        self.epochs: dict[int, EpochIndex] = {}

    @property
    def segment_count(self) -> int:
        """How many segments are listed."""
        return len(self.table)

    @property
    def is_blank(self) -> bool:
        """Whether nothing is known: no segment, no highest offset, no deletion."""
        return not self.epochs and self.delete_state is None

    def apply(self, event: MetadataEvent) -> EventOutcome:
        """Follow an event; `EventRejected` if it does not follow from what is there."""
        if isinstance(event, SegmentMetadata):
            return self._add(event)
        if isinstance(event, SegmentUpdate):
            return self._update(event)
        return self._delete(event)

    def segment_at(self, epoch: int, offset: int) -> SegmentMetadata | None:
        """The finished segment that holds an offset under an epoch."""
        index = self.epochs.get(epoch)
        found = index.floor(offset) if index is not None else None
        if found is None or offset > self.table.last_offset_of(found[1], epoch):
            return None
        return self.table.metadata(found[1])

    def segment_at_time(
        self, epoch: int, timestamp_ms: int, first_offset: int = 0
    ) -> SegmentMetadata | None:
        """The first segment of an epoch, from an offset on, with a record of this time or later."""
        index = self.epochs.get(epoch)
        if index is None:
            return None
        # The segment that holds the first offset begins before it.
        around = index.floor(first_offset)
        if around is not None and first_offset <= self.table.last_offset_of(around[1], epoch):
            first_offset = around[0]
        row = next(index.with_time(timestamp_ms, first_offset), None)
        return None if row is None else self.table.metadata(row)

    def highest_offset(self, epoch: int) -> int | None:
        """The last offset of an epoch that was ever finished, also if it was deleted since."""
        index = self.epochs.get(epoch)
        return None if index is None else index.highest_offset

    def find(self, segment_id: SegmentId) -> SegmentMetadata | None:
        """What is known of one segment."""
        row = self.table.find(segment_id.id)
        return None if row is None else self.table.metadata(row)

    def segments(self) -> Iterator[SegmentMetadata]:
        """All that are listed, in whatever state, in order of their start offsets and ids.

        By ids as well, so that a cache that was restored lists them as the first one did.
        """
        return map(self.table.metadata, sorted(self._listed, key=self.table.sort_key))

    def segments_part(
        self, first_lsn: int, most_segments: int
    ) -> tuple[list[SegmentMetadata], int | None]:
        """About so many of all, from a start offset on, and the one at which they go on.

        More where they start at one offset; None where none follow.
        """
        rows: list[int] = []
        goes_on: int | None = None
        start = self.table.start
        for row in self._listed.reaching(first_lsn, first=first_lsn):
            if len(rows) >= most_segments and start[row] > start[rows[-1]]:
                goes_on = start[row]
                break
            rows.append(row)
        rows.sort(key=self.table.sort_key)
        return list(map(self.table.metadata, rows)), goes_on

    def segments_of(self, epoch: int) -> list[SegmentMetadata]:
        """Those with offsets of an epoch, in whatever state, ordered as all of them are."""
        index = self.epochs.get(epoch)
        rows = sorted(index.listed(), key=self.table.sort_key) if index else []
        return list(map(self.table.metadata, rows))

    def segments_in(self, first_lsn: int, end_lsn: int) -> list[SegmentMetadata]:
        """Those with LSNs of [first_lsn, end_lsn), in whatever state, by their start offsets."""
        return list(map(self.table.metadata, self._listed.reaching(first_lsn, end=end_lsn)))

    def unfinished(self) -> list[SegmentMetadata]:
        """Those that are being copied or deleted, ordered as all of them are."""
        rows = sorted(self._unfinished, key=self.table.sort_key)
        return list(map(self.table.metadata, rows))

    def cover(self, first_lsn: int, end_lsn: int) -> list[CoverPiece]:
        """What to read for [first_lsn, end_lsn), each LSN from one segment."""
        return self._cover(list(self._listed.reaching(first_lsn, end=end_lsn)), first_lsn, end_lsn)

    def cover_part(
        self, first_lsn: int, end_lsn: int, most_segments: int
    ) -> tuple[list[CoverPiece], int]:
        """The first pieces of a cover, and where it goes on: for whoever walks a long one.

        About so many segments are looked at; more where they begin at one LSN.
        """
        rows: list[int] = []
        for row in self._listed.reaching(first_lsn, end=end_lsn):
            if len(rows) >= most_segments and self.table.start[row] > first_lsn:
                end_lsn = self.table.start[row]
                break
            rows.append(row)
        return self._cover(rows, first_lsn, end_lsn), end_lsn

    def rows(self) -> Sequence[int]:
        """The rows of all that are listed, in order of their start offsets, as a copy."""
        return self._listed.columns()[1]

    def epoch(self, epoch: int) -> EpochIndex:
        """The index of an epoch, which begins if it is not there."""
        found = self.epochs.get(epoch)
        if found is None:
            found = self.epochs[epoch] = EpochIndex(self.table)
        return found

    def list_segment(self, segment: SegmentMetadata, finished: int = NOT_FINISHED) -> int:
        """List a segment that is not there, under all of its epochs; its row."""
        row = self.table.add(segment, finished)
        if segment.state is not SegmentState.COPY_FINISHED:
            self._unfinished.add(row)
        self._listed.add(segment.start_offset, row)
        for epoch, _ in segment.epochs:
            self.epoch(epoch).started(row)
        return row

    def _add(self, event: SegmentMetadata) -> EventOutcome:
        if event.state is not SegmentState.COPY_STARTED:
            raise EventRejected(
                f"{event.segment_id} cannot begin as {event.state.name}: a segment is added as "
                "COPY_STARTED, and updated from then on"
            )
        row = self.table.find(event.segment_id.id)
        if row is not None:
            self._check(self.table.state(row), event)
            return EventOutcome.REPEATED
        self.list_segment(event)
        return EventOutcome.CHANGED

    def _update(self, event: SegmentUpdate) -> EventOutcome:
        row = self.table.find(event.segment_id.id)
        if row is None:
            if event.state is SegmentState.DELETE_FINISHED:
                # It is forgotten, which is what the event asks for: it came before.
                return EventOutcome.REPEATED
            raise EventRejected(
                f"{event.segment_id} is not known and cannot become {event.state.name}: it was "
                "never added, or is deleted",
                current=None,
            )
        now = self.table.state(row)
        self._check(now, event)
        if now is event.state:
            return EventOutcome.REPEATED
        self.table.update(row, event)
        if event.state is SegmentState.COPY_FINISHED:
            self._finish(row)
        elif event.state is SegmentState.DELETE_STARTED:
            self._unfinished.add(row)
            for epoch, start in self.table.epochs(row):
                self.epochs[epoch].deleting(start, row)
        else:
            self._forget(row)
        return EventOutcome.CHANGED

    def _delete(self, event: PartitionDelete) -> EventOutcome:
        now = self.delete_state
        if now is event.state or (now is None and event.state is PartitionDeleteState.FINISHED):
            return EventOutcome.REPEATED
        if not partition_may_become(now, event.state):
            raise EventRejected(
                f"the deletion of {self.partition} cannot become {event.state.name}: it is "
                f"{now.name if now is not None else 'not marked'}",
                current=now,
            )
        self.delete_state = event.state
        return EventOutcome.CHANGED

    def _cover(self, rows: Sequence[int], first_lsn: int, end_lsn: int) -> list[CoverPiece]:
        table = self.table
        finished = [row for row in rows if table.state(row) is SegmentState.COPY_FINISHED]
        finished.sort(key=table.finished.__getitem__)
        return cover(list(map(table.metadata, finished)), first_lsn, end_lsn)

    def _check(self, now: SegmentState, event: SegmentMetadata | SegmentUpdate) -> None:
        if not segment_may_become(now, event.state):
            raise EventRejected(
                f"{event.segment_id} cannot become {event.state.name}: it is {now.name}",
                current=now,
            )

    def _finish(self, row: int) -> None:
        self._unfinished.discard(row)
        self.finishes += 1
        self.table.finished[row] = self.finishes
        for epoch, start in self.table.epochs(row):
            end = self.table.last_offset_of(row, epoch)
            self.epochs[epoch].finished(start, end, row)

    def _forget(self, row: int) -> None:
        self._unfinished.discard(row)
        for epoch, _ in self.table.epochs(row):
            self.epochs[epoch].deleted(row)
        self._listed.remove(self.table.start[row], row)
        self.table.remove(row)


class TierCache:
    """Partitions by their identity. Not for several threads at once."""

    def __init__(self) -> None:
        self._partitions: dict[TopicIdPartition, PartitionCache] = {}
        self._last_epochs: dict[TopicIdPartition, int] = {}
        """Of partitions that are deleted: what a stale leader says of them stays stale."""

    def apply(self, event: MetadataEvent, publisher_epoch: int | None = None) -> EventOutcome:
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
                return EventOutcome.STALE
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
    ) -> EventOutcome | EventRejected:
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
