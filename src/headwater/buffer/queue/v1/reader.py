"""Reading a v1 queue: counting its entries, to get the first LSN of each, and describing them.

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
import contextlib

from headwater.buffer.queue.contract import (
    BatchTrimmed,
    Counters,
    Descriptor,
    QueuePosition,
    QueueReader,
    QueueState,
    TimeBy,
    Uncounted,
    batch_trimmed,
)
from headwater.buffer.queue.v1.acked import AckedSegments, NumberedEntry, entry_descriptor
from headwater.buffer.queue.v1.batch_format import BatchCount, BatchCounts
from headwater.buffer.queue.v1.manifest_format import ManifestEntry, items_of, time_range_ms
from headwater.buffer.queue.v1.manifest_object import (
    ManifestObject,
    StoredManifest,
    V1Names,
    time_of_name_ms,
)
from headwater.buffer.queue.v1.side_object import (
    BEFORE_ALL_MS,
    QueueView,
    SideObject,
    SideState,
    location_digest,
    read_view,
)
from headwater.core import limits
from headwater.core.errors import BadKey, Bug, Damaged, NotFound, NotSupported, Refused, RolledBack
from headwater.core.retry import RetryPolicy
from headwater.store import Store


class V1Reader(QueueReader):
    """Reads without opening. The first call counts every pending batch; later ones continue."""

    def __init__(self, queue: V1Queue) -> None:
        self._queue = queue

    async def state(self) -> QueueState:
        queue = self._queue
        async with queue.lock:
            (stored, side), uncounted = await queue.count(await queue.view())
            ledger = queue.ledger
            waiting = (ledger[s] for s in range(side.sequence, ledger.end))
            oldest = next((one.min_ms for one in waiting if one.rows), None)
            if oldest is None and uncounted is not None:
                oldest = uncounted.descriptor.min_ms
            return QueueState(
                epoch=stored.epoch,
                group=side.group,
                floor_sequence=side.floor_sequence,
                floor_lsn=side.floor_lsn,
                acked_sequence=side.sequence,
                acked_lsn=side.lsn,
                next_sequence=stored.next_sequence,
                next_lsn=ledger.next_lsn,
                pending_bytes=ledger.size_bytes,
                oldest_pending_ms=oldest,
                opened_ms=side.opened_ms,
                uncounted_sequence=None if uncounted is None else uncounted.descriptor.sequence,
            )

    async def floor(self) -> QueuePosition:
        return (await self._queue.side.read()).floor

    async def after(self, sequence: int | None, limit: int) -> list[Descriptor]:
        view = await self._queue.view()
        while True:
            start = view.side.floor_sequence if sequence is None else sequence + 1
            try:
                return await self._queue.read(view, start, limit)
            except Uncounted as error:
                view = await self._queue.later_view(error)

    async def sequence_at_lsn(self, lsn: int) -> int | None:
        if lsn < 1:
            raise Refused(f"LSN {lsn}: they begin with 1")
        queue = self._queue
        async with queue.lock:
            view, uncounted = await queue.view(), None
            lsn = view.side.used_from(lsn)
            if lsn >= view.side.lsn:
                view, uncounted = await queue.count(view)
            side, ledger = view.side, queue.ledger
            self._check_lsn_retained(side, lsn)
            if side.lsn <= lsn < ledger.next_lsn:
                return ledger.sequence_at_lsn(lsn)
            if lsn >= side.lsn:
                if uncounted is not None and lsn > ledger.next_lsn:
                    raise uncounted
                return None if uncounted is None else uncounted.descriptor.sequence
            sequence = await queue.acked.search(
                range(side.floor_sequence, side.sequence),
                lambda header: header.next_lsn > lsn,
                lambda batch: batch.first_lsn <= lsn <= batch.last_lsn,
            )
            if sequence is None:
                self._check_lsn_retained(await queue.side.read(), lsn)
                raise RolledBack(f"{queue.names.acked}: what had LSN {lsn:,} is gone. Restore it.")
            return sequence

    async def batch_at_time(self, time_us: int, by: TimeBy) -> Descriptor | None:
        # v1 records have only an ingestion time, in milliseconds.
        time_ms = -(-time_us // 1000)
        while (sequence := await self._sequence_at_time(time_ms)) is not None:
            # It may be acknowledged and collected before it is read again.
            with contextlib.suppress(BatchTrimmed):
                (batch,) = await self.after(sequence - 1, 1)
                return batch
        return None

    async def _sequence_at_time(self, time_ms: int) -> int | None:
        queue = self._queue
        async with queue.lock:
            (_, side), uncounted = await queue.count(await queue.view())
            if side.newest_ms >= time_ms:
                sequence = await queue.acked.search(
                    range(side.floor_sequence, side.sequence),
                    lambda header: header.newest_ms >= time_ms,
                    lambda batch: batch.rows > 0 and batch.max_ms >= time_ms,
                )
                if sequence is not None:
                    return sequence
            ledger = queue.ledger
            for sequence in range(side.sequence, ledger.end):
                if ledger[sequence].rows and ledger[sequence].max_ms >= time_ms:
                    return sequence
            if uncounted is not None:
                raise uncounted
            return None

    def _check_lsn_retained(self, side: SideState, lsn: int) -> None:
        if lsn < side.floor_lsn:
            raise batch_trimmed(f"{self._queue.names.manifest}: LSN {lsn}", side.floor)


class V1Queue:
    """The objects of one queue, and what this process counted of its entries."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        queue_id: str,
        *,
        policy: RetryPolicy | None = None,
        lenient: bool = False,
    ) -> None:
        self.store = store
        self.queue_id = queue_id
        self.policy = policy or RetryPolicy()
        names = self.names = V1Names(prefix, queue_id)
        self.counters = Counters()
        self.manifest = ManifestObject(store, names.manifest, self.counters, lenient=lenient)
        self.side = SideObject(store, names, queue_id, self.policy)
        self.acked = AckedSegments(store, names)
        self.counts = BatchCounts(store)
        self.ledger = Ledger(names, self.counts)
        self.lock = asyncio.Lock()
        """Held while counting: two tasks must not count the same entries."""

    async def view(self) -> QueueView:
        return await read_view(self.manifest, self.side)

    async def later_view(self, error: Uncounted) -> QueueView:
        """A newer view, if the batch was acknowledged and collected while it was read."""
        view = await self.view()
        if view.side.sequence <= error.descriptor.sequence:
            raise error
        return view

    async def count(
        self, view: QueueView, end: int | None = None
    ) -> tuple[QueueView, Uncounted | None]:
        """Count the pending batches up to `end`, under the lock, or up to one that cannot be.

        Returns the view that was counted, and the error that ended the count.
        """
        while True:
            self.ledger.follow(view.side)
            try:
                await self.ledger.extend(
                    view.stored, view.stored.next_sequence if end is None else end
                )
                return view, None
            except Uncounted as error:
                try:
                    view = await self.later_view(error)
                except Uncounted:
                    return view, error

    async def read(self, view: QueueView, start: int, limit: int) -> list[Descriptor]:
        """Up to `limit` batches from `start` on: from segments first, then from the manifest."""
        stored, side = view
        if start > stored.next_sequence:
            raise Refused(
                f"{self.names.manifest}: nothing can be read after sequence {start - 1:,}: the "
                f"next one is {stored.next_sequence:,}"
            )
        self.check_retained(side, start)
        end = min(start + limit, stored.next_sequence)
        batches = await self._retained(range(start, min(end, side.sequence)))
        begin = start + len(batches)
        if begin >= end:
            return batches
        async with self.lock:
            self.ledger.follow(side)
            try:
                await self.ledger.extend(stored, end)
            except Uncounted:
                if self.ledger.end <= begin and not batches:
                    raise
            return batches + [
                self.ledger.describe(stored, sequence)
                for sequence in range(begin, min(end, self.ledger.end))
            ]

    def check_retained(self, side: SideState, start: int) -> None:
        """`BatchTrimmed` if the batch at `start` is not there any more."""
        if start < side.floor_sequence:
            raise batch_trimmed(f"{self.names.manifest}: batch {start}", side.floor)

    async def _retained(self, sequences: range) -> list[Descriptor]:
        if not sequences:
            return []
        batches = await self.acked.read(sequences)
        if len(batches) < len(sequences):
            # They were deleted while they were read, or are lost.
            missing = sequences.start + len(batches)
            side = await self.side.read()
            self.check_retained(side, missing)
            raise RolledBack(
                f"{self.names.acked}: what was acknowledged at sequence {missing:,} is gone, and "
                f"the floor is {side.floor_sequence:,}. Restore the folder."
            )
        return batches


_UNCOUNTABLE = (NotFound, Damaged, NotSupported, BadKey)
"""Errors of the batch itself, which repeating the request would not change."""


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
        given_up = dict(side.given_up)
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

    async def extend(self, stored: StoredManifest, end: int) -> None:
        """Count up to `end`; `Uncounted` at an entry that cannot be counted."""
        if self.end < stored.front and self.end < end:
            raise Bug(f"counting from {self.end}, and the manifest begins at {stored.front}")
        while self.end < end:
            group = range(self.end, min(end, self.end + limits.V1_COUNTS_AT_ONCE))
            entries = [stored.entry(sequence) for sequence in group]
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

    def describe(self, stored: StoredManifest, sequence: int) -> Descriptor:
        return entry_descriptor(self._names, stored.entry(sequence), self._counted[sequence])

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
