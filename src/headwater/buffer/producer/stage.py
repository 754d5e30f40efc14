"""Records whose partition is not known yet: their keys are hashed together, not one by one.

A stage holds small calls until it is large enough, or due; then its records are told apart, and
each partition's draft gets its share.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.producer.draft import Draft, Part
from headwater.buffer.producer.gathering import Gathering
from headwater.buffer.producer.pieces import Share, split
from headwater.buffer.producer.rows import Rows


class _Placement(NamedTuple):
    draft: Draft
    start: int
    rows: memoryview | None
    """Which rows of the stage went there, rising; None if all of them."""


class StageCalls(NamedTuple):
    """The calls that a share's records came with."""

    starts: list[int]
    times_ms: list[int]
    metadata: list[bytes | None]


class Stage(Gathering):
    """Small calls on their way to several partitions."""

    __slots__ = ("_event", "_placements")

    def __init__(self, first_s: float) -> None:
        super().__init__(None, first_s)
        self._placements: list[_Placement] = []
        self._event: asyncio.Event | None = None

    def shares(self, partitions: int, keyless: int) -> list[tuple[Share, StageCalls]]:
        """The records by partition, each share with its calls."""
        (rows,) = self.pieces
        assert isinstance(rows, Rows)
        return [
            (share, self._calls_of(share)) for share in split(rows.to_arrow(), partitions, keyless)
        ]

    def place(self, share: Share, draft: Draft, start: int) -> None:
        """A share went to the rows of `draft` from `start` on."""
        rows = None
        if share.rows is not None:
            column = share.rows
            rows = memoryview(column.buffers()[1]).cast("Q")
            rows = rows[column.offset : column.offset + len(column)]
        self._placements.append(_Placement(draft, start, rows))

    def close(self) -> None:
        """Every share has its place."""
        self.is_sealed = True
        self.let_go()

    def tell(self) -> None:
        """Wake whoever waits for it to be routed."""
        if self._event is not None:
            self._event.set()

    def _calls_of(self, share: Share) -> StageCalls:
        if share.rows is None or len(self.starts) == 1:
            return StageCalls(
                self.starts if share.rows is None else [0], self.times_ms, self.metadata
            )
        # Which call each row of the stage belongs to, of those the share's rows; where that
        # changes, a call begins.
        ends = pa.array([*self.starts[1:], self.rows], pa.int32())
        calls = pa.RunEndEncodedArray.from_arrays(ends, pa.array(range(len(ends)), pa.int32()))
        of_row = pc.run_end_decode(calls).take(share.rows)
        changes = pc.indices_nonzero(pc.not_equal(of_row[1:], of_row[:-1]))
        starts = [0, *(place + 1 for place in changes.to_pylist())]
        chosen = of_row.take(pa.array(starts, pa.int64())).to_pylist()
        return StageCalls(
            starts, [self.times_ms[c] for c in chosen], [self.metadata[c] for c in chosen]
        )

    # A handle's view

    @property
    def is_routed(self) -> bool:
        """Whether `parts` can tell."""
        return self.is_sealed

    async def routed(self) -> None:
        """Until `parts` can tell."""
        if not self.is_sealed:
            if self._event is None:
                self._event = asyncio.Event()
            await self._event.wait()

    def parts(self, start: int, rows: int) -> list[Part]:
        """Where these rows are, by partition."""
        found = []
        for draft, first, indices in self._placements:
            if indices is None:
                found.append(Part(draft, first + start, rows))
                continue
            # Order is kept within a partition, so the rows of one call stand together there.
            low, high = bisect_left(indices, start), bisect_left(indices, start + rows)
            if high > low:
                found.append(Part(draft, first + low, high - low))
        return found
