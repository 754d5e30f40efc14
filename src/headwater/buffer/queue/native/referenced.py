"""Batch ids that chunks refer to, in a memory that does not grow with how many there are.

The newest are kept as they are. Older ones are only marked in a filter, which may take an id for
one of them that is none: then an upload that nobody appended stays, and the pass of another day
finds it, whose filter is salted otherwise. It never takes one of them for another: no batch is
deleted because of it.

A set of all ids is the obvious alternative: some hundred bytes for each batch that is retained, in
the process of the consumer, are gigabytes for a busy week.
"""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from headwater.core import limits, runtime


class Referenced:
    """At most 2 × GC_REFERENCED ids as they are, and GC_FILTER_BYTES for all the others."""

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._newest = set(ids)
        self._filter = bytearray()
        self._salt = 0
        self.blurred_through = ""
        """Up to this id, some are only in the filter."""

    def add(self, ids: Iterable[str]) -> None:
        """Remember these as well."""
        self._newest.update(ids)
        if len(self._newest) > 2 * limits.GC_REFERENCED:
            older = sorted(self._newest)[: -limits.GC_REFERENCED]
            self._newest.difference_update(older)
            self._blur(older)

    def __contains__(self, batch_id: str) -> bool:
        if batch_id in self._newest:
            return True
        if batch_id > self.blurred_through:
            return False
        return all(self._filter[place] & bit for place, bit in self._bits(batch_id))

    def newest(self) -> list[str]:
        """Those above `blurred_through`, and perhaps some below, in order."""
        return sorted(self._newest)

    def _blur(self, ids: list[str]) -> None:
        if not self._filter:
            self._filter = bytearray(limits.GC_FILTER_BYTES)
            self._salt = int.from_bytes(runtime.new_token()[:8], "big")
        for batch_id in ids:
            for place, bit in self._bits(batch_id):
                self._filter[place] |= bit
        self.blurred_through = max(self.blurred_through, ids[-1])

    def _bits(self, batch_id: str) -> list[tuple[int, int]]:
        """Four places in the filter: with ten bits for each id, one in eighty is taken wrongly."""
        digest = xxhash.xxh3_128_intdigest(batch_id.encode(), seed=self._salt)
        size = 8 * len(self._filter)
        places = [(digest >> shift & 0xFFFFFFFF) % size for shift in (0, 32, 64, 96)]
        return [(place // 8, 1 << place % 8) for place in places]
