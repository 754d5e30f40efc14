"""`BlockingConsumer` and `BlockingReader`: consuming and reading without an event loop."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from headwater.buffer.consumer import reader as async_reader
from headwater.buffer.consumer.consumed_batch import ConsumedBatch
from headwater.buffer.consumer.consumer import Consumer
from headwater.buffer.consumer.dead_letter import LostRecords
from headwater.buffer.consumer.fetcher import FetchHandle
from headwater.buffer.consumer.ownership import ProcessGuard
from headwater.buffer.consumer.positions import ReadBounds
from headwater.buffer.consumer.progress import ConsumerMetrics, Lag
from headwater.buffer.consumer.reader import RaiseOrSkip, Reader, check_ends, to_frame
from headwater.buffer.queue.contract import Descriptor, TimeBy
from headwater.buffer.stream import Stream
from headwater.core import portal
from headwater.core.errors import Refused, adding_to
from headwater.core.limits import READ_AHEAD_BYTES
from headwater.store import Store

T = TypeVar("T")


class BlockingConsumer:
    """`Consumer` for blocking code. Its calls run in the process's portal."""

    def __init__(self, consumer: Consumer) -> None:
        """Use `BlockingConsumer.open`."""
        self._consumer = consumer
        self._portal = portal.shared()
        self._process = ProcessGuard("consumer")

    @classmethod
    def open(
        cls,
        source: str | Store | Stream,
        name: str | None = None,
        partition: int = 0,
        group: str = "default",
        **options: Any,
    ) -> BlockingConsumer:
        """As `Consumer.open`."""
        opening = Consumer.open(source, name, partition, group, **options)
        return cls(portal.shared().call(opening))

    def __enter__(self) -> BlockingConsumer:
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        with adding_to(error, "closing the consumer"):
            self.close()

    def __len__(self) -> int:
        return len(self._consumer)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return repr(self._consumer)

    @property
    def stream(self) -> Stream:
        """The stream as it was when the consumer was opened."""
        return self._consumer.stream

    @property
    def partition(self) -> int:
        """The partition that it owns."""
        return self._consumer.partition

    @property
    def epoch(self) -> int:
        """The epoch of this consumer. Each opening gets a higher one."""
        return self._consumer.epoch

    @property
    def last_acked_sequence(self) -> int | None:
        """The last acknowledged batch."""
        return self._consumer.last_acked_sequence

    @property
    def last_handed_out_sequence(self) -> int | None:
        """The last batch that was delivered, or whose descriptor was."""
        return self._consumer.last_handed_out_sequence

    @property
    def metrics(self) -> ConsumerMetrics:
        """The consumer's metrics."""
        return self._consumer.metrics

    @property
    def conflict_rate(self) -> float:
        """Lost races per hundred conditional writes to the queue."""
        return self._consumer.conflict_rate

    def next_batch(self) -> ConsumedBatch | None:
        """The next batch; None if there is none at present."""
        return self._call(self._consumer.next_batch())

    def next_descriptors(self, max_count: int) -> list[Descriptor]:
        """Up to `max_count` descriptors of the next batches."""
        return self._call(self._consumer.next_descriptors(max_count))

    def fetch_handle(self) -> FetchHandle:
        """A handle that fetches batches by their descriptors, in any task, thread or process."""
        return self._consumer.fetch_handle()

    def fetch_descriptor(self, descriptor: Descriptor) -> ConsumedBatch:
        """Fetch one batch by its descriptor."""
        return self._call(self._consumer.fetch_descriptor(descriptor))

    def ack(self, sequence: int) -> None:
        """Acknowledge the batch after the last acknowledged one."""
        self._call(self._consumer.ack(sequence))

    def ack_through(self, sequence: int) -> None:
        """Acknowledge every batch through this one, and write that to the queue."""
        self._call(self._consumer.ack_through(sequence))

    def flush(self) -> None:
        """Write all acknowledgements to the queue."""
        self._call(self._consumer.flush())

    def lag(self) -> Lag:
        """What is not acknowledged, according to the queue."""
        return self._call(self._consumer.lag())

    def close(self) -> None:
        """Flush and stop, as `Consumer.close`. Does nothing in a forked child."""
        if not self._process.is_left:
            self._call(self._consumer.close())

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            self._process.check()
        except Refused:
            coroutine.close()
            raise
        return self._portal.call(coroutine)


class BlockingReader:
    """Iterates once over the record batches of a stream, all with one schema.

        for batch in headwater.blocking.read("file:///data", "orders", start="2026-01-31"):
            …
        frame = headwater.blocking.read("file:///data", "orders").to_pandas()

    Polars and DuckDB accept the reader itself, or its table.
    """

    def __init__(self, reader: Reader) -> None:
        """Use `headwater.blocking.read`."""
        self._reader = reader
        self._portal = portal.shared()

    @property
    def schema(self) -> pa.Schema:
        """The columns of every batch."""
        return self._reader.schema

    @property
    def lost(self) -> list[LostRecords]:
        """With on_bad_batch="skip": the unreadable records so far."""
        return self._reader.lost

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = self._portal.call(self._reader.next_batch())
        if batch is None:
            self.close()
            raise StopIteration
        return batch

    def __enter__(self) -> BlockingReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's C stream interface, by which other libraries read without a copy."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """The batches as a `pyarrow.RecordBatchReader`."""
        return pa.RecordBatchReader.from_batches(self.schema, self)

    def to_table(self) -> pa.Table:
        """All records, in memory."""
        check_ends(follow=self._reader.follows)
        return pa.Table.from_batches(self, schema=self.schema)

    def to_pandas(self, **options: Any) -> Any:
        """All records as a pandas DataFrame. Options are those of `pyarrow.Table.to_pandas`."""
        return to_frame(self.to_table(), options)

    def close(self) -> None:
        """Stop reading ahead, and close what was opened for this reader."""
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
) -> BlockingReader:
    """Read a stream as Arrow record batches, as `headwater.read` does. Opens it at once.

    table = headwater.blocking.read("file:///data", "orders", start="2026-01-31").to_table()
    """
    reader = async_reader.read(
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
    return BlockingReader(portal.shared().call(reader.open()))
