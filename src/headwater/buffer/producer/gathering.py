"""Records and their calls, gathered one call after the other.

A draft gathers what will be one batch; a stage gathers what has yet to be told apart by partition.
"""

from __future__ import annotations

import asyncio
from typing import Final

import pyarrow as pa

from headwater.buffer.producer.rows import Rows

_NEVER: Final = -1


class Gathering:
    """Records in the order of their calls. Whoever adds to it holds the producer's lock."""

    __slots__ = (
        "calls",
        "complete",
        "first_s",
        "is_sealed",
        "last_ms",
        "metadata",
        "pieces",
        "rows",
        "schema_version",
        "shape",
        "size_bytes",
        "starts",
        "tail",
        "timer",
        "times_ms",
    )

    def __init__(self, shape: pa.Schema | None, first_s: float) -> None:
        self.shape = shape
        """The typed columns that all its records have; None if they have opaque values."""
        self.first_s = first_s
        """When its first record came: the interval counts from here."""
        self.schema_version = 0
        """The oldest version of the stream's schema that one of its calls was fitted to."""
        self.rows = 0
        self.size_bytes = 0
        self.calls = 0
        self.pieces: list[Rows | pa.RecordBatch] = []
        self.tail: Rows | None = None
        self.starts: list[int] = []
        self.times_ms: list[int] = []
        self.metadata: list[bytes | None] = []
        self.last_ms = _NEVER
        """The time of the last call, if the next one may share its entry."""
        self.complete: bytes | bool | None = False
        """The metadata of the last call that ends here; False if none does."""
        self.is_sealed = False
        self.timer: asyncio.TimerHandle | None = None

    def begin_call(self, now_ms: int, metadata: bytes | None, *, ends: bool = True) -> None:
        """The records that follow came with this call.

        A call without metadata says its time alone, and says it together with the one before it
        if that has the same: one record per call must not cost more than the record. A call that
        goes on elsewhere does not `end` here, and nobody is to resume after it.
        """
        if metadata is not None or now_ms != self.last_ms:
            self.starts.append(self.rows)
            self.times_ms.append(now_ms)
            self.metadata.append(metadata)
            self.last_ms = now_ms if metadata is None else _NEVER
        if ends:
            self.complete = metadata

    def begin_calls(
        self, starts: list[int], times_ms: list[int], metadata: list[bytes | None]
    ) -> None:
        """The records that follow came with these calls, which all end here."""
        self.starts.extend([self.rows + start for start in starts])
        self.times_ms.extend(times_ms)
        self.metadata.extend(metadata)
        self.last_ms = times_ms[-1] if metadata[-1] is None else _NEVER
        self.complete = metadata[-1]

    def lists(self) -> Rows:
        """Where further valued records go, while they come a few at a time."""
        if self.tail is None:
            self.tail = Rows()
            self.pieces.append(self.tail)
        return self.tail

    def add_piece(self, records: pa.RecordBatch) -> None:
        """Add records that are columns already."""
        self.pieces.append(records)
        self.tail = None
        self.rows += records.num_rows

    def let_go(self) -> None:
        """Forget the records; whoever still needs them has them."""
        self.pieces, self.tail = [], None
        self.starts, self.times_ms, self.metadata = [], [], []
