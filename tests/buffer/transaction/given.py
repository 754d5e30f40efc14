"""A stream to write to in transactions, and short names for what tests do with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headwater.buffer.batch import decode_batch
from headwater.buffer.collection import retention_of
from headwater.buffer.queue.contract import Collected
from headwater.buffer.records import from_values
from headwater.buffer.stream import Stream, create_stream
from headwater.buffer.transaction.commit import CommitResult, TaskUploads, TransactionCommitter
from headwater.buffer.transaction.record import CommitAttempt
from headwater.buffer.transaction.upload import Uploader
from headwater.core import runtime
from headwater.store import MemoryBackend, Store, Version
from headwater.store.backend import Backend, Condition
from headwater.store.objects import Buffer

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


class Shelf(MemoryBackend):
    """Memory with a clock of its own, whatever that of the process says which writes to it."""

    def __init__(self) -> None:
        super().__init__(versions_by_content=True)
        self._clock = runtime.current()

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        with runtime.installed(self._clock):
            return await super().put(key, data, condition)


async def a_stream(
    backend: Backend | None = None, *, partitions: int = 2, grace_ms: int = 600_000
) -> Stream:
    """A native stream in memory."""
    store = Store(backend or Shelf())
    return await create_stream(
        store, "orders", partitions=partitions, gc_grace_ms=grace_ms, retention_ms=-1
    )


def micro_batch(version: int, run: str = "run") -> CommitAttempt:
    """An attempt of a streaming query."""
    return CommitAttempt.of_query("query", version, run)


def records(values: Sequence[str]) -> pa.RecordBatch:
    """Opaque values."""
    return from_values([value.encode() for value in values])


async def upload(
    stream: Stream, attempt: CommitAttempt, task: int, rows: Mapping[int, Sequence[str]]
) -> TaskUploads:
    """What one task does: values by partition."""
    uploader = Uploader(stream, attempt, task)
    for partition, values in rows.items():
        await uploader.add(partition, records(values))
    return await uploader.finish()


async def write(
    stream: Stream, attempt: CommitAttempt, *tasks: Mapping[int, Sequence[str]]
) -> CommitResult:
    """A whole transaction."""
    done = [await upload(stream, attempt, number, rows) for number, rows in enumerate(tasks)]
    return await TransactionCommitter(stream, attempt).commit(done)


async def values_of(stream: Stream, partition: int = 0) -> list[str]:
    """Every value of a partition, in order."""
    found: list[str] = []
    for one in await stream.queue_reader(partition).after(None, 10_000):
        data = (await stream.store.get(one.location)).data
        batch = decode_batch(data, expected_id=one.batch_id)
        found += [value.decode() for value in batch.records.column("_value").to_pylist()]
    return found


async def collect(stream: Stream, *, full: bool = True) -> list[Collected]:
    """A pass over every partition, as consumers make them."""
    passes = []
    for partition in range(stream.partitions):
        retention = await retention_of(stream, partition)
        passes.append(await stream.collector(partition).collect(retention, full=full))
    return passes


async def uploads_left(stream: Stream) -> int:
    """How many batch objects there are."""
    count = 0
    async for meta in stream.store.list(f"streams/{stream.name}"):
        count += "/batches/" in meta.key
    return count


async def let_pass(seconds: float) -> None:
    """Time goes by."""
    await runtime.sleep(seconds)
