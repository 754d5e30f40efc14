"""The cache's rules, literally: lists that are looked through from one end to the other."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from headwater.tier import (
    EventOutcome,
    MetadataEvent,
    PartitionDelete,
    PartitionDeleteState,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
)
from headwater.tier.events import publisher_epoch_of
from tests.tier.given import updated

SEGMENT_STEPS = {(0, 1), (0, 2), (1, 2), (2, 3)}
REJECTED = "rejected"


@dataclass
class ModelEpoch:
    """Of one epoch: which segment is found from which start on."""

    found: dict[int, uuid.UUID] = field(default_factory=dict)
    highest: int | None = None


@dataclass
class ModelPartition:
    """One partition, as KIP-405 describes it."""

    segments: dict[uuid.UUID, SegmentMetadata] = field(default_factory=dict)
    finish_order: list[uuid.UUID] = field(default_factory=list)
    epochs: dict[int, ModelEpoch] = field(default_factory=dict)
    publisher: int | None = None
    deletion: PartitionDeleteState | None = None

    def apply(self, event: MetadataEvent, beside: int | None) -> str:
        epoch = publisher_epoch_of(event, beside)
        if epoch is not None and self.publisher is not None and epoch < self.publisher:
            return EventOutcome.STALE
        outcome = self._follow(event)
        if outcome != REJECTED and epoch is not None:
            self.publisher = epoch
        return outcome

    def _follow(self, event: MetadataEvent) -> str:
        if isinstance(event, PartitionDelete):
            return self._follow_deletion(event.state)
        known = self.segments.get(event.segment_id.id)
        if isinstance(event, SegmentMetadata):
            if event.state != 0 or (known is not None and known.state != 0):
                return REJECTED
            if known is not None:
                return EventOutcome.REPEATED
            self.segments[event.segment_id.id] = event
            return EventOutcome.CHANGED
        if known is None:
            return EventOutcome.REPEATED if event.state == 3 else REJECTED
        if known.state == event.state:
            return EventOutcome.REPEATED
        if (known.state, event.state) not in SEGMENT_STEPS:
            return REJECTED
        self._move(known, event)
        return EventOutcome.CHANGED

    def _move(self, known: SegmentMetadata, event: SegmentUpdate) -> None:
        name = event.segment_id.id
        self.segments[name] = updated(known, event)
        if event.state == SegmentState.COPY_FINISHED:
            self.finish_order.append(name)
            for epoch, start in known.epochs:
                self._finish(self.epochs.setdefault(epoch, ModelEpoch()), epoch, start, known)
        elif event.state == SegmentState.DELETE_STARTED:
            for one in self.epochs.values():
                one.found = {start: other for start, other in one.found.items() if other != name}
        else:
            del self.segments[name]

    def _finish(self, one: ModelEpoch, epoch: int, start: int, segment: SegmentMetadata) -> None:
        end = segment.last_offset_of(epoch)
        if one.highest is not None and one.highest <= end:
            one.found = {at: other for at, other in one.found.items() if at < start}
        one.found[start] = segment.segment_id.id
        one.highest = end if one.highest is None else max(one.highest, end)

    def _follow_deletion(self, state: PartitionDeleteState) -> str:
        if state == self.deletion or (self.deletion is None and state == 2):
            return EventOutcome.REPEATED
        if state != (0 if self.deletion is None else self.deletion + 1):
            return REJECTED
        self.deletion = state
        if state == PartitionDeleteState.FINISHED:
            # Only who published last outlives the partition.
            self.segments, self.finish_order, self.epochs = {}, [], {}
            self.deletion = None
        return EventOutcome.CHANGED

    def at(self, epoch: int, offset: int) -> uuid.UUID | None:
        starts = [start for start in self._found(epoch) if start <= offset]
        if not starts:
            return None
        name = self._found(epoch)[max(starts)]
        return name if offset <= self.segments[name].last_offset_of(epoch) else None

    def at_time(self, epoch: int, timestamp_ms: int, first_offset: int) -> uuid.UUID | None:
        around = self.at(epoch, first_offset)
        for start, name in sorted(self._found(epoch).items()):
            is_ahead = start >= first_offset or name == around
            if is_ahead and self.segments[name].max_timestamp_ms >= timestamp_ms:
                return name
        return None

    def finished(self) -> list[SegmentMetadata]:
        """Those to read from, in the order in which they finished."""
        known = [self.segments[name] for name in self.finish_order if name in self.segments]
        return [one for one in known if one.state == SegmentState.COPY_FINISHED]

    def _found(self, epoch: int) -> dict[int, uuid.UUID]:
        return self.epochs[epoch].found if epoch in self.epochs else {}
