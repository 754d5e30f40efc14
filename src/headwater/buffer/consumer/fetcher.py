"""Fetching: from the descriptor of a batch to its decoded records.

Small batches are stored inside a chunk of the queue. `compact_descriptor` removes their bytes
from a descriptor that is sent to another process; the fetcher then reads the chunk, once for
all the batches in it.
"""

from __future__ import annotations

import asyncio
import functools
from collections import OrderedDict
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.buffer import arrow_stream
from headwater.buffer.batch import FOOTER_BYTES, Calls, decode_batch, read_footer
from headwater.buffer.batch import SCHEMA as CALLS_SCHEMA
from headwater.buffer.consumer.consumed_batch import ConsumedBatch, RecordedSchema, calls_of
from headwater.buffer.consumer.dead_letter import UnreadableBatch, unreadable
from headwater.buffer.consumer.progress import ConsumerMetrics
from headwater.buffer.queue.contract import Descriptor
from headwater.buffer.queue.native.chunk import decode_chunk
from headwater.buffer.queue.v1 import batch_format
from headwater.buffer.records import from_values
from headwater.buffer.stream import Stream
from headwater.core import portal, runtime
from headwater.core.errors import BadKey, Corrupt, LimitExceeded, NotFound, NotSupported
from headwater.core.limits import DECODE_INLINE_BYTES
from headwater.store import ByteRange, Store

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
        recorded: RecordedSchema | None = None,
    ) -> None:
        """`lenient` reads published v1 batches as the reference does; `recorded` are the columns
        of the stream. `of` asks the stream for both."""
        self._store = store
        self._stream = stream
        self._partition = partition
        self._metrics = metrics or ConsumerMetrics()
        self._chunk_cache = ChunkCache(store)
        self._lenient = lenient
        self.recorded = recorded or RecordedSchema()

    @classmethod
    def of(
        cls, stream: Stream, partition: int, metrics: ConsumerMetrics | None = None
    ) -> FetchHandle:
        return cls(
            stream.store,
            stream=stream.name,
            partition=partition,
            metrics=metrics,
            lenient=stream.config.is_lenient,
            recorded=RecordedSchema(stream.schema),
        )

    def __repr__(self) -> str:
        return f"<fetches batches of {self._stream}/{self._partition} from {self._store.url}>"

    def __reduce__(self) -> tuple[Any, ...]:
        restored = functools.partial(
            FetchHandle,
            stream=self._stream,
            partition=self._partition,
            lenient=self._lenient,
            recorded=self.recorded,
        )
        return restored, (self._store,)

    async def fetch(self, descriptor: Descriptor) -> ConsumedBatch:
        """Fetch and decode one batch; `UnreadableBatch` if it is missing or damaged."""
        if not descriptor.rows and not _holds_bytes(descriptor):
            return self._empty(descriptor)
        started_s = runtime.monotonic_s()
        # Errors of the store and of the decoder are handled apart: `NotSupported` from the store is
        # raised as it is, from the decoder it means an unreadable batch.
        try:
            data = await self._read(descriptor)
        except (NotFound, BadKey, Corrupt) as error:
            if not descriptor.rows and isinstance(error, NotFound):
                # It was counted while it existed, and had no records: nothing is lost.
                return self._empty(descriptor)
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
            descriptor,
            records,
            calls,
            stream=self._stream,
            partition=self._partition,
            recorded=self.recorded,
        )

    def _empty(self, descriptor: Descriptor) -> ConsumedBatch:
        return ConsumedBatch(
            descriptor, stream=self._stream, partition=self._partition, recorded=self.recorded
        )

    async def fetch_calls(self, descriptor: Descriptor) -> Calls:
        """The produce calls of a batch, without its records.

        Use this only for searching: the checksum covers the whole batch, which is not read here.
        """
        if descriptor.format == "v1" or not descriptor.rows:
            return calls_of(descriptor, descriptor.rows)
        if descriptor.inline is not None:
            return (await self.fetch(descriptor)).calls
        try:
            tail = (await self._store.get(descriptor.location, ByteRange(-FOOTER_BYTES))).data
            footer = read_footer(tail)
            end = descriptor.size_bytes - FOOTER_BYTES
            part = ByteRange(max(0, end - footer.calls_bytes), end)
            calls = Calls(
                arrow_stream.read((await self._store.get(descriptor.location, part)).data)
            )
            if calls.columns.schema != CALLS_SCHEMA:
                raise Corrupt("the batch's calls have other columns")
            calls.check(descriptor.rows)
        except (NotFound, BadKey, Corrupt, NotSupported) as error:
            raise unreadable(self._stream, self._partition, descriptor, error) from error
        return calls

    def bad_times(self, descriptor: Descriptor) -> UnreadableBatch:
        """The error for a batch whose times differ from its descriptor."""
        error = Corrupt("the batch's times differ from those in the queue")
        return unreadable(self._stream, self._partition, descriptor, error)

    def fetch_blocking(self, descriptor: Descriptor) -> ConsumedBatch:
        """Fetch and decode one batch, for blocking code."""
        return portal.shared().call(self.fetch(descriptor))

    async def _read(self, descriptor: Descriptor) -> bytes | memoryview:
        if descriptor.inline == IN_CHUNK:
            return await self._chunk_cache.batch(descriptor)
        if descriptor.inline is not None:
            return descriptor.inline
        foreign = descriptor.format == "v1"  # the name may be any text of other software
        return (await self._store.get(descriptor.location, foreign=foreign)).data


