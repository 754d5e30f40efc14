"""What finding a time takes, by how many batches there are: as halving grows, and not as a scan."""

from __future__ import annotations

import random

from bench._buffer_growth import GROUP, Meter, fill, new_batch
from bench._report import Goal, Section, seconds
from headwater.buffer.queue.contract import Descriptor, QueueReader
from headwater.buffer.queue.retention import Retention
from headwater.buffer.stream import Stream, create_stream
from headwater.core import limits
from headwater.core.limits import LOOK_BATCHES
from headwater.store import MemoryBackend, Store

LOOKS = 50
EVERY_US = 1000
LATE_US = 300_000
"""Timestamps rise by EVERY_US with each batch, and are up to so much behind."""
FAR_US = 1 << 60
SPARE_READS = 8
"""Of the floor, the end, and what lies in the chunk that is open."""
SCAN_GOAL = 0.1


async def times(lengths: tuple[int, ...]) -> Section:
    """A queue of each of the lengths; the first record is far ahead, and is deleted half-way."""
    section = Section(
        "A time found in a native queue (memory)",
        ["batches", "chunks", "look-up", "requests", "bytes", "time", "÷ scan's bytes"],
    )
    for length in lengths:
        stream = await _queue(length)
        chunks = -(-length // limits.CHUNK_MAX_ENTRIES)
        for state in ("", "first record deleted"):
            if state:
                await _delete_first(stream)
            found = await _looked_up(stream, length)
            scan = await _scanned(stream)
            requests, moved_bytes, spent_s = found
            of_scan = moved_bytes / scan[1]
            row = [f"{length:,}", f"{chunks:,}", state or "all kept", f"{requests:.1f}"]
            section.rows.append([*row, f"{moved_bytes:,.0f}", seconds(spent_s), f"{of_scan:.3f}"])
            if state and length == lengths[-1]:
                most = 2 * chunks.bit_length() + SPARE_READS
                what = f"requests among {length:,} batches"
                section.goals.append(Goal(what, most, requests, at_least=False))
                what = f"bytes ÷ those of a scan among {length:,} batches"
                section.goals.append(Goal(what, SCAN_GOAL, of_scan, at_least=False))
    section.notes.append("the batch that has the record is not counted: one request, if any")
    return section


async def _queue(length: int) -> Stream:
    stream = await create_stream(Store(MemoryBackend()), "times", retention_ms=0)
    appender = stream.appender(0, "producer")
    await appender.open()
    chance = random.Random(7)
    stamps = [n * EVERY_US - chance.randrange(LATE_US) for n in range(length)]
    stamps[0] = FAR_US
    await fill(appender, range(1, length + 1), GROUP, lambda n: new_batch(n, stamps[n - 1]))
    return stream


async def _delete_first(stream: Stream) -> None:
    queue_consumer = stream.queue_consumer(0)
    await queue_consumer.open("bench")
    await queue_consumer.dequeue(0)
    await stream.collector(0).collect(Retention(retention_ms=0, grace_ms=0))


async def _looked_up(stream: Stream, length: int) -> tuple[float, float, float]:
    chance = random.Random(11)
    meter = Meter(stream.store)
    for _ in range(LOOKS):
        time_us = chance.randrange(length * EVERY_US)
        await stream.queue_reader(0).batch_at_time(time_us, "timestamp")
    return meter.each(LOOKS)


async def _scanned(stream: Stream) -> tuple[float, float, float]:
    """Every entry read, and compared."""
    meter = Meter(stream.store)
    queue_reader: QueueReader = stream.queue_reader(0)
    position, late = None, 0
    while found := await queue_reader.after(position, LOOK_BATCHES):
        late += sum(_is_late(one) for one in found)
        position = found[-1].sequence
    return meter.each(1)


def _is_late(batch: Descriptor) -> bool:
    return batch.range_us("timestamp")[1] >= FAR_US
