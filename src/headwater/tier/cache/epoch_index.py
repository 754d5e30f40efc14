"""One leader epoch of a partition: which finished segment holds which of its offsets.

A segment that finished later wins: what it holds of this epoch wholly covers is unreferenced,
which means not found by its offsets and still listed, so that somebody can delete it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from headwater.tier.cache.segment_table import SegmentTable
from headwater.tier.cache.start_index import StartIndex


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
