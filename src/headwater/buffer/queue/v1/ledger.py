"""The running count of a queue's entries: the first LSN of each, and which are duplicates.

An entry's first LSN is the first unacknowledged LSN, which the side object has, plus the rows of
all entries between. The ledger counts each entry once and continues from there.

Always holds: the result for an entry depends only on the queue, not on who counts or when. An entry
is a duplicate if its location is among the V1_REMEMBERED entries before it, acknowledged or not. If
the window depended on what is pending, an entry would have records for one reader and none for
another.
"""

from __future__ import annotations

import asyncio
import bisect
from typing import NamedTuple

from headwater.buffer.queue.contract import Descriptor, Uncounted
from headwater.buffer.queue.v1.batch_format import BatchCount, BatchCounts
from headwater.buffer.queue.v1.manifest_format import ManifestEntry, items_of, time_range_ms
from headwater.buffer.queue.v1.manifest_object import StoredManifest
from headwater.buffer.queue.v1.side_object import (
    BEFORE_ALL_MS,
    SideState,
    V1Names,
    location_digest,
    time_of_name_ms,
)
from headwater.core import limits
from headwater.core.errors import BadKey, Bug, Damaged, NotFound, NotSupported

_UNCOUNTABLE = (NotFound, Damaged, NotSupported, BadKey)
"""Errors of the batch itself, which repeating the request would not change."""


class NumberedEntry(NamedTuple):
    """What was counted for an entry."""

    first_lsn: int
    rows: int
    size_bytes: int
    min_ms: int
    max_ms: int
    duplicate: bool = False


