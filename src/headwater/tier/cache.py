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

from collections.abc import Sequence
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
from headwater.tier.segment_cover import CoverPiece, cover
from headwater.tier.segment_table import NOT_FINISHED, SegmentTable, StartIndex


class EventOutcome(StrEnum):
    """What an event changed. An event that does not follow raises `EventRejected` instead."""

    CHANGED = "changed"
    REPEATED = "repeated"
    """The state was already the one that it sets."""
    STALE = "stale"
    """Its publisher epoch is over: it changed nothing, and never will."""


class EpochIndex:
    """The segments that look-ups of one epoch return. A segment that finished later wins: one whose
    offsets of this epoch it covers completely is no longer returned, only listed."""

    __slots__ = ("highest_offset", "referenced")

    def __init__(self, table: SegmentTable) -> None:
        self.referenced = StartIndex(table.max_ms.__getitem__)
        self.highest_offset: int | None = None
        """The last offset of this epoch that ever finished: it never goes down."""

    def reference(self, start: int, end: int, row: int) -> None:
        """A copy finished that has this epoch from `start` through `end`."""
        referenced, highest = self.referenced, self.highest_offset
        if highest is not None and highest <= end:
            while (last := referenced.last()) is not None and last[0] >= start:
                self.unreference(*last)
        same = referenced.floor(start)
        if same is not None and same[0] == start:
            self.unreference(*same)
        referenced.add(start, row)
        self.highest_offset = end if highest is None else max(highest, end)

    def unreference(self, start: int, row: int) -> None:
        """Let look-ups no longer return a segment, which stays listed until it is deleted."""
        self.referenced.remove(start, row)


