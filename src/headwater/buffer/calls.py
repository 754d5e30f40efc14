"""Which produce call each record of a batch came with: its ingestion time and its metadata.

A call is one `produce()`; it covers the records from its start index to the next call's. Calls
are columns like the records are: one record per call must not cost more than the record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.records import TIMESTAMP
from headwater.core.errors import Corrupt
from headwater.core.limits import TIME_MAX_MS

SCHEMA: Final = pa.schema(
    [
        pa.field("start_index", pa.uint32(), nullable=False),
        pa.field("ingestion_time_ms", pa.int64(), nullable=False),
        pa.field("metadata", pa.binary()),
    ]
)


class Call(NamedTuple):
    """One produce call's part of a batch."""

    start_index: int
    ingestion_time_ms: int
    metadata: bytes | None


class Calls:
    """The calls of one batch, in the order of their records."""

    def __init__(self, columns: pa.RecordBatch) -> None:
        self.columns = columns

    @classmethod
    def of(cls, calls: list[Call]) -> Calls:
        """From one tuple a call."""
        starts, times, metadata = zip(*calls, strict=True) if calls else ((), (), ())
        return cls.from_columns(starts, times, metadata)

    @classmethod
    def from_columns(
        cls, starts: Iterable[int], times_ms: Iterable[int], metadata: Iterable[bytes | None]
    ) -> Calls:
        """From one sequence a column: what costs least where there are many calls."""
        arrays = [
            pa.array(starts, pa.uint32()),
            pa.array(times_ms, pa.int64()),
            pa.array(metadata, pa.binary()),
        ]
        return cls(pa.record_batch(arrays, schema=SCHEMA))

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    def __getitem__(self, index: int) -> Call:
        row = self.columns.slice(index, 1).to_pylist()[0]
        return Call(row["start_index"], row["ingestion_time_ms"], row["metadata"])

    @property
    def time_range_ms(self) -> tuple[int, int]:
        """The earliest and the latest ingestion time; (0, 0) without calls."""
        if not len(self):
            return 0, 0
        found = pc.min_max(self.columns.column(1)).as_py()
        return found["min"], found["max"]

    def check(self, rows: int) -> None:
        """The first call begins at record 0, each later one after it, all within the batch."""
        starts = self.columns.column(0)
        if not len(starts):
            if rows:
                raise Corrupt(f"a batch of {rows} records has no call")
            return
        falls = len(starts) > 1 and pc.any(pc.less_equal(starts[1:], starts[:-1])).as_py()
        if starts[0].as_py() != 0 or starts[-1].as_py() >= max(rows, 1) or falls:
            raise Corrupt(f"the calls of a batch of {rows} records do not cover them in order")

    @property
    def times(self) -> pa.Array:
        """The ingestion time of every call (µs, UTC)."""
        # Other software's times may be any 64 bits; those beyond all microseconds are the last one.
        times_ms = pc.min_element_wise(self.columns.column(1), TIME_MAX_MS)
        times_ms = pc.max_element_wise(times_ms, -TIME_MAX_MS)
        return pc.multiply(times_ms, 1000).cast(pa.timestamp("us", "UTC"))

    def timestamps_of(self, records: pa.RecordBatch) -> pa.Array:
        """The time of every record: its own, or that of its ingestion."""
        own = records.column(TIMESTAMP) if TIMESTAMP in records.schema.names else None
        if own is not None and not own.null_count:
            return own
        ingested = self.per_record(records.num_rows)[0]
        return ingested if own is None else pc.coalesce(own, ingested)

    def per_record(self, rows: int) -> tuple[pa.Array, pa.Array]:
        """Ingestion time (µs, UTC) and metadata of every record."""
        starts = self.columns.column(0).cast(pa.int32())
        ends = pa.concat_arrays([starts[1:], pa.array([rows] if rows else [], pa.int32())])
        calls = pa.array(range(len(ends)), pa.int32())
        call = pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, calls))
        return self.times.take(call), self.columns.column(2).take(call)
