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
    """Rows of one epoch: those found by their offsets, and those only listed."""

    __slots__ = ("_referenced", "_unreferenced", "highest_offset")

    def __init__(self, table: SegmentTable) -> None:
        self._referenced = StartIndex(table.max_ms.__getitem__)
        self._unreferenced: set[int] = set()
        self.highest_offset: int | None = None
        """The last offset of this epoch that was ever finished: it never goes down."""

    def started(self, row: int) -> None:
        """A copy began: nothing is found there yet."""
        self._unreferenced.add(row)

    def finished(self, start: int, end: int, row: int) -> None:
        """A copy holds this epoch from `start` through `end`."""
        referenced, highest = self._referenced, self.highest_offset
        if highest is not None and highest <= end:
            while (last := referenced.last()) is not None and last[0] >= start:
                self._unreference(*last)
        same = referenced.floor(start)
        if same is not None and same[0] == start:
            self._unreference(*same)
        referenced.add(start, row)
        self._unreferenced.discard(row)
        self.highest_offset = end if highest is None else max(highest, end)

    def deleting(self, start: int, row: int) -> None:
        """A copy is being deleted: it is listed, so that a deletion can be tried again."""
        self._referenced.remove(start, row)
        self._unreferenced.add(row)

    def deleted(self, row: int) -> None:
        """A copy is gone."""
        self._unreferenced.discard(row)

    def floor(self, offset: int) -> tuple[int, int] | None:
        """Start and row of the last segment found here that starts at or before the offset."""
        return self._referenced.floor(offset)

    def with_time(self, timestamp_ms: int, first_offset: int) -> Iterator[int]:
        """Rows that start at the offset or later and hold a record of this time or later."""
        return self._referenced.reaching(timestamp_ms, first=first_offset)

    def referenced(self) -> tuple[array[int], array[int]]:
        """Starts and rows of those found by their offsets, in order, as a copy."""
        return self._referenced.columns()

    def listed(self) -> Iterator[int]:
        """All rows of this epoch, in no order."""
        yield from self._referenced
        yield from self._unreferenced

    def restore(self, start: int, row: int) -> None:
        """Find a row by its start again, as a dump has it."""
        self._referenced.add(start, row)
        self._unreferenced.discard(row)

    def _unreference(self, start: int, row: int) -> None:
        self._referenced.remove(start, row)
        self._unreferenced.add(row)


CHUNK_ROWS: Final = 128


class StartIndex:
    """Rows by (start, row). `value_of` tells the value of a row, which never changes."""

    __slots__ = ("_firsts", "_keys", "_length", "_maxima", "_rows", "_tree", "_value_of")

    def __init__(self, value_of: Callable[[int], int]) -> None:
        self._value_of = value_of
        self._firsts: list[int] = []
        """The first start of every chunk."""
        self._keys: list[array[int]] = []
        self._rows: list[array[int]] = []
        self._maxima: list[int] = []
        self._tree: MaxTree | None = None
        """Over the maxima; None when the chunks changed since it was built."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        """All rows, in order of their starts."""
        for rows in self._rows:
            yield from rows

    def columns(self) -> tuple[array[int], array[int]]:
        """Starts and rows of all, in order, as a copy."""
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
        """Take a row out; whether it was there, with this start."""
        # The first chunk that may have it: equal starts may fill several.
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
        """Start and row of the last one that starts at or before this."""
        chunk = bisect_right(self._firsts, start) - 1
        if chunk < 0:
            return None
        keys = self._keys[chunk]
        place = bisect_right(keys, start) - 1
        return keys[place], self._rows[chunk][place]

    def last(self) -> tuple[int, int] | None:
        """Start and row of the last one."""
        return (self._keys[-1][-1], self._rows[-1][-1]) if self._keys else None

    def reaching(
        self, value: int, *, first: int | None = None, end: int | None = None
    ) -> Iterator[int]:
        """Rows that start in [first, end) and whose value is at least this, in order."""
        chunk, place = 0, 0
        if first is not None:
            chunk = max(bisect_left(self._firsts, first) - 1, 0)
            place = bisect_left(self._keys[chunk], first) if self._keys else 0
        value_of = self._value_of
        while (found := self._next_chunk(chunk, value)) is not None:
            if found != chunk:
                chunk, place = found, 0
            keys, rows = self._keys[chunk], self._rows[chunk]
            for at in range(place, len(rows)):
                if end is not None and keys[at] >= end:
                    return
                if value_of(rows[at]) >= value:
                    yield rows[at]
            chunk, place = chunk + 1, 0

    def _add_last(self, start: int, row: int) -> None:
        """Starts mostly rise: nothing is looked for, and full chunks stay full."""
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
        # Built anew, so that no memory is kept for what went.
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
    """A tree of maxima over numbers whose count does not change."""

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
        """The index of the first number, from `begin` on, that is not below `value`."""
        if begin >= self._count:
            return None
        tree, place = self._tree, begin + self._size
        while tree[place] < value:
            # Nothing here: on to what stands right of it, as large a part as there is.
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
