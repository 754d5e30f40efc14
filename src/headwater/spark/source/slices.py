"""What an executor reads: parts of batches, named in few bytes.

A slice says where a batch is and which of its rows are meant; the batch itself never passes through
the driver. `kind` says who reads it, so that other feeds can bring slices of their own.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import msgspec
from pyspark.sql.datasource import InputPartition

from headwater.buffer.consumer import QueuePosition
from headwater.buffer.queue import Descriptor
from headwater.spark.source.offset import Part

BATCH: Final = "batch"
_FAST: Final = 1
"""Slices repeat each other nearly word by word: the least effort makes them a tenth."""


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """Some rows of one batch."""

    descriptor: Descriptor
    skip: int
    take: int
    kind: str = BATCH

    @classmethod
    def whole(cls, descriptor: Descriptor) -> Slice:
        """All rows of a batch."""
        return cls(descriptor, 0, descriptor.rows)

    @property
    def sequence(self) -> int:
        """The batch's place in its queue."""
        return self.descriptor.sequence

    @property
    def first_lsn(self) -> int:
        """The LSN of the first row that is meant."""
        return self.descriptor.first_lsn + self.skip

    @property
    def end_lsn(self) -> int:
        """The LSN after the last row that is meant."""
        return self.first_lsn + self.take

    @property
    def size_bytes(self) -> int:
        """About how many stored bytes the rows are."""
        rows = self.descriptor.rows
        return self.descriptor.size_bytes * self.take // rows if rows else 0

    def place_at(self, lsn: int) -> QueuePosition:
        """The place before a record of this batch, or after its last one: in the next batch."""
        is_over = lsn > self.descriptor.last_lsn
        return QueuePosition(self.sequence + 1 if is_over else self.sequence, lsn)

    def cut(self, first_lsn: int, end_lsn: int) -> Slice:
        """The rows of this slice that lie between two LSNs."""
        first = max(self.first_lsn, first_lsn)
        end = min(self.end_lsn, end_lsn)
        if (first, end) == (self.first_lsn, self.end_lsn):
            return self
        skip = first - self.descriptor.first_lsn
        return Slice(self.descriptor, skip, max(0, end - first), self.kind)


class SlicePartition(InputPartition):
    """One task: slices of one partition of a stream, in order."""

    def __init__(self, part: Part, origin: bytes, slices: Sequence[Slice]) -> None:
        self.stream = part.stream
        self.partition = part.partition
        self.origin = origin
        """What the feed wants whoever reads its slices to know of it."""
        self._packed = zlib.compress(msgspec.msgpack.encode(list(slices)), _FAST)

    def __repr__(self) -> str:
        return f"<{len(self.slices)} slices of {self.stream}/{self.partition}>"

    @property
    def slices(self) -> list[Slice]:
        """What is to be read."""
        return msgspec.msgpack.decode(zlib.decompress(self._packed), type=list[Slice])