class PartitionCache:
    """The segments of one partition. An event that is rejected changes nothing."""

    def __init__(self, partition: TopicIdPartition) -> None:
        self.partition = partition
        self.delete_state: PartitionDeleteState | None = None
        """The state of a deletion of the whole partition, if there is one."""
        self.publisher_epoch: int | None = None
        """The newest epoch of the events that were applied."""
        self.finishes = 0
        """How many copies have finished so far."""
        self.table = SegmentTable(partition)
        self._listed = StartIndex(self.table.end.__getitem__)
        self._unfinished: set[int] = set()
        """Rows of segments that are being copied or deleted: few, however large the tier is."""
        self.epochs: dict[int, EpochIndex] = {}

    @property
    def segment_count(self) -> int:
        return len(self.table)

    @property
    def is_blank(self) -> bool:
        """Whether there is no segment, no highest offset and no deletion."""
        return not self.epochs and self.delete_state is None

    def apply(self, event: MetadataEvent) -> EventOutcome:
        """Apply an event; `EventRejected` if it does not follow from the state."""
        if isinstance(event, SegmentMetadata):
            return self._add(event)
        if isinstance(event, SegmentUpdate):
            return self._update(event)
        return self._delete(event)

    def segment_at(self, epoch: int, offset: int) -> SegmentMetadata | None:
        index = self.epochs.get(epoch)
        start_and_row = index.referenced.floor(offset) if index is not None else None
        if start_and_row is None or offset > self.table.last_offset_of(start_and_row[1], epoch):
            return None
        return self.table.metadata(start_and_row[1])

    def segment_at_time(
        self, epoch: int, timestamp_ms: int, first_offset: int = 0
    ) -> SegmentMetadata | None:
        """The first segment of an epoch, from an offset on, with a record of this time or later."""
        index = self.epochs.get(epoch)
        if index is None:
            return None
        # The segment that holds the first offset starts before it.
        around = index.referenced.floor(first_offset)
        if around is not None and first_offset <= self.table.last_offset_of(around[1], epoch):
            first_offset = around[0]
        row = next(index.referenced.rows_from(timestamp_ms, first=first_offset), None)
        return None if row is None else self.table.metadata(row)

    def highest_offset(self, epoch: int) -> int | None:
        """The last offset of an epoch that ever finished, even if its segment was deleted since."""
        index = self.epochs.get(epoch)
        return None if index is None else index.highest_offset

    def find(self, segment_id: SegmentId) -> SegmentMetadata | None:
        row = self.table.find(segment_id.id)
        return None if row is None else self.table.metadata(row)

    def segments(self) -> list[SegmentMetadata]:
        """All listed segments, in any state, in order of their start offsets and ids.

        The ids make the order of a restored cache the same.
        """
        return list(map(self.table.metadata, sorted(self._listed, key=self.table.sort_key)))

    def segments_part(
        self, first_lsn: int, most_segments: int
    ) -> tuple[list[SegmentMetadata], int | None]:
        """About `most_segments` listed segments from a start offset on, and where the next part
        starts: None after the last.

        There are more if several start at the same offset.
        """
        rows: list[int] = []
        next_start: int | None = None
        start = self.table.start
        for row in self._listed.rows_from(first_lsn, first=first_lsn):
            if len(rows) >= most_segments and start[row] > start[rows[-1]]:
                next_start = start[row]
                break
            rows.append(row)
        rows.sort(key=self.table.sort_key)
        return list(map(self.table.metadata, rows)), next_start

    def segments_of(self, epoch: int) -> list[SegmentMetadata]:
        """The segments with offsets of an epoch, in any state, in the order of `segments`."""
        return [one for one in self.segments() if epoch in dict(one.epochs)]

    def segments_in(self, first_lsn: int, end_lsn: int) -> list[SegmentMetadata]:
        """The segments with LSNs of [first_lsn, end_lsn), in any state, by their start offsets."""
        return list(map(self.table.metadata, self._listed.rows_from(first_lsn, end=end_lsn)))

    def unfinished(self) -> list[SegmentMetadata]:
        """The segments that are being copied or deleted, in the order of `segments`: few."""
        rows = sorted(self._unfinished, key=self.table.sort_key)
        return list(map(self.table.metadata, rows))

    def cover(self, first_lsn: int, end_lsn: int) -> list[CoverPiece]:
        return self._cover(list(self._listed.rows_from(first_lsn, end=end_lsn)), first_lsn, end_lsn)

    def cover_part(
        self, first_lsn: int, end_lsn: int, most_segments: int
    ) -> tuple[list[CoverPiece], int]:
        """The first pieces of a cover, from about `most_segments` segments, and the LSN at which
        the next part begins: `end_lsn` after the last.

        There are more segments if several start at the same LSN.
        """
        rows: list[int] = []
        for row in self._listed.rows_from(first_lsn, end=end_lsn):
            if len(rows) >= most_segments and self.table.start[row] > first_lsn:
                end_lsn = self.table.start[row]
                break
            rows.append(row)
        return self._cover(rows, first_lsn, end_lsn), end_lsn

    def rows(self) -> Sequence[int]:
        """A copy of the rows of all listed segments, in order of their start offsets."""
        return self._listed.columns()[1]

    def epoch(self, epoch: int) -> EpochIndex:
        index = self.epochs.get(epoch)
        if index is None:
            index = self.epochs[epoch] = EpochIndex(self.table)
        return index

    def list_segment(self, segment: SegmentMetadata, finished: int = NOT_FINISHED) -> int:
        """Add a new segment under all of its epochs; returns its row."""
        row = self.table.add(segment, finished)
        if segment.state is not SegmentState.COPY_FINISHED:
            self._unfinished.add(row)
        self._listed.add(segment.start_offset, row)
        for epoch, _ in segment.epochs:
            self.epoch(epoch)
        return row

    def _add(self, event: SegmentMetadata) -> EventOutcome:
        if event.state is not SegmentState.COPY_STARTED:
            raise EventRejected(
                f"{event.segment_id} cannot start as {event.state.name}: a segment is added as "
                "COPY_STARTED, and updated from then on"
            )
        row = self.table.find(event.segment_id.id)
        if row is not None:
            self._check_transition(self.table.state(row), event)
            return EventOutcome.REPEATED
        self.list_segment(event)
        return EventOutcome.CHANGED

    def _update(self, event: SegmentUpdate) -> EventOutcome:
        row = self.table.find(event.segment_id.id)
        if row is None:
            if event.state is SegmentState.DELETE_FINISHED:
                # The segment is removed already: the same event came before.
                return EventOutcome.REPEATED
            raise EventRejected(
                f"{event.segment_id} is not known and cannot become {event.state.name}: it was "
                "never added, or is deleted",
                current=None,
            )
        now = self.table.state(row)
        self._check_transition(now, event)
        if now is event.state:
            return EventOutcome.REPEATED
        self.table.set_event(row, event)
        if event.state is SegmentState.COPY_FINISHED:
            self._unfinished.discard(row)
            self.finishes += 1
            self.table.finished[row] = self.finishes
            for epoch, start in self.table.epochs(row):
                end = self.table.last_offset_of(row, epoch)
                self.epochs[epoch].reference(start, end, row)
        elif event.state is SegmentState.DELETE_STARTED:
            self._unfinished.add(row)
            for epoch, start in self.table.epochs(row):
                self.epochs[epoch].unreference(start, row)
        else:
            self._unfinished.discard(row)
            self._listed.remove(self.table.start[row], row)
            self.table.remove(row)
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

    def _check_transition(self, now: SegmentState, event: SegmentMetadata | SegmentUpdate) -> None:
        if not segment_may_become(now, event.state):
            raise EventRejected(
                f"{event.segment_id} cannot become {event.state.name}: it is {now.name}",
                current=now,
            )


