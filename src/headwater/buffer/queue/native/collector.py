"""The collector of a native queue: first the floor, then what lies below it.

A pass has three parts, each bounded:

- *expired*: chunks whose batches are all acknowledged and past the retention. Their producers'
  marks are folded, the floor is raised above them, their batches are deleted, and once the floor
  has settled, they are;
- *orphaned*: batches that were uploaded and never appended. The batch floor is raised to them and
  written into the last chunk, and *then* the queue is read once more: whatever was appended before
  is seen, and whoever appends after it sees the floor and is refused;
- *forgotten*: producers that were silent for long, and of which nothing is kept. They are closed
  first: told to stop, by a note in the last chunk. Once that chunk is gone, so is their mark.

Deleting by age alone is the obvious alternative; it deletes what a stalled producer appends, and
is told is accepted, right after.
"""

from __future__ import annotations

import itertools

import msgspec

from headwater.buffer.queue.contract import Collected, Collector, Counters, Retention
from headwater.buffer.queue.native.chunk import Chunk
from headwater.buffer.queue.native.chunks import Chunks
from headwater.buffer.queue.native.deleting import delete_all
from headwater.buffer.queue.native.forgetting import Forgetting
from headwater.buffer.queue.native.marks import fold, last_marks, shard_register
from headwater.buffer.queue.native.orphans import Orphans
from headwater.buffer.queue.native.records import (
    Consumer,
    Mark,
    Queue,
    Scanned,
    Shard,
    consumer_register,
    no_queue,
    read_consumer,
    shard_name,
)
from headwater.buffer.queue.native.tail import Dead, Lost, Tail
from headwater.core import limits, runtime
from headwater.store import Register, Store


