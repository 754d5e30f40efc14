"""A batch as its consumer gets it: records as Arrow columns, numbered, with what came with them."""

from __future__ import annotations

import functools
from typing import NamedTuple

import msgspec
import pyarrow as pa

from headwater.buffer.calls import Call, Calls
from headwater.buffer.consumer.columns import Columns, RecordedColumns
from headwater.buffer.queue.contract import Descriptor
from headwater.buffer.records import VALUE, from_values
from headwater.buffer.v1_manifest import Entry, unpack_metadata
from headwater.core.errors import Refused


class Metadata(NamedTuple):
    """What one produce call said, and from which record of its batch on it holds."""

    start_index: int
    ingestion_time_ms: int
    payload: bytes | None


class Lost(msgspec.Struct, frozen=True):
    """Records that cannot be read any more. Their LSNs stay taken."""

    first_lsn: int
    last_lsn: int
    cause: str
    partition: int = 0


def described_calls(descriptor: Descriptor, rows: int) -> Calls:
    """The produce calls of a published v1 batch, which its descriptor knows."""
    items = unpack_metadata(descriptor.calls)
    runs = Entry(descriptor.sequence, descriptor.location, items).metadata_runs(rows)
    calls = [Call(first, item.ingestion_time_ms, item.payload) for first, _, item in runs]
    if rows and (not runs or runs[0][0] > 0):
        # The published format obliges nobody to say anything of a record.
        calls.insert(0, Call(0, descriptor.min_ms, None))
    return Calls.of(calls)


class ConsumedBatch:
    """One batch of a partition, decoded.

    `records` has the columns that the producer wrote and no others, in the types in which they were
    written; `table()` has all columns of the stream, in its types, and the reserved ones. A batch
    that was lost, and one that the queue holds twice, has no records: `lost` tells them apart.
    """

    def __init__(
        self,
        descriptor: Descriptor,
        records: pa.RecordBatch,
        calls: Calls | None = None,
        *,
        stream: str,
        partition: int,
        lost: Lost | None = None,
        recorded: RecordedColumns | None = None,
    ) -> None:
        self.descriptor: Descriptor = descriptor
        self.records: pa.RecordBatch = records
        self.stream: str = stream
        self.partition: int = partition
        self.lost = lost
        self._calls = calls
        self._recorded = recorded or RecordedColumns()

    @classmethod
    def empty(
        cls,
        descriptor: Descriptor,
        *,
        stream: str,
        partition: int,
        lost: Lost | None = None,
        recorded: RecordedColumns | None = None,
    ) -> ConsumedBatch:
        """A batch that delivers nothing."""
        return cls(
            descriptor,
            from_values([]),
            stream=stream,
            partition=partition,
            lost=lost,
            recorded=recorded,
        )

    def __len__(self) -> int:
        return int(self.records.num_rows)

    def __bool__(self) -> bool:
        return True  # a batch without records is a batch; None says that there is none

    def __repr__(self) -> str:
        lost = ", lost" if self.lost else ""
        return (
            f"<batch {self.sequence} of {self.stream}/{self.partition}: {len(self):,} records, "
            f"LSNs {self.first_lsn}–{self.last_lsn}{lost}>"
        )

    @property
    def sequence(self) -> int:
        """The batch's place in the queue: what is acknowledged."""
        return self.descriptor.sequence

    @property
    def location(self) -> str:
        """The key of the object that holds the batch."""
        return self.descriptor.location

    @property
    def first_lsn(self) -> int:
        """The number of the first record."""
        return self.descriptor.first_lsn

    @property
    def last_lsn(self) -> int:
        """The number of the last record, also of a lost batch; one below the first if none."""
        return self.descriptor.last_lsn

    @property
    def lsns(self) -> pa.Array:
        """The number of every record that is here."""
        return pa.arange(self.first_lsn, self.first_lsn + len(self))

    @property
    def entries(self) -> list[bytes | None]:
        """The values as Python's own bytes, for those who want them one by one."""
        if not len(self):
            return []
        if VALUE not in self.records.schema.names:
            raise Refused(
                f"the records of {self.stream!r} have typed columns "
                f"({', '.join(self.records.schema.names)}): take `records` or `table()`"
            )
        found: list[bytes | None] = self.records.column(VALUE).to_pylist()
        return found

    @property
    def metadata(self) -> list[Metadata]:
        """What each produce call said, as it was written."""
        if self._calls is not None:
            columns = (column.to_pylist() for column in self._calls.columns.columns)
            return [Metadata(*row) for row in zip(*columns, strict=True)]
        return [
            Metadata(item.start_index, item.ingestion_time_ms, item.payload)
            for item in unpack_metadata(self.descriptor.calls)
        ]

    @functools.cached_property
    def calls(self) -> Calls:
        """The produce calls, each with the records it covers."""
        return described_calls(self.descriptor, len(self)) if self._calls is None else self._calls

    def table(self) -> pa.Table:
        """The records in the columns that `headwater.read` shows, defaults filled in.

        In the types that are recorded of the stream by now, also where the batch was written in
        narrower ones: tables of consecutive batches can be joined.
        """
        columns = Columns(self._recorded.with_those_of(self.records))
        return pa.Table.from_batches([columns.of(self)], schema=columns.schema)