class TierCache:
    """The state of many partitions. Not thread-safe."""

    def __init__(self) -> None:
        self._partitions: dict[TopicIdPartition, PartitionCache] = {}
        self._deleted_epochs: dict[TopicIdPartition, int] = {}
        """The last publisher epochs of deleted partitions: events of older leaders stay stale."""

    def apply(self, event: MetadataEvent, publisher_epoch: int | None = None) -> EventOutcome:
        """Apply an event.

        `publisher_epoch` is the epoch that the log keeps beside the event; events about segments
        carry their own. Raises `EventRejected` if the event does not follow from the state, and
        `Corrupt` if its custom metadata begin with HWM1 and are cut off; both change nothing.
        """
        partition = partition_of(event)
        epoch = publisher_epoch_of(event, publisher_epoch)
        cache = self.partition(partition)
        newest = cache.publisher_epoch
        if epoch is not None and newest is not None and epoch < newest:
            return EventOutcome.STALE
        outcome = cache.apply(event)
        if epoch is not None:
            cache.publisher_epoch = epoch
        # An event about a segment never makes a known partition an empty one.
        if partition not in self._partitions or isinstance(event, PartitionDelete):
            self._store(cache)
        return outcome

    def follow(
        self, event: MetadataEvent, publisher_epoch: int | None = None
    ) -> EventOutcome | EventRejected:
        """Like `apply`, for readers of a log: returns the error of an event that is rejected.

        All readers read the same events and reject the same ones.
        """
        try:
            return self.apply(event, publisher_epoch)
        except EventRejected as rejected:
            return rejected

    def replace(self, cache: PartitionCache) -> None:
        self._partitions.pop(cache.partition, None)
        self._deleted_epochs.pop(cache.partition, None)
        self._store(cache)

    def partitions(self) -> list[TopicIdPartition]:
        """The partitions that have a state, without deleted ones."""
        return list(self._partitions)

    def partition(self, partition: TopicIdPartition) -> PartitionCache:
        """The state of one partition: an empty one, with its last publisher epoch, if it is deleted
        or unknown."""
        cache = self._partitions.get(partition)
        if cache is None:
            cache = PartitionCache(partition)
            cache.publisher_epoch = self._deleted_epochs.get(partition)
        return cache

    def deleted(self) -> dict[TopicIdPartition, int]:
        """The last publisher epochs of partitions that are deleted or have no other state."""
        return dict(self._deleted_epochs)

    def _store(self, cache: PartitionCache) -> None:
        partition = cache.partition
        if cache.delete_state is PartitionDeleteState.FINISHED:
            self._partitions.pop(partition, None)
        elif not cache.is_blank:
            self._partitions[partition] = cache
            self._deleted_epochs.pop(partition, None)
            return
        if cache.publisher_epoch is not None:
            self._deleted_epochs[partition] = cache.publisher_epoch
