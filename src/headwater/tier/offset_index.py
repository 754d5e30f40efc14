"""Indexes over the rows of a segment table: by start offset, and by leader epoch and offset.

`StartIndex` keeps rows sorted by a start offset, 12 bytes each, in chunks. Finding, adding and
removing take O(log n) and the copy of a chunk. So does finding the next row, in order of the
starts, whose value (an end offset, a time) is large enough: each chunk has the largest value in
it, and a `MaxTree` over the chunks leads to the next chunk that has one.

`EpochIndex` has the finished segments of one leader epoch. A segment that finished later wins: a
segment whose offsets of this epoch it covers completely is unreferenced, which means that
look-ups by offset do not return it but it is still listed, so that it can be deleted.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from headwater.tier.segment_table import SegmentTable


class EpochIndex:
    """The rows of one epoch: those that look-ups return, and those that are only listed."""

    __slots__ = ("_referenced", "_unreferenced", "highest_offset")

    def __init__(self, table: SegmentTable) -> None:
        self._referenced = StartIndex(table.max_ms.__getitem__)
        self._unreferenced: set[int] = set()
        self.highest_offset: int | None = None
        """The last offset of this epoch that ever finished: it never goes down."""

    def add_listed(self, row: int) -> None:
        """Add a segment whose copy started: look-ups do not return it yet."""
        self._unreferenced.add(row)

    def reference(self, start: int, end: int, row: int) -> None:
        """A copy finished that has this epoch from `start` through `end`."""
        referenced, highest = self._referenced, self.highest_offset
        if highest is not None and highest <= end:
            while (last := referenced.last()) is not None and last[0] >= start:
                self.unreference(*last)
        same = referenced.floor(start)
        if same is not None and same[0] == start:
            self.unreference(*same)
        referenced.add(start, row)
        self._unreferenced.discard(row)
        self.highest_offset = end if highest is None else max(highest, end)

    def unreference(self, start: int, row: int) -> None:
        """Keep a segment only listed: it is being deleted, and the deletion may be retried."""
        self._referenced.remove(start, row)
        self._unreferenced.add(row)

    def remove(self, row: int) -> None:
        """Remove a deleted segment."""
        self._unreferenced.discard(row)

    def floor(self, offset: int) -> tuple[int, int] | None:
        """Start and row of the last referenced segment that starts at or before the offset."""
        return self._referenced.floor(offset)

    def rows_with_time(self, timestamp_ms: int, first_offset: int) -> Iterator[int]:
        """Rows that start at the offset or later and have a record of this time or later."""
        return self._referenced.rows_from(timestamp_ms, first=first_offset)

    def referenced(self) -> tuple[array[int], array[int]]:
        """A copy of the starts and rows of referenced segments, in order."""
        return self._referenced.columns()

    def listed(self) -> Iterator[int]:
        """All rows of this epoch, unordered."""
        yield from self._referenced
        yield from self._unreferenced

    def restore(self, start: int, row: int) -> None:
        """Reference a row again, as it is in a dump."""
        self._referenced.add(start, row)
        self._unreferenced.discard(row)


CHUNK_ROWS: Final = 128


class StartIndex:
    """Rows by (start, row). `value_of` returns the value of a row, which never changes."""

    __slots__ = ("_firsts", "_keys", "_length", "_maxima", "_rows", "_tree", "_value_of")

    def __init__(self, value_of: Callable[[int], int]) -> None:
        self._value_of = value_of
        self._firsts: list[int] = []
        """The first start of every chunk."""
        self._keys: list[array[int]] = []
        self._rows: list[array[int]] = []
        self._maxima: list[int] = []
        self._tree: MaxTree | None = None
        """A tree of the maxima; None after the chunks changed."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        """All rows, in order of their starts."""
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
        """Add a row, after those with the same start."""
        self._length += 1
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
        """Remove a row; returns whether it was there, with this start."""
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
        """Start and row of the last row that starts at or before `start`."""
        chunk = bisect_right(self._firsts, start) - 1
        if chunk < 0:
            return None
        keys = self._keys[chunk]
        place = bisect_right(keys, start) - 1
        return keys[place], self._rows[chunk][place]

    def last(self) -> tuple[int, int] | None:
        """Start and row of the last row."""
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
        self._length -= 1
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
        """Change one number."""
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