class Ledger:
    """Counts of the entries from `start` up to `end`."""

    def __init__(self, names: V1Names, counts: BatchCounts) -> None:
        self._names = names
        self._counts = counts
        self.start = self.end = -1
        self.next_lsn = 0
        """The LSN of the first record at `end`."""
        self.size_bytes = 0
        """The size of all batches from `start` up to `end`."""
        self.newest_ms = BEFORE_ALL_MS
        """The latest ingestion time of any record up to `end`, including acknowledged ones."""
        self._counted: dict[int, NumberedEntry] = {}
        self._last_at: dict[bytes, int] = {}
        self._given_up: dict[int, int] = {}
        """The number of LSNs of each batch that was given up."""

    def __getitem__(self, sequence: int) -> NumberedEntry:
        return self._counted[sequence]

    def follow(self, side: SideState) -> None:
        """Begin at the acknowledged position: continue the count if possible, else restart it."""
        given_up = dict.fromkeys(side.given_up, 0) | dict(side.given_up_rows)
        lost_since = any(s in self._counted for s in given_up.keys() - self._given_up.keys())
        if lost_since or self._lsn_at(side.sequence) != side.lsn:
            # The count is behind or ahead, or includes a batch that was given up later.
            self.start = self.end = side.sequence
            self.next_lsn = side.lsn
            self.size_bytes = 0
            self.newest_ms = side.newest_ms
            self._counted.clear()
            self._last_at = side.remembered()
        self._given_up = given_up
        self.forget(side.sequence)

    def _lsn_at(self, sequence: int) -> int | None:
        if sequence == self.end:
            return self.next_lsn
        counted = self._counted.get(sequence)
        return None if counted is None else counted.first_lsn

    def forget(self, before: int) -> None:
        """Drop the counts of entries before this one, but keep the sums."""
        for sequence in range(self.start, min(before, self.end)):
            self.size_bytes -= self._counted.pop(sequence).size_bytes
        self.start = max(self.start, min(before, self.end))

    async def extend(self, found: StoredManifest, end: int) -> None:
        """Count up to `end`; `Uncounted` at an entry that cannot be counted."""
        if self.end < found.front and self.end < end:
            raise Bug(f"counting from {self.end}, and the manifest begins at {found.front}")
        while self.end < end:
            group = range(self.end, min(end, self.end + limits.V1_COUNTS_AT_ONCE))
            entries = [found.entry(sequence) for sequence in group]
            repeated = self._repeated(entries)
            counts = await asyncio.gather(
                *(self._count(entry, again) for entry, again in zip(entries, repeated, strict=True))
            )
            for entry, again, count in zip(entries, repeated, counts, strict=True):
                if not isinstance(count, BatchCount):
                    raise self._uncounted(entry, count) from count
                self._add(entry, count, duplicate=again)

    def sequence_at_lsn(self, lsn: int) -> int:
        """The sequence of the counted entry with this record."""
        counted = range(self.start, self.end)
        after = bisect.bisect_right(counted, lsn, key=lambda s: self._counted[s].first_lsn)
        # Entries without rows begin with the next one's LSN: the last of them has the record.
        return counted[after - 1]

    def describe(self, found: StoredManifest, sequence: int) -> Descriptor:
        """The descriptor of a counted entry."""
        return entry_descriptor(self._names, found.entry(sequence), self._counted[sequence])

    def _repeated(self, entries: list[ManifestEntry]) -> list[bool]:
        repeated = []
        within: dict[bytes, int] = {}
        for entry in entries:
            mark = location_digest(entry.location)
            before = within.get(mark, self._last_at.get(mark))
            within[mark] = entry.sequence
            repeated.append(before is not None and entry.sequence - before <= limits.V1_REMEMBERED)
        return repeated

    async def _count(self, entry: ManifestEntry, again: bool) -> BatchCount | Exception:
        if again:
            return BatchCount(0, 0, 0)
        if entry.sequence in self._given_up:
            return BatchCount(self._given_up[entry.sequence], 0, 0)
        try:
            return await self._counts.of(entry.location)
        except _UNCOUNTABLE as error:
            return error

    def _add(self, entry: ManifestEntry, count: BatchCount, *, duplicate: bool) -> None:
        counted = self._numbered(entry, count, duplicate=duplicate)
        self._counted[entry.sequence] = counted
        if counted.rows:
            self.newest_ms = max(self.newest_ms, counted.max_ms)
        self.end = entry.sequence + 1
        self.next_lsn += count.rows
        self.size_bytes += count.size_bytes
        self._last_at[location_digest(entry.location)] = entry.sequence
        if len(self._last_at) > 2 * limits.V1_REMEMBERED:
            oldest = self.end - limits.V1_REMEMBERED
            self._last_at = {mark: s for mark, s in self._last_at.items() if s >= oldest}

    def _numbered(
        self, entry: ManifestEntry, count: BatchCount, *, duplicate: bool = False
    ) -> NumberedEntry:
        """Add the first LSN and the ingestion times to a count.

        Without items, the time is that of the batch's name, or of its object, or else that of the
        last record before it.
        """
        times = time_range_ms(items_of(entry))
        if times is None:
            written = count.modified_ms or max(self.newest_ms, 0)
            named = time_of_name_ms(entry.location)
            times = (written, written) if named is None else (named, named)
        return NumberedEntry(self.next_lsn, count.rows, count.size_bytes, *times, duplicate)

    def _uncounted(self, entry: ManifestEntry, error: Exception) -> Uncounted:
        return Uncounted(
            f"{self._names.manifest}: batch {entry.sequence:,} at {entry.location!r} cannot be "
            f"counted, and no record after LSN {self.next_lsn - 1:,} has an LSN until it is. "
            f"{type(error).__name__}: {error}. Restore the object, or give the batch up: it then "
            "has no records.",
            descriptor=entry_descriptor(
                self._names, entry, self._numbered(entry, BatchCount(0, 0, 0))
            ),
        )


def entry_descriptor(names: V1Names, entry: ManifestEntry, counted: NumberedEntry) -> Descriptor:
    """The descriptor of a counted entry."""
    last = entry.metadata[-1].payload if len(entry.metadata) else b""
    return Descriptor(
        sequence=entry.sequence,
        location=entry.location,
        first_lsn=counted.first_lsn,
        rows=counted.rows,
        size_bytes=counted.size_bytes,
        min_ms=counted.min_ms,
        max_ms=counted.max_ms,
        batch_id=names.batch_id(entry.location),
        metadata=last or None,
        format="v1",
        calls=bytes(items_of(entry)),
        duplicate=counted.duplicate,
    )
