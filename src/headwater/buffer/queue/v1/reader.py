"""Reading a v1 queue without opening it."""

from __future__ import annotations

import asyncio
import contextlib

from headwater.buffer.queue.contract import (
    BatchTrimmed,
    Descriptor,
    QueuePosition,
    QueueReader,
    QueueState,
    TimeBy,
    Uncounted,
    batch_trimmed,
)
from headwater.buffer.queue.v1.acked import AckedSegments
from headwater.buffer.queue.v1.batch_format import BatchCounts
from headwater.buffer.queue.v1.ledger import Ledger
from headwater.buffer.queue.v1.manifest_object import ManifestObject
from headwater.buffer.queue.v1.side_object import (
    QueueView,
    SideObject,
    SideState,
    V1Names,
    read_view,
)
from headwater.core.errors import Refused, RolledBack
from headwater.store import Store


class V1Reader(QueueReader):
    """Reads without opening. The first call counts every pending batch; later ones continue."""

    def __init__(self, store: Store, prefix: str, queue_id: str, *, lenient: bool = False) -> None:
        names = V1Names(prefix, queue_id)
        self._names = names
        self._side = SideObject(store, names, queue_id)
        self._manifest = ManifestObject(store, names.manifest, lenient=lenient)
        self._reader = EntryReader(store, names, self._side)

    async def state(self) -> QueueState:
        async with self._reader.lock:
            (found, side), uncounted = await self._counted(await self._view())
            ledger = self._reader.ledger
            waiting = (ledger[s] for s in range(side.sequence, ledger.end))
            oldest = next((one.min_ms for one in waiting if one.rows), None)
            if oldest is None and uncounted is not None:
                oldest = uncounted.descriptor.min_ms
            return QueueState(
                epoch=found.epoch,
                group=side.group,
                floor_sequence=side.floor_sequence,
                floor_lsn=side.floor_lsn,
                acked_sequence=side.sequence,
                acked_lsn=side.lsn,
                next_sequence=found.next_sequence,
                next_lsn=ledger.next_lsn,
                pending_bytes=ledger.size_bytes,
                oldest_pending_ms=oldest,
                opened_ms=side.opened_ms,
                uncounted_sequence=None if uncounted is None else uncounted.descriptor.sequence,
            )

    async def floor(self) -> QueuePosition:
        return (await self._side.read()).floor

    async def after(self, sequence: int | None, limit: int) -> list[Descriptor]:
        view = await self._view()
        while True:
            start = view.side.floor_sequence if sequence is None else sequence + 1
            try:
                return await self._reader.after(view, start, limit)
            except Uncounted as error:
                view = await self._later(error)

    async def sequence_at_lsn(self, lsn: int) -> int | None:
        if lsn < 1:
            raise Refused(f"LSN {lsn}: they begin with 1")
        async with self._reader.lock:
            view, uncounted = await self._view(), None
            lsn = view.side.used_from(lsn)
            if lsn >= view.side.lsn:
                view, uncounted = await self._counted(view)
            side, ledger = view.side, self._reader.ledger
            self._check_lsn_retained(side, lsn)
            if side.lsn <= lsn < ledger.next_lsn:
                return ledger.sequence_at_lsn(lsn)
            if lsn >= side.lsn:
                if uncounted is not None and lsn > ledger.next_lsn:
                    raise uncounted
                return None if uncounted is None else uncounted.descriptor.sequence
            held = await self._reader.acked.search(
                range(side.floor_sequence, side.sequence),
                lambda header: header.next_lsn > lsn,
                lambda batch: batch.first_lsn <= lsn <= batch.last_lsn,
            )
            if held is None:
                self._check_lsn_retained(await self._side.read(), lsn)
                raise RolledBack(f"{self._names.acked}: what had LSN {lsn:,} is gone. Restore it.")
            return held

    async def batch_at_time(self, time_us: int, by: TimeBy) -> Descriptor | None:
        # v1 records have only an ingestion time, in milliseconds.
        time_ms = -(-time_us // 1000)
        while (sequence := await self._sequence_at_time(time_ms)) is not None:
            # It may be acknowledged and collected before it is read again.
            with contextlib.suppress(BatchTrimmed):
                (found,) = await self.after(sequence - 1, 1)
                return found
        return None

    async def _sequence_at_time(self, time_ms: int) -> int | None:
        async with self._reader.lock:
            (_, side), uncounted = await self._counted(await self._view())
            if side.newest_ms >= time_ms:
                held = await self._reader.acked.search(
                    range(side.floor_sequence, side.sequence),
                    lambda header: header.newest_ms >= time_ms,
                    lambda batch: batch.rows > 0 and batch.max_ms >= time_ms,
                )
                if held is not None:
                    return held
            ledger = self._reader.ledger
            for sequence in range(side.sequence, ledger.end):
                if ledger[sequence].rows and ledger[sequence].max_ms >= time_ms:
                    return sequence
            if uncounted is not None:
                raise uncounted
            return None

    async def _view(self) -> QueueView:
        return await read_view(self._manifest, self._side)

    async def _counted(self, view: QueueView) -> tuple[QueueView, Uncounted | None]:
        """Count the pending batches, under the lock, up to one that cannot be counted.

        Returns the view that was counted, and the error that ended the count.
        """
        while True:
            self._reader.ledger.follow(view.side)
            try:
                await self._reader.ledger.extend(view.found, view.found.next_sequence)
                return view, None
            except Uncounted as error:
                try:
                    view = await self._later(error)
                except Uncounted:
                    return view, error

    async def _later(self, error: Uncounted) -> QueueView:
        """A newer view, if the batch was acknowledged and collected while it was read."""
        view = await self._view()
        if view.side.sequence <= error.descriptor.sequence:
            raise error
        return view

    def _check_lsn_retained(self, side: SideState, lsn: int) -> None:
        if lsn < side.floor_lsn:
            raise batch_trimmed(f"{self._names.manifest}: LSN {lsn}", side.floor)


class EntryReader:
    """Reads a queue from its floor to its end: segments first, then the manifest."""

    def __init__(self, store: Store, names: V1Names, side: SideObject) -> None:
        self._names = names
        self._side = side
        self.counts = BatchCounts(store)
        self.acked = AckedSegments(store, names)
        self.ledger = Ledger(names, self.counts)
        self.lock = asyncio.Lock()
        """Held while counting: two tasks must not count the same entries."""

    async def after(self, view: QueueView, start: int, limit: int) -> list[Descriptor]:
        """Up to `limit` batches from `start` on."""
        found, side = view
        if start > found.next_sequence:
            raise Refused(
                f"{self._names.manifest}: nothing can be read after sequence {start - 1:,}: the "
                f"next one is {found.next_sequence:,}"
            )
        self.check_retained(side, start)
        end = min(start + limit, found.next_sequence)
        batches = await self._retained(range(start, min(end, side.sequence)))
        begin = start + len(batches)
        if begin >= end:
            return batches
        async with self.lock:
            self.ledger.follow(side)
            try:
                await self.ledger.extend(found, end)
            except Uncounted:
                if self.ledger.end <= begin and not batches:
                    raise
            return batches + [
                self.ledger.describe(found, sequence)
                for sequence in range(begin, min(end, self.ledger.end))
            ]

    def check_retained(self, side: SideState, start: int) -> None:
        """`BatchTrimmed` if the batch at `start` is not there any more."""
        if start < side.floor_sequence:
            raise batch_trimmed(f"{self._names.manifest}: batch {start}", side.floor)

    async def _retained(self, sequences: range) -> list[Descriptor]:
        if not sequences:
            return []
        batches = await self.acked.read(sequences)
        if len(batches) < len(sequences):
            # They were deleted while they were read, or are lost.
            missing = sequences.start + len(batches)
            side = await self._side.read()
            self.check_retained(side, missing)
            raise RolledBack(
                f"{self._names.acked}: what was acknowledged at sequence {missing:,} is gone, and "
                f"the floor is {side.floor_sequence:,}. Restore the folder."
            )
        return batches
