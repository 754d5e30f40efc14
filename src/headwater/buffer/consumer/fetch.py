"""Fetching batches: needs a store and a descriptor, and nothing of the queue.

Always holds:

- a handle has no state that a fetch reads or changes: tasks, threads and processes share it, or
  each has its own; two fetches of one descriptor give equal batches;
- what is handed out agrees with its descriptor: the batch's id, where the format has one, and the
  number of records. Otherwise every LSN after it would name another record;
- a handle knows no fence. Whoever asked for the descriptors learns of a successor, from the queue.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headwater.buffer import v1_batch
from headwater.buffer.batch import decode_batch
from headwater.buffer.calls import Calls
from headwater.buffer.consumer.consumed import ConsumedBatch
from headwater.buffer.consumer.metrics import ConsumerMetrics
from headwater.buffer.consumer.unreadable import unreadable
from headwater.buffer.queue.contract import Descriptor
from headwater.buffer.records import from_values
from headwater.buffer.stream import Stream
from headwater.core import portal, runtime
from headwater.core.errors import BadKey, Corrupt, LimitExceeded, NotFound, NotSupported
from headwater.core.limits import DECODE_INLINE_BYTES
from headwater.store import Store

Decoded = tuple[pa.RecordBatch, Calls | None]


class FetchHandle:
    """Turns descriptors of one partition into batches. May be pickled, without credentials."""

    def __init__(
        self,
        store: Store,
        *,
        stream: str,
        partition: int,
        metrics: ConsumerMetrics | None = None,
        lenient: bool = False,
    ) -> None:
        """`lenient` reads published v1 batches as the reference does; `of` asks the stream."""
        self._store = store
        self._stream = stream
        self._partition = partition
        self._metrics = metrics or ConsumerMetrics()
        self._lenient = lenient

    @classmethod
    def of(
        cls, stream: Stream, partition: int, metrics: ConsumerMetrics | None = None
    ) -> FetchHandle:
        """A handle that reads as the stream asks for."""
        return cls(
            stream.store,
            stream=stream.name,
            partition=partition,
            metrics=metrics,
            lenient=stream.config.is_lenient,
        )

    def __repr__(self) -> str:
        return f"<fetches batches of {self._stream}/{self._partition} from {self._store.url}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _handle, (self._store, self._stream, self._partition, self._lenient)

    async def fetch(self, descriptor: Descriptor) -> ConsumedBatch:
        """Fetch and decode one batch; `UnreadableBatch` if it is missing or damaged."""
        if not descriptor.rows and not _holds_bytes(descriptor):
            return ConsumedBatch.empty(descriptor, stream=self._stream, partition=self._partition)
        started_s = runtime.monotonic_s()
        # What the store says of the store is not what the decoder says of the batch: the same kind
        # of error (NotSupported) from the first is for the caller, from the second of bad data.
        try:
            data = await self._read(descriptor)
        except (NotFound, BadKey) as error:
            raise unreadable(self._stream, self._partition, descriptor, error) from error
        try:
            if len(data) <= DECODE_INLINE_BYTES:
                records, calls = _decode(descriptor, data, self._lenient)
            else:
                records, calls = await runtime.run_blocking(
                    _decode, descriptor, data, self._lenient
                )
        except (Corrupt, NotSupported, LimitExceeded) as error:
            raise unreadable(self._stream, self._partition, descriptor, error) from error
        self._metrics.fetched(len(records), len(data), runtime.monotonic_s() - started_s)
        return ConsumedBatch(
            descriptor, records, calls, stream=self._stream, partition=self._partition
        )

    def fetch_blocking(self, descriptor: Descriptor) -> ConsumedBatch:
        """Fetch and decode one batch from code that has no event loop."""
        return portal.shared().call(self.fetch(descriptor))

    async def _read(self, descriptor: Descriptor) -> bytes | memoryview:
        if descriptor.inline is not None:
            return descriptor.inline
        foreign = descriptor.format == "v1"  # other software may have chosen the name
        return (await self._store.get(descriptor.location, foreign=foreign)).data


def _handle(store: Store, stream: str, partition: int, lenient: bool = False) -> FetchHandle:
    return FetchHandle(store, stream=stream, partition=partition, lenient=lenient)


def _holds_bytes(descriptor: Descriptor) -> bool:
    """Whether a batch without records has bytes all the same: damage, or a compressed nothing.

    One that was given up or appended before has no size.
    """
    return descriptor.format == "v1" and descriptor.size_bytes > v1_batch.FOOTER_BYTES


def _decode(descriptor: Descriptor, data: bytes | memoryview, lenient: bool) -> Decoded:
    calls = None
    if descriptor.format == "v1":
        records = from_values(v1_batch.decode_batch(data, lenient=lenient))
    else:
        batch = decode_batch(data, expected_id=descriptor.batch_id)
        records, calls = batch.records, batch.calls
    if records.num_rows != descriptor.rows:
        raise Corrupt(
            f"the batch holds {records.num_rows:,} records, and the queue says {descriptor.rows:,}"
        )
    return records, calls