class NativeCollector(Collector):
    """Collects one partition's garbage. Several may run at once."""

    def __init__(self, store: Store, prefix: str, queue_id: str) -> None:
        self._store = store
        self._prefix = prefix
        self._chunks = Chunks(store, prefix, queue_id)
        self._consumer = consumer_register(store, prefix)
        self._scanned = Register(store, f"{prefix}/gc.json", Scanned)

    async def collect(self, retention: Retention, *, full: bool = False) -> Collected:
        try:
            return await self._collect(retention, full=full)
        finally:
            await self._chunks.ends.close()

    async def _collect(self, retention: Retention, *, full: bool) -> Collected:
        report = Collected()
        queue = await self._chunks.floors()
        settled = 0 if await self._settles_in_s() else queue.chunk_floor
        consumer = await read_consumer(self._consumer)
        last = await self._last(max(queue.chunk_floor, consumer.chunk), consumer, retention)
        queue = await self._expire(queue, consumer, last, retention, report)
        await Orphans(self._chunks, self._scanned, retention).collect(report, full=full)
        await Forgetting(self._chunks, self._scanned, queue, last).collect(report)
        await self._sweep(settled, report)
        if full and settled < queue.chunk_floor:
            await runtime.sleep(await self._settles_in_s())
            await self._sweep(queue.chunk_floor, report)
        # In this order none is behind the one before: both only go forward.
        queue = await self._chunks.floors()
        consumer = await read_consumer(self._consumer)
        report.floor_sequence, report.floor_lsn = queue.floor_sequence, queue.floor_lsn
        report.batch_floor = queue.batch_floor
        report.kept_pending = max(0, last.next_sequence - consumer.sequence)
        report.kept_retained = consumer.sequence - queue.floor_sequence
        return report

    async def _last(self, known: int, consumer: Consumer, retention: Retention) -> Chunk:
        """The last chunk; if it could go, an empty one after it, so that it can."""
        tail = Tail(self._chunks, Counters())
        tail.adopt(await self._chunks.last(known))
        last = tail.chunk
        expired = _is_expired(last, consumer, last, retention)
        if not last.entries or not expired:
            return last
        try:
            if not last.closed:
                await tail.write(last.written(runtime.new_token(), closed=True))
            await tail.write(tail.chunk.written(runtime.new_token()))
        except (Lost, Dead):
            pass  # somebody appends: the chunk will not be the last for long
        return tail.chunk

    async def _expire(
        self,
        queue: Queue,
        consumer: Consumer,
        last: Chunk,
        retention: Retention,
        report: Collected,
    ) -> Queue:
        """Raise the floor above what nobody needs, and delete it."""
        expired: list[Chunk] = []
        # The last chunk stays: the next one is made from it.
        while len(expired) < limits.GC_CHUNKS:
            number = queue.chunk_floor + len(expired)
            run = await self._chunks.run(number, min(limits.GC_PARALLEL, last.number - number))
            ready = itertools.takewhile(
                lambda chunk: _is_expired(chunk, consumer, last, retention),
                (held.chunk for held in run),
            )
            expired += ready
            if not run or queue.chunk_floor + len(expired) <= run[-1].chunk.number:
                break
        if not expired:
            return queue
        # What was read counts under a floor read after it; a mark of what never was loses a batch.
        if (now := await self._chunks.floors()).chunk_floor != queue.chunk_floor:
            return now
        await self._fold(expired)
        raised = await self._raise_floor(queue, expired[-1])
        if raised is None:
            return await self._chunks.floors()  # another collector was quicker
        await self._delete_batches(expired, report)
        return raised

    async def _fold(self, expired: list[Chunk]) -> None:
        shards: dict[str, dict[str, Mark]] = {}
        for chunk in expired:
            for producer, mark in last_marks(chunk).items():
                shards.setdefault(shard_name(producer), {})[producer] = mark
        for name, marks in shards.items():
            await self._fold_shard(name, marks)

    async def _fold_shard(self, name: str, marks: dict[str, Mark]) -> None:
        register = shard_register(self._store, self._prefix, name)
        await register.update(lambda shard: fold(shard or Shard(), marks))

    async def _raise_floor(self, before: Queue, expired: Chunk) -> Queue | None:
        """The floors above this chunk; None if they moved since `before` was read.

        That they did not move shows that every chunk read since was real.
        """
        raised = msgspec.structs.replace(
            before,
            chunk_floor=expired.number + 1,
            floor_sequence=expired.next_sequence,
            floor_lsn=expired.next_lsn,
        )

        def change(now: Queue | None) -> Queue:
            if now is None:
                raise no_queue(self._prefix)
            if now.chunk_floor != before.chunk_floor:
                return now
            return msgspec.structs.replace(raised, batch_floor=now.batch_floor)

        stored = (await self._chunks.register.update(change)).value
        return stored if stored.chunk_floor == raised.chunk_floor else None

    async def _delete_batches(self, expired: list[Chunk], report: Collected) -> None:
        entries = [entry for chunk in expired for entry in chunk.entries]
        uploaded = [entry for entry in entries if entry.inline is None]
        keys = [self._chunks.batch_key(entry.batch_id) for entry in uploaded]
        gone = await delete_all(self._store, keys, report)
        report.batches_expired += len(entries) - (len(keys) - gone)
        report.bytes_expired += sum(entry.size_bytes for entry in entries)

    async def _sweep(self, floor: int, report: Collected) -> None:
        """Delete chunks below a settled floor: the expired, and what a stalled writer created.

        Only they, not the batches they name: a stalled writer appended those again.
        """
        keys: list[str] = []
        async for meta in self._store.list(f"{self._prefix}/chunks"):
            number = self._chunks.number_of(meta.key)
            if number is None:
                continue
            if number >= floor or len(keys) >= limits.GC_LISTED:
                break
            keys.append(meta.key)
        report.chunks_expired += await delete_all(self._store, keys, report)

    async def _settles_in_s(self) -> float:
        """How long until the floor has stood for FLOOR_SETTLE_S, by the store's own clock.

        Until then there are writers that count on finding what was there. Passes may run on
        machines whose clocks disagree; so the store is asked when it last changed queue.json, and
        what time it is: that of an object it just wrote.
        """
        raised = await self._store.head(self._chunks.register.key)

        def count(now: Scanned | None) -> Scanned:
            now = now or Scanned()
            return msgspec.structs.replace(now, passes=now.passes + 1)

        await self._scanned.update(count)
        here = await self._store.head(self._scanned.key)
        # Stores round to seconds.
        stood_s = (here.modified_ms - raised.modified_ms) / 1000 - 1.0
        return max(0.0, limits.FLOOR_SETTLE_S - stood_s)


def _is_expired(chunk: Chunk, consumer: Consumer, last: Chunk, retention: Retention) -> bool:
    if chunk.next_sequence > consumer.sequence:
        return False
    if not chunk.entries:
        return True
    by_time = retention.retention_ms is not None and (
        max(entry.max_ms for entry in chunk.entries) <= runtime.wall_ms() - retention.retention_ms
    )
    by_size = retention.retention_bytes is not None and (
        last.bytes_through - chunk.bytes_through >= retention.retention_bytes
    )
    return by_time or by_size
