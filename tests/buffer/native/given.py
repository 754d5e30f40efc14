"""A native queue to test on, and short names for what tests do to it."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.buffer.queue.contract import AppendedBatch, NewBatch, QueueReader, TimeBy
from headwater.buffer.queue.native.appender import NativeAppender
from headwater.buffer.queue.native.chunk import (
    Chunk,
    ProducerIncarnation,
    decode_chunk,
    encode_chunk,
)
from headwater.buffer.queue.native.chunk_log import ChunkLog, create_native_queue
from headwater.buffer.queue.native.collector import NativeCollector
from headwater.buffer.queue.native.consumer import NativeConsumer
from headwater.buffer.queue.native.reader import NativeReader
from headwater.buffer.queue.retention import Retention
from headwater.core import runtime
from headwater.core.runtime import encode_ulid
from headwater.store import MemoryBackend, Store
from headwater.store.backend import Backend

PREFIX = "streams/orders/0/ingest/q1"
QUEUE = "q1"
AT_MS = 1_767_000_000_000
NOTHING_KEPT = Retention(retention_ms=0, grace_ms=0, only_acknowledged=True)


class Cloud(MemoryBackend):
    """Memory that says it is far away: the end of a queue is then found by listing."""

    is_local = False


def batch(
    sequence: int,
    *,
    batch_id: str | None = None,
    rows: int = 1,
    size_bytes: int = 10,
    min_ms: int = AT_MS,
    max_ms: int | None = None,
    timestamps_us: tuple[int, int] | None = None,
    metadata: bytes | None = None,
    inline: bytes | None = b"inline",
) -> NewBatch:
    """A batch that rides in its entry, unless told otherwise."""
    return NewBatch(
        batch_id=batch_id or runtime.new_ulid(),
        producer_sequence=sequence,
        rows=rows,
        size_bytes=size_bytes,
        min_ms=min_ms,
        max_ms=min_ms if max_ms is None else max_ms,
        min_timestamp_us=None if timestamps_us is None else timestamps_us[0],
        max_timestamp_us=None if timestamps_us is None else timestamps_us[1],
        metadata=metadata,
        inline=inline,
    )


async def at_time(queue_reader: QueueReader, time_ms: int, by: TimeBy = "ingestion") -> int | None:
    """The sequence of the first batch of a time or later."""
    found = await queue_reader.batch_at_time(time_ms * 1000, by)
    return None if found is None else found.sequence


def ulid_at(time_ms: int) -> str:
    """Some ULID of this time."""
    return encode_ulid(time_ms << 80 | 7)


class Queue:
    """One queue, and doors to it."""

    def __init__(self, backend: Backend | None = None) -> None:
        self.backend = backend or MemoryBackend(versions_by_content=True)
        self.store = Store(self.backend)
        self.chunks = ChunkLog(self.store, PREFIX, QUEUE)

    async def create(self) -> Queue:
        """Make it."""
        await create_native_queue(self.store, PREFIX, QUEUE)
        return self

    def appender(
        self, producer: str = "p", *, store: Store | None = None, pace_s: float = 0.0
    ) -> NativeAppender:
        """A producer's door."""
        return NativeAppender(store or self.store, PREFIX, QUEUE, producer, pace_s=pace_s)

    async def opened(self, producer: str = "p", *, store: Store | None = None) -> NativeAppender:
        """A producer that has opened."""
        appender = self.appender(producer, store=store)
        await appender.open()
        return appender

    async def upload(
        self, appender: NativeAppender, sequence: int, *, batch_id: str | None = None
    ) -> NewBatch:
        """A batch in an object of its own."""
        new = batch(sequence, batch_id=batch_id, inline=None)
        await appender.upload(new.batch_id, new.batch_id.encode())
        return new

    async def fill(self, count: int, producer: str = "p") -> list[AppendedBatch]:
        """Append so many batches, one chunk each."""
        appender = await self.opened(producer)
        places = []
        for sequence in range(appender._landed + 1, appender._landed + 1 + count):
            places += await appender.append([batch(sequence, min_ms=runtime.wall_ms())])
            await self.close_last(appender)
        return places

    async def fill_at_once(self, count: int) -> None:
        """So many closed chunks with one batch each, as if appended by others long ago."""
        last = await self.chunk(0)
        for number in range(count):
            owner = ProducerIncarnation(f"other{number % 7}", "1")
            new = batch(1 + number // 7, batch_id=encode_ulid(number))
            last = last.written(runtime.new_token(), owner=owner, batches=[new], closed=True)
            await self.put_chunks([last])

    async def close_last(self, appender: NativeAppender) -> None:
        """Close the last chunk, so that the next append creates one."""
        tail = appender._tail
        await tail.write(tail.chunk.written(runtime.new_token(), closed=True))

    def queue_consumer(self, *, store: Store | None = None) -> NativeConsumer:
        """The owning consumer's door."""
        return NativeConsumer(store or self.store, PREFIX, QUEUE)

    async def taken(self, group: str = "g", *, take_over: bool = False) -> NativeConsumer:
        """A consumer that has opened."""
        queue_consumer = self.queue_consumer()
        await queue_consumer.open(group, take_over=take_over)
        return queue_consumer

    def queue_reader(self, *, store: Store | None = None) -> NativeReader:
        """Everybody's door."""
        return NativeReader(store or self.store, PREFIX, QUEUE)

    def collector(self, *, store: Store | None = None) -> NativeCollector:
        """The collector's door."""
        return NativeCollector(store or self.store, PREFIX, QUEUE)

    async def put_chunks(self, chunks: Sequence[Chunk]) -> None:
        """Write chunks as they are."""
        for chunk in chunks:
            await self.store.put(self.chunks.key(chunk.number), encode_chunk(chunk))

    async def chunk(self, number: int) -> Chunk:
        """A chunk as it is stored."""
        found = await self.store.get(self.chunks.key(number))
        return decode_chunk(found.data, queue_id=QUEUE, number=number)

    async def entries(self) -> list[tuple[str, int]]:
        """Producer and producer sequence of every batch there is, in order."""
        found = await self.queue_reader().after(None, 10_000)
        return [(one.producer, one.producer_sequence) for one in found]

    async def delete_chunk(self, number: int) -> None:
        """Remove a chunk, as nobody may."""
        await self.store.delete(self.chunks.key(number))


async def filled(batches: int, shape: type[MemoryBackend] = MemoryBackend) -> Queue:
    """A queue with so many batches, one chunk each."""
    queue = await Queue(shape(versions_by_content=True)).create()
    await queue.fill(batches)
    return queue
