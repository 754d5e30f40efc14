"""A v1 queue to test on, and the other implementation's producer and consumer beside it.

The other ones do what opendata-buffer does, on the same objects, and no more: they know nothing
of Headwater's own objects.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import ParamSpec

from headwater.buffer.batch import Batch, Call, Calls
from headwater.buffer.compression import Compression
from headwater.buffer.queue.contract import AppendedBatch, Descriptor, NewBatch
from headwater.buffer.queue.v1.appender import V1Appender
from headwater.buffer.queue.v1.batch_format import decode_batch, encode_batch
from headwater.buffer.queue.v1.collector import V1Collector
from headwater.buffer.queue.v1.consumer import V1Consumer
from headwater.buffer.queue.v1.manifest_format import (
    Manifest,
    MetadataItem,
    decode_manifest,
    encode_manifest,
    pack_calls,
)
from headwater.buffer.queue.v1.reader import V1Queue, V1Reader
from headwater.buffer.queue.v1.side_object import SideState, create_v1_queue
from headwater.buffer.records import from_values
from headwater.core import runtime
from headwater.core.errors import Fenced, NotFound
from headwater.core.retry import RetryPolicy
from headwater.store import MemoryBackend, Register, Store, open_store
from tests.store.scripted import Scripted

P = ParamSpec("P")

PREFIX = "streams/orders/0/ingest"
MANIFEST = f"{PREFIX}/manifest"
SIDE = f"{PREFIX}/headwater/side.json"
QUEUE = "orders-0"


class Queue:
    """One queue, and doors to it."""

    def __init__(self, store: Store, *, prefix: str = PREFIX) -> None:
        self.store = store
        self.prefix = prefix

    async def made(self) -> Queue:
        await create_v1_queue(self.store, self.prefix, QUEUE)
        return self

    def queue(self, store: Store | None = None, policy: RetryPolicy | None = None) -> V1Queue:
        return V1Queue(store or self.store, self.prefix, QUEUE, policy=policy)

    def appender(self, store: Store | None = None, policy: RetryPolicy | None = None) -> V1Appender:
        return V1Appender(self.queue(store, policy))

    def queue_consumer(
        self, store: Store | None = None, policy: RetryPolicy | None = None
    ) -> V1Consumer:
        return V1Consumer(self.queue(store, policy))

    def queue_reader(self, store: Store | None = None) -> V1Reader:
        return V1Reader(self.queue(store))

    def collector(self, store: Store | None = None) -> V1Collector:
        return V1Collector(self.queue(store))

    async def opened(self, group: str = "g") -> V1Consumer:
        queue_consumer = self.queue_consumer()
        await queue_consumer.open(group)
        return queue_consumer

    async def manifest(self) -> Manifest:
        return decode_manifest((await self.store.get(f"{self.prefix}/manifest")).data)

    async def side(self) -> SideState:
        return (
            await Register(self.store, f"{self.prefix}/headwater/side.json", SideState).read()
        ).value

    async def records(self, batches: Sequence[Descriptor]) -> list[bytes]:
        """The records of these batches, fetched as a consumer fetches them."""
        found: list[bytes] = []
        for batch in batches:
            if batch.rows:
                data = (await self.store.get(batch.location, foreign=True)).data
                records = decode_batch(data).to_pylist()
                assert (len(records), len(data)) == (batch.rows, batch.size_bytes)
                found += records
        return found

    async def keys(self) -> list[str]:
        return [meta.key async for meta in self.store.list(self.prefix)]

    async def segments(self) -> dict[int, str]:
        """The keys of segments by their last sequence."""
        keys = [key for key in await self.keys() if "/acked/" in key]
        return {int(key.rpartition("/")[2][:20]): key for key in keys}


def memory() -> Queue:
    """A queue on a store whose versions are hashes of the content, as S3's are."""
    return Queue(Store(MemoryBackend(versions_by_content=True)))


def scripted() -> tuple[Scripted, Queue]:
    """The same, and a backend over it that answers as it is told."""
    backend = Scripted(MemoryBackend(versions_by_content=True))
    return backend, Queue(Store(backend.inner))


