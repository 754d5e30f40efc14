"""A batch from its first record to its acceptance.

Calls add to a draft until it is sealed; then a lane carries it into the queue, and in the end it
is accepted, or it failed. A handle is no more than a draft and a range of its rows: whatever
becomes of the draft, all its handles know at once, and none of them was touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from headwater.buffer.arrow_stream import DeferredBytes
from headwater.buffer.batch import Batch, Calls
from headwater.buffer.producer.gathering import Gathering
from headwater.buffer.producer.pieces import joined, loosely_joined, without_nulls
from headwater.buffer.producer.rows import Rows
from headwater.buffer.queue.contract import AppendedBatch


class Part(NamedTuple):
    """Some rows of a draft: where records of one call are."""

    draft: Draft
    start: int
    rows: int


class Draft(Gathering):
    """One batch on its way."""

    __slots__ = (
        "_event",
        "error",
        "heard",
        "is_done",
        "partition",
        "placed",
        "producer_sequence",
        "sealed_s",
    )

    def __init__(self, partition: int, shape: pa.Schema | None, first_s: float) -> None:
        super().__init__(shape, first_s)
        self.partition = partition
        self.sealed_s = 0.0
        self.is_done = False
        """Whether its handles have been told: accepted, or an error."""
        self.placed: AppendedBatch | None = None
        self.producer_sequence = 0
        self.error: BaseException | None = None
        self.heard = False
        """Whether somebody was told of the error."""
        self._event: asyncio.Event | None = None

    def build(
        self, batch_id: str, defaults: Mapping[str, pa.Scalar], *, loose: bool = False
    ) -> Batch:
        """All records and calls as columns.

        With `loose`, values may stay where they are. Computes only; may run in a thread, once
        sealed.
        """
        calls = Calls.from_columns(self.starts, self.times_ms, self.metadata)
        values: DeferredBytes | None = None
        first = self.pieces[0]
        if len(self.pieces) > 1 or not isinstance(first, Rows):
            pieces = [one.to_arrow() if isinstance(one, Rows) else one for one in self.pieces]
            records, values = loosely_joined(pieces) if loose else (joined(pieces), None)
        elif loose:
            records, values = first.to_loose_arrow()
        else:
            records = first.to_arrow()
        records = without_nulls(records, defaults, lambda: calls.per_record(self.rows)[0])
        return Batch(batch_id, records, calls, values)

    def accept(self, placed: AppendedBatch) -> None:
        """It stands in the queue. Also one that failed with an unknown outcome may come to this."""
        self.placed = placed
        self._end()

    def fail(self, error: BaseException) -> None:
        """It will not, or nobody knows."""
        if not self.is_done:
            self.error = error
        self._end()

    async def wait(self) -> None:
        """Until it is accepted or failed. Cancelling the one who waits changes nothing."""
        if not self.is_done:
            if self._event is None:
                self._event = asyncio.Event()
            await self._event.wait()

    def _end(self) -> None:
        self.is_done = True
        self.let_go()
        if self._event is not None:
            self._event.set()

    # A handle's view

    @property
    def is_routed(self) -> bool:
        """Whether `parts` can tell: a draft has its partition from the start."""
        return True

    async def routed(self) -> None:
        """Until `parts` can tell."""

    def parts(self, start: int, rows: int) -> list[Part]:
        """Where these rows are."""
        return [Part(self, start, rows)]
