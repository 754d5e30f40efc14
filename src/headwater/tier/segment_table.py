"""The segments of one partition in columns: a million take tens of megabytes, not a gigabyte.

A row is a number. The row of a deleted segment is used again. `IdTable` finds rows by their
16-byte ids in 20 to 28 bytes a row; a dict from `bytes` to `int` takes some 180, which would be
most of the cache.
"""

from __future__ import annotations

import uuid
from array import array
from copy import copy
from typing import Final

from headwater.tier.events import (
    Epochs,
    SegmentId,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TopicIdPartition,
)

NOT_FINISHED: Final = 0
_STATES: Final = tuple(SegmentState)


class SegmentTable:
    """The rows of segments, by their ids."""

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
        """The order in which the copies finished, from 1; 0 if unfinished."""
        self._event_ms = array("q")
        self._broker = array("i")
        self._size = array("i")
        self._state = bytearray()
        self._txn_index_empty = bytearray()
        self._epoch = array("i")
        self._lineages: dict[int, Epochs] = {}
        """Lineages other than one epoch from the start."""
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
        """Add a segment with a new id; returns its row."""
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
        """Apply an update."""
        self._set_event(row, update)

    def remove(self, row: int) -> None:
        """Remove a segment."""
        self._ids.remove(self._ids.id_of(row))
        self._lineages.pop(row, None)
        self._custom[row] = None
        self._free.append(row)

    def state(self, row: int) -> SegmentState:
        """The state of a segment."""
        return _STATES[self._state[row]]

    def epochs(self, row: int) -> Epochs:
        """The leader epochs of a segment."""
        lineage = self._lineages.get(row) if self._lineages else None
        return lineage or ((self._epoch[row], self.start[row]),)

    def last_offset_of(self, row: int, epoch: int) -> int:
        """The last offset of an epoch in a segment."""
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
        """Orders rows independently of when they were added."""
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


ID_BYTES: Final = 16
_FREE: Final = -1
_DELETED: Final = -2
_LEAST_SLOTS: Final = 8


class IdTable:
    """A hash table with open addressing, at most two thirds full."""

    __slots__ = ("_ids", "_mask", "_rows", "_slots", "_taken")

    def __init__(self) -> None:
        self._ids = bytearray()
        self._slots = array("i", [_FREE]) * _LEAST_SLOTS
        self._mask = _LEAST_SLOTS - 1
        self._rows = 0
        self._taken = 0

    def __len__(self) -> int:
        return self._rows

    def id_of(self, row: int) -> bytes:
        """The last id that was put for a row."""
        return bytes(self._ids[row * ID_BYTES : (row + 1) * ID_BYTES])

    def __copy__(self) -> IdTable:
        twin = IdTable()
        twin._ids, twin._slots = self._ids[:], self._slots[:]
        twin._mask, twin._rows, twin._taken = self._mask, self._rows, self._taken
        return twin

    def find(self, id_bytes: bytes) -> int | None:
        """The row of an id."""
        slot = self._slot_of(id_bytes)
        return None if slot is None else self._slots[slot]

    def put(self, id_bytes: bytes, row: int) -> None:
        """Set the id of a row, which no other row has; it is the next row or a freed one."""
        at = row * ID_BYTES
        self._ids[at : at + ID_BYTES] = id_bytes
        if 3 * (self._taken + 1) > 2 * len(self._slots):
            self._grow()
        self._insert(id_bytes, row)
        self._rows += 1

    def remove(self, id_bytes: bytes) -> None:
        """Remove an id, if it is there."""
        slot = self._slot_of(id_bytes)
        if slot is not None:
            # Not free: ids that were put behind this slot are searched past it.
            self._slots[slot] = _DELETED
            self._rows -= 1

    def _slot_of(self, id_bytes: bytes) -> int | None:
        slots, mask, ids = self._slots, self._mask, self._ids
        slot = hash(id_bytes) & mask
        while (row := slots[slot]) != _FREE:
            if row >= 0 and ids[row * ID_BYTES : (row + 1) * ID_BYTES] == id_bytes:
                return slot
            slot = (slot + 1) & mask
        return None

    def _insert(self, id_bytes: bytes, row: int) -> None:
        slots, mask = self._slots, self._mask
        slot = hash(id_bytes) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        self._taken += slots[slot] == _FREE
        slots[slot] = row

    def _grow(self) -> None:
        rows = [row for row in self._slots if row >= 0]
        size = _LEAST_SLOTS
        while size < 3 * (len(rows) + 1):
            size *= 2
        self._slots = array("i", [_FREE]) * size
        self._mask = size - 1
        self._taken = 0
        for row in rows:
            self._insert(self.id_of(row), row)
