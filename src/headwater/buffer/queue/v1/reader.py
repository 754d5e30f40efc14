"""Reads a queue from what is retained of it to its end: segments first, then the manifest."""

from __future__ import annotations

import asyncio

from headwater.buffer.queue.contract import Descriptor, Uncounted
from headwater.buffer.queue.v1.acked import Acked
from headwater.buffer.queue.v1.counts import Counts
from headwater.buffer.queue.v1.ledger import Ledger
from headwater.buffer.queue.v1.names import Names
from headwater.buffer.queue.v1.side import Side, SideObject
from headwater.buffer.queue.v1.view import View
from headwater.core.errors import Refused, RolledBack, Trimmed
from headwater.store import Store


class EntryReader:
    """What consumers and onlookers of one queue have in common."""

    def __init__(self, store: Store, names: Names, side: SideObject) -> None:
        self._names = names
        self._side = side
        self.counts = Counts(store)
        self.acked = Acked(store, names)
        self.ledger = Ledger(names, self.counts)
        self.lock = asyncio.Lock()
        """Held by whoever counts: two tasks that count the same entries would count them twice."""

    async def after(self, view: View, start: int, limit: int) -> list[Descriptor]:
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

    def check_retained(self, side: Side, start: int) -> None:
        """`Trimmed` if the batch at `start` is not there any more."""
        if start < side.floor_sequence:
            raise Trimmed(
                f"{self._names.manifest}: sequence {start:,} is not retained any more; the oldest "
                f"is {side.floor_sequence:,}",
                floor=side.floor_sequence,
            )

    async def _retained(self, sequences: range) -> list[Descriptor]:
        if not sequences:
            return []
        batches = await self.acked.read(sequences)
        if len(batches) < len(sequences):
            # Deleted while they were read, or lost.
            missing = sequences.start + len(batches)
            side = await self._side.read()
            self.check_retained(side, missing)
            raise RolledBack(
                f"{self._names.acked}: what was acknowledged at sequence {missing:,} is gone, and "
                f"the floor is {side.floor_sequence:,}. Restore the folder."
            )
        return batches
