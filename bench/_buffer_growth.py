"""What an append, a poll and a dequeue move, by how much is pending: constant is right."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bench._report import Goal, Section, seconds
from headwater.buffer.queue.contract import Appender, NewBatch
from headwater.buffer.queue.v1.appender import V1Appender
from headwater.buffer.queue.v1.batch_format import encode_batch as encode_v1
from headwater.buffer.stream import Stream, create_stream
from headwater.core import runtime
from headwater.store import MemoryBackend, Store

ROWS = 1
BATCH_BYTES = 100_000
V1_BATCH = encode_v1([b"record"] * ROWS)
GROUP = 200
MEASURED = 256
"""As many as a chunk has entries, for a mean over its fillings; fewer if fewer are pending."""
GROWTH_GOAL = 1.5
OPERATIONS = ("append", "poll", "dequeue")

Figures = tuple[float, float, float]
"""Requests, bytes and seconds of one operation."""


def new_batch(sequence: int, timestamp_us: int | None = None) -> NewBatch:
    """A batch that is nowhere: the native queue does not look."""
    at_ms = runtime.wall_ms()
    return NewBatch(
        runtime.new_ulid(),
        sequence,
        ROWS,
        BATCH_BYTES,
        at_ms,
        at_ms,
        timestamp_us,
        timestamp_us,
        metadata=b"offset",
    )


async def growth(format_: str, pending: tuple[int, ...]) -> Section:
    """A queue of each of the lengths, and what operations on it cost."""
    section = Section(
        f"One operation by pending batches, {format_} queue (memory)",
        ["operation", "pending", "requests", "bytes", "time"],
    )
    found = [await _at(format_, length) for length in pending]
    for operation in OPERATIONS:
        for length, figures in zip(pending, found, strict=True):
            requests, moved_bytes, spent_s = figures[operation]
            row = [operation, f"{length:,}", f"{requests:.2f}", f"{moved_bytes:,.0f}"]
            section.rows.append([*row, seconds(spent_s)])
        base, most = found[-2][operation][1], found[-1][operation][1]
        what = f"{operation}: bytes at {pending[-1]:,} ÷ bytes at {pending[-2]:,} pending"
        if format_ == "native":
            section.goals.append(Goal(what, GROWTH_GOAL, most / base, at_least=False))
        else:
            section.notes.append(f"{what}: {most / base:.3g}")
    return section


class Meter:
    """Requests, bytes and time of what a store does while it is looked at."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._before = self._now()

    def _now(self) -> tuple[int, int, float]:
        operations = self._store.stats.operations.values()
        moved = sum(stats.bytes_sent + stats.bytes_received for stats in operations)
        return self._store.stats.requests, moved, time.perf_counter()

    def each(self, count: int) -> Figures:
        """The means, of so many operations."""
        after = self._now()
        requests, moved, spent_s = (b - a for a, b in zip(self._before, after, strict=True))
        return requests / count, moved / count, spent_s / count


async def _at(format_: str, length: int) -> dict[str, Figures]:
    store = Store(MemoryBackend())
    stream = await create_stream(store, "growth", format=format_)
    appender = stream.appender(0, "producer")
    await appender.open()
    await fill(appender, range(1, length + 1), GROUP)
    measured = min(MEASURED, length)
    meter = Meter(store)
    await fill(appender, range(length + 1, length + 1 + measured), 1)
    appends = meter.each(measured)
    polls, dequeues = await _consume(stream, measured)
    return {"append": appends, "poll": polls, "dequeue": dequeues}


async def fill(
    appender: Appender,
    numbers: range,
    group: int,
    make: Callable[[int], NewBatch] = new_batch,
) -> None:
    """Append batches of these producer sequences, so many at a time."""
    for first in numbers[::group]:
        batches = [make(number) for number in range(first, min(first + group, numbers.stop))]
        if isinstance(appender, V1Appender):
            # A v1 consumer reads the rows from the end of the object: there has to be one.
            await asyncio.gather(*(appender.upload(one.batch_id, V1_BATCH) for one in batches))
        await appender.append(batches)


async def _consume(stream: Stream, measured: int) -> tuple[Figures, Figures]:
    queue_consumer = stream.queue_consumer(0)
    cursor = await queue_consumer.open("bench")
    meter = Meter(stream.store)
    polled: list[int] = []
    for _ in range(measured):
        (found,) = await queue_consumer.after(cursor, 1)
        cursor = found.sequence
        polled.append(cursor)
    polls = meter.each(measured)
    meter = Meter(stream.store)
    for sequence in polled:
        await queue_consumer.dequeue(sequence)
    return polls, meter.each(measured)
