"""A queue for the collector to work on, and what it has left of it."""

from __future__ import annotations

from headwater.buffer.queue.native.appender import NativeAppender
from headwater.buffer.queue.native.reader import NativeReader
from headwater.buffer.queue.retention import Retention
from headwater.core import runtime
from headwater.store import MemoryBackend
from tests.buffer.native.given import PREFIX, Queue

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
FOREVER = Retention(None, grace_ms=0)


async def produce(queue: Queue, appender: NativeAppender, count: int) -> list[str]:
    """Batches in objects of their own, one chunk each; their ids."""
    ids = []
    for _ in range(count):
        new = await queue.upload(appender, appender._landed + 1)
        await appender.append([new])
        await queue.close_last(appender)
        ids.append(new.batch_id)
    return ids


async def a_queue(
    count: int, *, acked: int = 0, shape: type[MemoryBackend] = MemoryBackend
) -> tuple[Queue, list[str]]:
    """A queue with so many batches, of which the first are acknowledged."""
    queue = await Queue(shape(versions_by_content=True)).create()
    ids = await produce(queue, await queue.opened(), count)
    if acked:
        await (await queue.taken()).dequeue(acked - 1)
    await runtime.sleep(1.0)
    return queue, ids


async def in_one_chunk(
    count: int, *, acked: int, shape: type[MemoryBackend] = MemoryBackend
) -> tuple[Queue, list[str]]:
    """A queue whose one chunk has so many batches, in objects of their own."""
    queue = await Queue(shape(versions_by_content=True)).create()
    appender = await queue.opened()
    group = [await queue.upload(appender, sequence) for sequence in range(1, count + 1)]
    await appender.append(group)
    await (await queue.taken()).dequeue(acked - 1)
    await runtime.sleep(1.0)
    return queue, [one.batch_id for one in group]


async def read_on(queue_reader: NativeReader, sequence: int) -> None:
    """Read twice: the first time may tell the floor, which the second one goes by."""
    for _ in range(2):
        await queue_reader.after(sequence - 1, 1)


async def uploads(queue: Queue) -> list[str]:
    """The names below batches/."""
    folder = f"{PREFIX}/batches"
    return [meta.key.removeprefix(f"{folder}/") async for meta in queue.store.list(folder)]


async def chunk_numbers(queue: Queue) -> list[int]:
    """The chunks there are."""
    found = [
        queue.chunks.number_of(meta.key) async for meta in queue.store.list(f"{PREFIX}/chunks")
    ]
    return [number for number in found if number is not None]