def either(kind: str, tmp_path: Path) -> Queue:
    """A queue in memory, or in a directory."""
    return memory() if kind == "memory" else Queue(open_store(f"file://{tmp_path}/store"))


def new_batch(
    *values: bytes, time_ms: int = 1_000, metadata: bytes | None = None
) -> tuple[NewBatch, bytes]:
    """A batch to append, and its bytes to upload."""
    calls = Calls.of([Call(0, time_ms, metadata)])
    batch = Batch(runtime.new_ulid(), from_values(list(values)), calls)
    data = encode_batch(batch.records.column(0), Compression.NONE)
    described = NewBatch(
        batch_id=batch.batch_id,
        producer_sequence=1,
        rows=len(values),
        size_bytes=len(data),
        min_ms=time_ms,
        max_ms=time_ms,
        metadata=metadata,
        calls=pack_calls(calls),
    )
    return described, data


async def uploaded(appender: V1Appender, *values: bytes, time_ms: int = 1_000) -> NewBatch:
    """A batch that is there, and that nobody has appended."""
    batch, data = new_batch(*values, time_ms=time_ms)
    await appender.upload(batch.batch_id, data)
    return batch


async def produce(appender: V1Appender, *values: bytes, time_ms: int = 1_000) -> AppendedBatch:
    """Upload and append one batch."""
    (placed,) = await appender.append([await uploaded(appender, *values, time_ms=time_ms)])
    return placed


class OtherProducer:
    """Appends as the published implementation does: after a conflict it appends again."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    async def put(self, location: str, *values: bytes) -> None:
        # Past the store: other software has no rules for keys.
        await self.queue.store._backend.put(location, encode_batch(list(values)))

    async def enqueue(self, location: str, items: Sequence[MetadataItem] = ()) -> None:
        await _rewrite(self.queue, lambda manifest: manifest.appended([(location, items)]))

    async def produce(self, location: str, *values: bytes, time_ms: int = 1_000) -> None:
        await self.put(location, *values)
        await self.enqueue(location, [MetadataItem(0, time_ms, b"")])


class OtherConsumer:
    """Opens and dequeues as the published implementation does."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.epoch = -1

    async def open(self) -> None:
        written = await _rewrite(self.queue, lambda now: now.with_epoch(now.epoch + 1))
        self.epoch = written.epoch

    async def dequeue(self, through: int) -> None:
        def change(manifest: Manifest) -> Manifest:
            if manifest.epoch != self.epoch:
                raise Fenced("epoch")
            return manifest.dequeued(through)

        await _rewrite(self.queue, change)


async def _rewrite(queue: Queue, change: Callable[[Manifest], Manifest]) -> Manifest:
    key = f"{queue.prefix}/manifest"
    try:
        found = await queue.store.get(key)
    except NotFound:
        changed = change(Manifest())
        await queue.store.put_if_absent(key, encode_manifest(changed), token=None)
        return changed
    changed = change(decode_manifest(found.data))
    await queue.store.put_if_unchanged(key, encode_manifest(changed), found.version, token=None)
    return changed


def real(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run a test that needs a directory, and therefore threads: outside the simulator."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            await test(*args, **kwargs)

        asyncio.run(main())

    return run


def then(call: Callable[..., Awaitable[object]], *args: object) -> Callable[[], Awaitable[object]]:
    """A call to make later."""
    return functools.partial(call, *args)


async def filled(queue: Queue, *rows: int) -> Queue:
    """With a batch of so many records each; the records are numbered from 1."""
    await queue.made()
    appender = queue.appender()
    number = 0
    for count in rows:
        values = [str(number + n + 1).encode() for n in range(count)]
        number += count
        await produce(appender, *values)
    return queue


def places(batches: list[Descriptor]) -> list[tuple[int, int, int]]:
    return [(batch.sequence, batch.first_lsn, batch.rows) for batch in batches]


async def nothing() -> None:
    return None
