"""The segments of one partition in columns: a million take tens of megabytes, not a gigabyte.

A row is a number. The row of a deleted segment is used again.

`IdTable` finds rows by their 16-byte ids in 20 to 28 bytes a row; a dict from `bytes` to `int`
takes some 180, which would be most of the cache.

`StartIndex` keeps rows sorted by a start offset, 12 bytes each, in chunks. Finding, adding and
removing take O(log n) and the copy of a chunk. So does finding the next row, in order of the
starts, whose value (an end offset, a time) is large enough: each chunk has the largest value in
it, and a `MaxTree` over the chunks leads to the next chunk that has one.
"""

from __future__ import annotations

import uuid
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
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
        for name, column in vars(self).items():
            setattr(twin, name, copy(column))
        return twin

    def find(self, segment: uuid.UUID) -> int | None:
        return self._ids.find(segment.bytes)

    def add(self, metadata: SegmentMetadata, finished: int = NOT_FINISHED) -> int:
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
        self.set_event(row, metadata)
        return row

    def set_event(self, row: int, event: SegmentMetadata | SegmentUpdate) -> None:
        """Set what every event of a segment has."""
        self._broker[row] = event.broker_id
        self._event_ms[row] = event.event_timestamp_ms
        self._custom[row] = event.custom_metadata
        self._state[row] = event.state

    def remove(self, row: int) -> None:
        self._ids.remove(self._ids.id_of(row))
        self._lineages.pop(row, None)
        self._custom[row] = None
        self._free.append(row)

    def state(self, row: int) -> SegmentState:
        return _STATES[self._state[row]]

    def epochs(self, row: int) -> Epochs:
        lineage = self._lineages.get(row) if self._lineages else None
        return lineage or ((self._epoch[row], self.start[row]),)

    def last_offset_of(self, row: int, epoch: int) -> int:
        lineage = self._lineages.get(row) if self._lineages else None
        for later, begins in lineage or ():
            if later > epoch:
                return begins - 1
        return self.end[row]

    def metadata(self, row: int) -> SegmentMetadata:
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


CHUNK_ROWS: Final = 128