def _holds_bytes(descriptor: Descriptor) -> bool:
    """Whether a batch without records has an object, which may be damaged.

    A batch that was given up, or is a duplicate, has no size.
    """
    return descriptor.format == "v1" and descriptor.size_bytes > 0


def _decode(descriptor: Descriptor, data: bytes | memoryview, lenient: bool) -> Decoded:
    calls = None
    if descriptor.format == "v1":
        records = from_values(batch_format.decode_batch(data, lenient=lenient))
    else:
        batch = decode_batch(data, expected_id=descriptor.batch_id)
        records, calls = batch.records, batch.calls
    if records.num_rows != descriptor.rows:
        raise Corrupt(
            f"the batch holds {records.num_rows:,} records, and the queue says {descriptor.rows:,}"
        )
    return records, calls


IN_CHUNK: Final = b""
"""The inline bytes of a descriptor whose batch has to be read from the chunk at its location."""
CACHED_CHUNKS: Final = 4

InlineBatches = dict[str, bytes]


def compact_descriptor(descriptor: Descriptor) -> Descriptor:
    """The descriptor with only what is needed to fetch the batch."""
    inline = None if descriptor.inline is None else IN_CHUNK
    return msgspec.structs.replace(
        descriptor, inline=inline, metadata=None, producer="", producer_sequence=0
    )


class ChunkCache:
    """The last chunks that were read. Concurrent callers share one request."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._chunks: OrderedDict[str, asyncio.Task[InlineBatches]] = OrderedDict()

    async def batch(self, descriptor: Descriptor) -> bytes:
        """The bytes of one batch; `NotFound` if the chunk does not have it."""
        batches = await self._batches(descriptor.location)
        if descriptor.batch_id not in batches:
            # The chunk may have been read before the batch was added to it.
            self._chunks.pop(descriptor.location, None)
            batches = await self._batches(descriptor.location)
        batch = batches.get(descriptor.batch_id)
        if batch is None:
            raise NotFound(f"batch {descriptor.batch_id} is not in {descriptor.location}")
        return batch

    async def _batches(self, key: str) -> InlineBatches:
        task = self._chunks.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = runtime.spawn(self._read(key), name=f"read {key}")
            self._chunks[key] = task
            while len(self._chunks) > CACHED_CHUNKS:
                self._chunks.popitem(last=False)
        # Shielded: a caller that is cancelled must not cancel the request of the others.
        return await asyncio.shield(task)

    async def _read(self, key: str) -> InlineBatches:
        data = (await self._store.get(key)).data
        entries = decode_chunk(data, queue_id=None, number=None).entries
        return {entry.batch_id: entry.inline for entry in entries if entry.inline is not None}
