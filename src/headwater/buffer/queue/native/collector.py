"""The collector of a native queue: first the floor, then what lies below it.

A pass has three parts, each bounded:

- *expired*: chunks whose batches are all acknowledged and past the retention. Their producers'
  marks are folded, the floor is raised above them, then their batches and they are deleted;
- *orphaned*: batches that were uploaded and never appended. The batch floor is raised to them and
  written into the last chunk, and *then* the queue is read once more: whatever was appended before
  is seen, and whoever appends after it sees the floor and is refused;
- *forgotten*: producers that were silent for long, and of which nothing is kept.

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
from headwater.buffer.queue.native.marks import fold, last_marks, shard_register
from headwater.buffer.queue.native.orphans import Orphans
from headwater.buffer.queue.native.records import (
    Consumer,
    Mark,
    Producer,
    Queue,
    Scanned,
    Shard,
    shard_name,
)
from headwater.buffer.queue.native.tail import Dead, Lost, Tail
from headwater.buffer.queue.native.taker import consumer_register
from headwater.core import limits, runtime
from headwater.core.errors import NotFound
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
        report = Collected()
        queue = await self._chunks.floors()
        consumer = await self._read_consumer()
        last = await self._last(max(queue.chunk_floor, consumer.chunk), consumer, retention)
        queue = await self._expire(queue, consumer, last, retention, report)
        await self._sweep(queue.chunk_floor, report)
        await Orphans(self._chunks, self._scanned, retention).collect(report, full=full)
        await self._forget(queue, last, report)
        queue = await self._chunks.floors()
        report.floor_sequence, report.floor_lsn = queue.floor_sequence, queue.floor_lsn
        report.batch_floor = queue.batch_floor
        report.kept_pending = last.next_sequence - consumer.sequence
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

    async def _read_consumer(self) -> Consumer:
        try:
            return (await self._consumer.read()).value
        except NotFound:
            return Consumer()

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
        await self._fold(expired)
        raised = await self._raise_floor(queue, expired[-1])
        if raised is None:
            return await self._chunks.floors()  # another collector was quicker
        await self._delete_expired(expired, report)
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
                raise NotFound(f"there is no queue at {self._prefix}")
            if now.chunk_floor != before.chunk_floor:
                return now
            return msgspec.structs.replace(raised, batch_floor=now.batch_floor)

        stored = (await self._chunks.register.update(change)).value
        return stored if stored.chunk_floor == raised.chunk_floor else None

    async def _delete_expired(self, expired: list[Chunk], report: Collected) -> None:
        entries = [entry for chunk in expired for entry in chunk.entries]
        uploaded = [entry for entry in entries if entry.inline is None]
        keys = [self._chunks.batch_key(entry.batch_id) for entry in uploaded]
        gone = await delete_all(self._store, keys, report)
        report.batches_expired += len(entries) - (len(keys) - gone)
        report.bytes_expired += sum(entry.size_bytes for entry in entries)
        report.chunks_expired += await delete_all(
            self._store, [self._chunks.key(chunk.number) for chunk in expired], report
        )

    async def _sweep(self, floor: int, report: Collected) -> None:
        """Delete chunks below the floor that a crash left, or that a stalled writer created.

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

    async def _forget(self, queue: Queue, last: Chunk, report: Collected) -> None:
        """Drop the marks of producers that were silent for long and have nothing kept.

        Both clocks have to agree that it was long: this one's, and that of the latest record.
        """
        horizon_ms = min(runtime.wall_ms(), last.max_ms_through) - limits.PRODUCER_EXPIRY_MS
        names = await self._next_shards()
        for name in names:
            register = shard_register(self._store, self._prefix, name)
            before = (await register.read()).value
            after = _without_silent(before, queue.chunk_floor, horizon_ms)
            if after.dropped == before.dropped:
                continue

            def change(shard: Shard | None) -> Shard:
                return _without_silent(shard or Shard(), queue.chunk_floor, horizon_ms)

            dropped = (await register.update(change)).value.dropped - before.dropped
            report.producers_forgotten += dropped

    async def _next_shards(self) -> list[str]:
        """The shards to look at in this pass; the next pass goes on after them."""
        try:
            start = (await self._scanned.read()).value.shard
        except NotFound:
            start = ""
        folder, names = f"{self._prefix}/producers", []
        after = f"{folder}/{start}.json" if start else ""
        async for meta in self._store.list(folder, start_after=after):
            names.append(meta.key.removeprefix(f"{folder}/").removesuffix(".json"))
            if len(names) == limits.GC_SHARDS:
                break
        shard = names[-1] if len(names) == limits.GC_SHARDS else ""
        if shard != start:
            await self._scanned.update(
                lambda scanned: msgspec.structs.replace(scanned or Scanned(), shard=shard)
            )
        return names


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


def _without_silent(shard: Shard, chunk_floor: int, horizon_ms: int) -> Shard:
    def is_silent(producer: Producer) -> bool:
        stands_at = max(producer.anchor, producer.mark.chunk if producer.mark else 0)
        return stands_at < chunk_floor and producer.anchor_ms < horizon_ms

    kept = {name: one for name, one in shard.producers.items() if not is_silent(one)}
    return Shard(kept, shard.dropped + len(shard.producers) - len(kept))