class StartIndex:
    """Rows by (start, row). `value_of` returns the value of a row, which never changes."""

    __slots__ = ("_firsts", "_keys", "_maxima", "_rows", "_tree", "_value_of")

    def __init__(self, value_of: Callable[[int], int]) -> None:
        self._value_of = value_of
        self._firsts: list[int] = []
        """The first start of every chunk."""
        self._keys: list[array[int]] = []
        self._rows: list[array[int]] = []
        self._maxima: list[int] = []
        self._tree: MaxTree | None = None
        """A tree of the maxima; None after the chunks changed."""

    def __iter__(self) -> Iterator[int]:
        for rows in self._rows:
            yield from rows

    def columns(self) -> tuple[array[int], array[int]]:
        """A copy of all starts and rows, in order."""
        starts, all_rows = array("q"), array("i")
        for keys, rows in zip(self._keys, self._rows, strict=True):
            starts.extend(keys)
            all_rows.extend(rows)
        return starts, all_rows

    def add(self, start: int, row: int) -> None:
        if not self._keys or start >= self._keys[-1][-1]:
            self._add_last(start, row)
            return
        chunk = max(bisect_right(self._firsts, start) - 1, 0)
        keys, rows = self._keys[chunk], self._rows[chunk]
        place = bisect_right(keys, start)
        keys.insert(place, start)
        rows.insert(place, row)
        self._firsts[chunk] = keys[0]
        if len(keys) > CHUNK_ROWS:
            self._split(chunk)
        else:
            self._set_maximum(chunk, max(self._maxima[chunk], self._value_of(row)))

    def remove(self, start: int, row: int) -> bool:
        # The first chunk that may have it: equal starts may fill several chunks.
        chunk = max(bisect_left(self._firsts, start) - 1, 0)
        while chunk < len(self._firsts) and self._firsts[chunk] <= start:
            keys, rows = self._keys[chunk], self._rows[chunk]
            for place in range(bisect_left(keys, start), bisect_right(keys, start)):
                if rows[place] == row:
                    self._take(chunk, place)
                    return True
            chunk += 1
        return False

    def floor(self, start: int) -> tuple[int, int] | None:
        chunk = bisect_right(self._firsts, start) - 1
        if chunk < 0:
            return None
        keys = self._keys[chunk]
        place = bisect_right(keys, start) - 1
        return keys[place], self._rows[chunk][place]

    def last(self) -> tuple[int, int] | None:
        return (self._keys[-1][-1], self._rows[-1][-1]) if self._keys else None

    def rows_from(
        self, value: int, *, first: int | None = None, end: int | None = None
    ) -> Iterator[int]:
        """The rows that start in [first, end) and have at least this value, in order."""
        chunk, place = 0, 0
        if first is not None:
            chunk = max(bisect_left(self._firsts, first) - 1, 0)
            place = bisect_left(self._keys[chunk], first) if self._keys else 0
        value_of = self._value_of
        while (following := self._next_chunk(chunk, value)) is not None:
            if following != chunk:
                chunk, place = following, 0
            keys, rows = self._keys[chunk], self._rows[chunk]
            for at in range(place, len(rows)):
                if end is not None and keys[at] >= end:
                    return
                if value_of(rows[at]) >= value:
                    yield rows[at]
            chunk, place = chunk + 1, 0

    def _add_last(self, start: int, row: int) -> None:
        """Starts mostly rise: no search is needed, and full chunks stay full."""
        last = len(self._keys) - 1
        if last < 0 or len(self._keys[last]) >= CHUNK_ROWS:
            self._insert_chunk(last + 1, array("q", [start]), array("i", [row]))
            return
        self._keys[last].append(start)
        self._rows[last].append(row)
        value = self._value_of(row)
        if value > self._maxima[last]:
            self._set_maximum(last, value)

    def _next_chunk(self, chunk: int, value: int) -> int | None:
        if self._tree is None:
            self._tree = MaxTree(self._maxima)
        return self._tree.first_at_least(chunk, value)

    def _set_maximum(self, chunk: int, value: int) -> None:
        if value != self._maxima[chunk]:
            self._maxima[chunk] = value
            if self._tree is not None:
                self._tree.set(chunk, value)

    def _insert_chunk(self, chunk: int, keys: array[int], rows: array[int]) -> None:
        self._firsts.insert(chunk, keys[0])
        self._keys.insert(chunk, keys)
        self._rows.insert(chunk, rows)
        self._maxima.insert(chunk, max(map(self._value_of, rows)))
        self._tree = None

    def _split(self, chunk: int) -> None:
        keys, rows = self._keys[chunk], self._rows[chunk]
        half = len(keys) // 2
        self._insert_chunk(chunk + 1, keys[half:], rows[half:])
        # New arrays, so that the memory of the removed half is freed.
        self._keys[chunk], self._rows[chunk] = keys[:half], rows[:half]
        self._maxima[chunk] = max(map(self._value_of, self._rows[chunk]))

    def _take(self, chunk: int, place: int) -> None:
        keys, rows = self._keys[chunk], self._rows[chunk]
        value = self._value_of(rows[place])
        del keys[place], rows[place]
        if not keys:
            del self._firsts[chunk], self._keys[chunk], self._rows[chunk], self._maxima[chunk]
            self._tree = None
            return
        self._firsts[chunk] = keys[0]
        if value == self._maxima[chunk]:
            self._set_maximum(chunk, max(map(self._value_of, rows)))


_LEAST: Final = -(1 << 63)


class MaxTree:
    """A tree of maxima over a fixed number of numbers. Finds the next large one in O(log n)."""

    __slots__ = ("_count", "_size", "_tree")

    def __init__(self, values: Sequence[int]) -> None:
        self._count = len(values)
        self._size = 1 << max(self._count - 1, 0).bit_length()
        tree = array("q", [_LEAST]) * (2 * self._size)
        tree[self._size : self._size + self._count] = array("q", values)
        for place in range(self._size - 1, 0, -1):
            tree[place] = max(tree[2 * place], tree[2 * place + 1])
        self._tree = tree

    def set(self, index: int, value: int) -> None:
        tree, place = self._tree, index + self._size
        tree[place] = value
        while place > 1:
            place >>= 1
            tree[place] = max(tree[2 * place], tree[2 * place + 1])

    def first_at_least(self, begin: int, value: int) -> int | None:
        """The index of the first number from `begin` on that is at least `value`."""
        if begin >= self._count:
            return None
        tree, place = self._tree, begin + self._size
        while tree[place] < value:
            # Not in this part: go on to the largest part to the right of it.
            while place & 1:
                place >>= 1
            if place == 0:
                return None
            place += 1
        while place < self._size:
            place *= 2
            if tree[place] < value:
                place += 1
        index = place - self._size
        return index if index < self._count else None
