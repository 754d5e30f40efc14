"""`headwater.read`: a stream as Arrow record batches, for code that blocks.

    for batch in headwater.read("file:///data", "orders", start="2026-01-31"):
        …
    table = headwater.read("file:///data", "orders").to_table()

    frame = headwater.read("file:///data", "orders").to_pandas()

Polars and DuckDB take the reader itself, or its table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from headwater.buffer.consumer.async_reader import AsyncReader, RaiseOrSkip, read_async
from headwater.buffer.consumer.consumed import Lost
from headwater.buffer.consumer.reading import ReadBounds
from headwater.buffer.queue.contract import TimeBy
from headwater.buffer.stream import Stream
from headwater.core import portal
from headwater.core.errors import Refused
from headwater.core.limits import READ_AHEAD_BYTES
from headwater.store import Store


class Reader:
    """Iterates once over the record batches of a stream, all of one schema."""

    def __init__(self, reader: AsyncReader) -> None:
        """Use `headwater.read`."""
        self._reader = reader
        self._portal = portal.shared()

    @property
    def schema(self) -> pa.Schema:
        """The columns of every batch."""
        return self._reader.schema

    @property
    def lost(self) -> list[Lost]:
        """With on_bad_batch="skip": the records that could not be read so far."""
        return self._reader.lost

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = self._portal.call(self._reader.next_batch())
        if batch is None:
            self.close()
            raise StopIteration
        return batch

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's own door, by which other libraries read without a copy."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """The batches as Arrow's own reader."""
        return pa.RecordBatchReader.from_batches(self.schema, self)

    def to_table(self) -> pa.Table:
        """All of it in memory."""
        if self._reader.follows:
            raise Refused("a reader that follows never ends, so it is no table: iterate over it")
        return pa.Table.from_batches(self, schema=self.schema)

    def to_pandas(self, **options: Any) -> Any:
        """All of it as a pandas DataFrame; options are those of `pyarrow.Table.to_pandas`."""
        table = self.to_table()
        try:
            return table.to_pandas(**options)
        except ModuleNotFoundError as error:
            raise Refused("pandas is not installed: pip install pandas") from error

    def close(self) -> None:
        """Stop reading ahead, and give back what was opened for this reading."""
        self._portal.call(self._reader.close())


def read(
    source: str | Store | Stream,
    stream: str | None = None,
    start: ReadBounds = None,
    end: ReadBounds = None,
    *,
    partition: int | Sequence[int] | None = None,
    time_by: TimeBy = "timestamp",
    follow: bool = False,
    columns: Sequence[str] | None = None,
    on_bad_batch: RaiseOrSkip = "raise",
    read_ahead_bytes: int = READ_AHEAD_BYTES,
) -> Reader:
    """Read a stream as Arrow record batches. Opens nothing and fences nobody.

        table = headwater.read("file:///data", "orders", start="2026-01-31").to_table()

    `start` (inclusive) and `end` (exclusive) are LSNs, "earliest", "latest" or times; a mapping
    gives each partition its own. Without `start`, from the oldest record that is retained;
    without `end`, to the latest one at this moment, or with `follow` for ever. A time means the
    first record whose timestamp is this one or later; with `time_by="ingestion"`, the first one
    that was ingested then or later.
    """
    opening = read_async(
        source,
        stream,
        start,
        end,
        partition=partition,
        time_by=time_by,
        follow=follow,
        columns=columns,
        on_bad_batch=on_bad_batch,
        read_ahead_bytes=read_ahead_bytes,
    )
    return Reader(portal.shared().call(opening))
