"""The segments of one partition in columns: a million take tens of megabytes, not a gigabyte.

A row is a number; that of a segment which is forgotten is used again.
"""

from __future__ import annotations

import uuid
from array import array
from copy import copy
from typing import Final

from headwater.tier.cache.id_table import IdTable
from headwater.tier.events.event import Epochs, SegmentMetadata, SegmentUpdate
from headwater.tier.events.states import SegmentState
from headwater.tier.identity import SegmentId, TopicIdPartition

NOT_FINISHED: Final = 0
_STATES: Final = tuple(SegmentState)


class SegmentTable:
    """Rows of segments, found by their ids."""

    __slots__ = (
        "_broker",
        "_custom",
        "_epoch",
        "_event_ms",
        "_free",
        "_ids",
        "_lineages",
        "_partition",
        "_size",
        "_state",
        "_txn_index_empty",
        "end",
        "finished",
        "max_ms",
        "start",
    )

    def __init__(self, partition: TopicIdPartition) -> None:
        self._partition = partition
        self._ids = IdTable()
        self.start = array("q")
        self.end = array("q")
        self.max_ms = array("q")
        self.finished = array("q")
        """In which order the copies finished, from 1; 0 if a copy has not."""
        self._event_ms = array("q")
        self._broker = array("i")
        self._size = array("i")
        self._state = bytearray()
        self._txn_index_empty = bytearray()
        self._epoch = array("i")
        self._lineages: dict[int, Epochs] = {}
        """Of segments with another lineage than one epoch from the start."""
        self._custom: list[bytes | None] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._ids)

    def __copy__(self) -> SegmentTable:
        twin = SegmentTable(self._partition)
        for column in self.__slots__:
            setattr(twin, column, copy(getattr(self, column)))
        return twin

    def find(self, segment: uuid.UUID) -> int | None:
        """The row of a segment."""
        return self._ids.find(segment.bytes)

    def add(self, metadata: SegmentMetadata, finished: int = NOT_FINISHED) -> int:
        """Keep a segment, whose id is not there; its row."""
        if self._free:
            row = self._free.pop()
        else:
            row = len(self.start)
            self._append()
        self._ids.put(metadata.segment_id.id.bytes, row)
        self.start[row] = metadata.start_offset
        self.end[row] = metadata.end_offset
        self.max_ms[row] = metadata.max_timestamp_ms
        self.finished[row] = finished
        self._size[row] = metadata.size_bytes
        self._txn_index_empty[row] = metadata.txn_index_empty
        self._epoch[row] = metadata.epochs[0][0]
        if metadata.epochs != ((metadata.epochs[0][0], metadata.start_offset),):
            self._lineages[row] = metadata.epochs
        self._set_event(row, metadata)
        return row

    def update(self, row: int, update: SegmentUpdate) -> None:
        """What an update changes."""
        self._set_event(row, update)

    def remove(self, row: int) -> None:
        """Forget a segment."""
        self._ids.remove(self._ids.id_of(row))
        self._lineages.pop(row, None)
        self._custom[row] = None
        self._free.append(row)

    def state(self, row: int) -> SegmentState:
        """How far a segment has come."""
        return _STATES[self._state[row]]

    def epochs(self, row: int) -> Epochs:
        """The leader epochs of a segment."""
        lineage = self._lineages.get(row) if self._lineages else None
        return lineage or ((self._epoch[row], self.start[row]),)

    def last_offset_of(self, row: int, epoch: int) -> int:
        """Where an epoch ends in a segment."""
        lineage = self._lineages.get(row) if self._lineages else None
        for later, begins in lineage or ():
            if later > epoch:
                return begins - 1
        return self.end[row]

    def metadata(self, row: int) -> SegmentMetadata:
        """The segment as an object."""
        return SegmentMetadata(
            segment_id=SegmentId(self._partition, uuid.UUID(bytes=self._ids.id_of(row))),
            start_offset=self.start[row],
            end_offset=self.end[row],
            broker_id=self._broker[row],
            max_timestamp_ms=self.max_ms[row],
            event_timestamp_ms=self._event_ms[row],
            epochs=self.epochs(row),
            size_bytes=self._size[row],
            state=self.state(row),
            custom_metadata=self._custom[row],
            txn_index_empty=bool(self._txn_index_empty[row]),
        )

    def sort_key(self, row: int) -> tuple[int, bytes]:
        """An order of rows that does not depend on when they were added."""
        return self.start[row], self._ids.id_of(row)

    def _set_event(self, row: int, event: SegmentMetadata | SegmentUpdate) -> None:
        self._broker[row] = event.broker_id
        self._event_ms[row] = event.event_timestamp_ms
        self._custom[row] = event.custom_metadata
        self._state[row] = event.state

    def _append(self) -> None:
        for column in (self.start, self.end, self.max_ms, self.finished, self._event_ms):
            column.append(0)
        for column in (self._broker, self._size, self._epoch):
            column.append(0)
        self._state.append(0)
        self._txn_index_empty.append(0)
        self._custom.append(None)
