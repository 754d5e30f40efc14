"""Rows sorted by a start offset, 12 bytes each, in chunks.

Finding, adding and removing take O(log n) and a chunk's worth of copying; so does finding the next
row, in order of the starts, whose value (an end, a time) is at least so large: every chunk knows
the largest value in it, and a tree over the chunks leads to the next one that has it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Final

from headwater.tier.cache.max_tree import MaxTree

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
