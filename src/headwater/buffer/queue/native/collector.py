"""The collector of a native queue: it raises the floor, then deletes what is below.

A pass has three parts, each bounded:

- *expired*: batches that the retention releases (`headwater.buffer.queue.retention`). The collector
  updates the marks of the producers whose chunks it will delete, raises the floor, deletes the
  batches, and, once the floor has settled, deletes the chunks that are completely below it. It
  raises the floor only under the policy that the retention was read under. A floor settles by the
  time that collectors observed (`core.lease`); the store's clock, which may be set forward, only
  decides which batches are past the retention. The floor rises batch by batch: a chunk may hold
  hundreds of megabytes of batches, or days of them;
- *orphaned*: batches that were uploaded and never appended. The collector raises the batch floor to
  them, writes it into the last chunk, and *then* reads the queue once more: that shows what was
  appended before, and a producer that appends later sees the floor and is refused;
- *forgotten*: producers that were silent for long, and of which nothing is retained. They are
  closed first, by an opening in the last chunk that fences them. Once that chunk is deleted, so is
  their mark.

The obvious alternative, to delete uploads by their age alone, deletes batches that a stalled
producer appends right after, and has reported as accepted.

The store's clock decides a batch's age, not the producer's: the batch was appended after the last
change of the preceding chunk and no later than that of its own. Within these bounds the producer's
time is used. Otherwise a clock that is a year ahead would keep everything behind it for a year, and
batches of a clock that is late would be deleted as soon as they are appended.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from headwater.buffer.queue.contract import Collected, Collector, Counters
from headwater.buffer.queue.native.chunk import Chunk, ChunkEntry
from headwater.buffer.queue.native.chunk_log import (
    ChunkLog,
    CollectorRecord,
    QueueFloors,
    StoredChunk,
)
from headwater.buffer.queue.native.orphans import OrphanPass, delete_all
from headwater.buffer.queue.native.producers import (
    Mark,
    ProducerShard,
    SilencePass,
    fold_marks,
    last_marks,
    shard_name,
    shard_register,
)
from headwater.buffer.queue.native.tail import DeadNumber, LostRace, QueueTail
from headwater.buffer.queue.retention import ClockGuard, QueuedBatch, Retention, RetentionRule
from headwater.core import limits, runtime
from headwater.core.errors import NotFound
from headwater.core.lease import SettlingClock
from headwater.store import LogFloor, Register, Store, next_settling


class NativeCollector(Collector):
    """Collects one partition's garbage. Several may run at once."""

    def __init__(self, store: Store, prefix: str, queue_id: str) -> None:
        self._store = store
        self._chunks = ChunkLog(store, prefix, queue_id)
        self._scanned = Register(store, f"{prefix}/gc.json", CollectorRecord)
        self._settling = SettlingClock()
        self._clocks = ClockGuard()

    async def collect(self, retention: Retention, *, full: bool = False) -> Collected:
        try:
            return await self._collect(retention, full=full)
        finally:
            await self._chunks.ends.close()

    async def _collect(self, retention: Retention, *, full: bool) -> Collected:
        report = Collected()
        queue = await self._chunks.floors()
        scanned, now_ms = await self._begin(queue.chunk_floor)
        report.clock_doubt = self._clocks.doubt(now_ms)
        consumer = await self._chunks.read_consumer()
        last = await self._chunks.last(max(queue.chunk_floor, consumer.chunk))
        if queue.policy < retention.policy:
            queue = await self._chunks.raise_policy(retention.policy)
        report.is_outdated = queue.policy != retention.policy
        if not report.is_outdated:
            rule = RetentionRule(
                retention,
                now_ms=now_ms,
                acked_sequence=consumer.sequence,
                clock_doubt=report.clock_doubt,
            )
            queue = await RetentionPass(self._chunks, last, rule).collect(queue, report)
        orphans = OrphanPass(self._chunks, self._scanned, retention, now_ms=now_ms)
        await orphans.collect(report, full=full)
        forgetting = SilencePass(
            self._chunks, self._scanned, queue, now_ms=now_ms, keep=retention.keep_producers
        )
        await forgetting.collect(report)
        await self._sweep(scanned.settled_chunk, report)
        if scanned.settled_chunk < queue.chunk_floor:
            if full:
                await runtime.sleep(limits.FLOOR_SETTLE_S)
                await self._note_settling(queue.chunk_floor, settled=queue.chunk_floor)
                await self._sweep(queue.chunk_floor, report)
            else:
                await self._note_settling(queue.chunk_floor)
        # In this order none is behind the one before: both only go forward.
        queue = await self._chunks.floors()
        consumer = await self._chunks.read_consumer()
        report.floor_sequence, report.floor_lsn = queue.floor_sequence, queue.floor_lsn
        report.batch_floor = queue.batch_floor
        report.kept_retained = max(0, last.chunk.next_sequence - queue.floor_sequence)
        if retention.only_acknowledged:
            report.kept_pending = max(0, last.chunk.next_sequence - consumer.sequence)
            report.kept_retained -= report.kept_pending
        return report

    async def _sweep(self, floor: int, report: Collected) -> None:
        """Delete chunks below a settled floor: the expired, and what a stalled writer created.

        Only they, not the batches they name: a stalled writer appended those again.
        """
        keys: list[str] = []
        failed_before = report.failed
        async for number in self._chunks.numbers():
            if number >= floor or len(keys) >= limits.GC_LISTED:
                break
            keys.append(self._chunks.key(number))
        report.chunks_expired += await delete_all(self._store, keys, report)
        # What could not be deleted would be met again at once: that waits for the next pass.
        all_went = report.failed == failed_before
        report.is_cut_short |= all_went and len(keys) >= limits.GC_LISTED

    async def _begin(self, chunk_floor: int) -> tuple[CollectorRecord, int]:
        """Note that a pass begins. The store's time: that of the object it just wrote."""

        def change(now: CollectorRecord | None) -> CollectorRecord:
            now = self._settled(now or CollectorRecord(), chunk_floor)
            return msgspec.structs.replace(now, passes=now.passes + 1)

        scanned = (await self._scanned.update(change)).value
        self._settling.see(scanned.settling)
        return scanned, await self._store.now_ms(self._scanned.key)

    async def _note_settling(self, chunk_floor: int, *, settled: int = 0) -> None:
        """Add the time that the pass took, or begin to wait for the floor that it raised.

        The process may end here; the next collector goes on from what is written.
        """

        def change(now: CollectorRecord | None) -> CollectorRecord:
            now = now or CollectorRecord()
            now = msgspec.structs.replace(now, settled_chunk=max(now.settled_chunk, settled))
            return self._settled(now, chunk_floor)

        self._settling.see((await self._scanned.update(change)).value.settling)

    def _settled(self, now: CollectorRecord, chunk_floor: int) -> CollectorRecord:
        """With the time that was seen to pass, under a floor that was read or raised before."""
        settling, settled = self._settling.count(now.settling), now.settled_chunk
        if settling.is_settled(limits.FLOOR_SETTLE_S):
            settled = max(settled, settling.floor)
        settling = next_settling(settling, LogFloor(chunk_floor, settled))
        return msgspec.structs.replace(now, settled_chunk=settled, settling=settling)


class ExpiredRange(NamedTuple):
    """How far the retention has passed the chunks from the floor on."""

    whole: list[Chunk]
    """Chunks of which nothing is kept."""
    within: Chunk | None
    """The chunk after them, if it was looked at."""
    passed: int
    """How many of its entries are not kept."""
    since_ms: int
    """Nothing in the chunk after `whole` was appended before this."""


class RetentionPass:
    """One pass over what may be released."""

    def __init__(self, chunks: ChunkLog, last: StoredChunk, rule: RetentionRule) -> None:
        self._chunks = chunks
        self._last = last
        self._rule = rule

    async def collect(self, queue: QueueFloors, report: Collected) -> QueueFloors:
        """Raise the floor above what is not needed, and delete it; the floors as they are then."""
        walked = await self._go_on(await self._walk(queue))
        raised = _floors_above(queue, walked)
        if raised == queue:
            return queue
        # What was read counts under a floor read after it; a mark of what never was loses a batch.
        now = await self._chunks.floors()
        if not _is_same_floor(now, queue):
            return now
        await self._fold(walked.whole)
        if not await self._raise_floor(queue, raised):
            return await self._chunks.floors()  # another collector was quicker
        await self._delete_batches(walked, queue, raised, report)
        report.is_cut_short |= walked.within is None
        return raised

    async def _walk(self, queue: QueueFloors) -> ExpiredRange:
        whole: list[Chunk] = []
        since_ms, last = queue.floor_ms, self._last.chunk.number
        while len(whole) < limits.GC_CHUNKS:
            number = queue.chunk_floor + len(whole)
            if number == last:
                passed = self._passed(self._last, since_ms, queue)
                return ExpiredRange(whole, self._last.chunk, passed, since_ms)
            run = await self._chunks.run(number, min(limits.GC_PARALLEL, last - number))
            for stored in run:
                passed, chunk = self._passed(stored, since_ms, queue), stored.chunk
                if passed < len(chunk.entries) or not chunk.closed:
                    return ExpiredRange(whole, chunk, passed, since_ms)
                whole.append(chunk)
                since_ms = stored.modified_ms
            if not run:
                break
        return ExpiredRange(whole, None, 0, since_ms)

    def _passed(self, stored: StoredChunk, since_ms: int, queue: QueueFloors) -> int:
        """How many of the first entries of a chunk are not needed."""
        chunk = stored.chunk
        lsn, through_bytes = chunk.first_lsn, chunk.bytes_before
        for passed, entry in enumerate(chunk.entries):
            lsn += entry.rows
            through_bytes += entry.size_bytes
            batch = QueuedBatch(
                chunk.first_sequence + passed,
                lsn,
                max(since_ms, min(entry.max_ms, stored.modified_ms)),
                self._last.chunk.bytes_through - through_bytes,
            )
            if batch.sequence >= queue.floor_sequence and not self._rule.releases(batch):
                return passed
        return len(chunk.entries)

    async def _go_on(self, walked: ExpiredRange) -> ExpiredRange:
        """The last chunk stays, since the next one is made from it.

        If nothing in it is kept, an empty one is put after it, so that it can go. If what keeps
        it are entries that claim to be later than its last change, it is closed: what is written
        into it would make them younger every time.
        """
        last = self._last.chunk
        if walked.within != last or not last.entries:
            return walked
        is_whole = walked.passed == len(last.entries)
        if not is_whole and not self._is_held_up(walked):
            return walked
        tail = QueueTail(self._chunks, Counters())
        tail.adopt(self._last)
        try:
            if not last.closed:
                await tail.write(last.written(runtime.new_token(), closed=True))
            if is_whole:
                await tail.write(tail.chunk.written(runtime.new_token()))
                closed = await self._chunks.store.head(self._chunks.key(last.number))
                return ExpiredRange([*walked.whole, last], tail.chunk, 0, closed.modified_ms)
        except NotFound:
            pass  # another collector was quicker
        except (LostRace, DeadNumber):
            pass  # a producer appends: the chunk will not be the last for long
        return walked

    def _is_held_up(self, walked: ExpiredRange) -> bool:
        last = self._last.chunk
        end_lsn = last.first_lsn + sum(one.rows for one in last.entries[: walked.passed + 1])
        if last.closed or self._rule.is_held(last.first_sequence + walked.passed, end_lsn):
            return False
        ahead = last.entries[walked.passed].max_ms > self._last.modified_ms
        return ahead and self._rule.is_past(walked.since_ms, end_lsn)

    async def _fold(self, expired: list[Chunk]) -> None:
        shards: dict[str, dict[str, Mark]] = {}
        for chunk in expired:
            for producer, mark in last_marks(chunk).items():
                shards.setdefault(shard_name(producer), {})[producer] = mark
        for name, marks in shards.items():
            await self._fold_shard(name, marks)

    async def _fold_shard(self, name: str, marks: dict[str, Mark]) -> None:
        register = shard_register(self._chunks.store, self._chunks.prefix, name)
        await register.update(lambda shard: fold_marks(shard or ProducerShard(), marks))

    async def _raise_floor(self, before: QueueFloors, raised: QueueFloors) -> bool:
        """Whether the floors were raised: not if they or the policy moved since `before` was read.

        That they did not move shows that every chunk read since was real.
        """

        def change(now: QueueFloors | None) -> QueueFloors:
            if now is None:
                raise self._chunks.missing_queue()
            if not _is_same_floor(now, before):
                return now
            return msgspec.structs.replace(raised, batch_floor=now.batch_floor)

        stored = (await self._chunks.register.update(change)).value
        return _is_same_floor(stored, raised)

    async def _delete_batches(
        self, walked: ExpiredRange, before: QueueFloors, raised: QueueFloors, report: Collected
    ) -> None:
        """Delete what the floor passed; what was below it before is left to the full pass."""
        chunks = walked.whole if walked.within is None else [*walked.whole, walked.within]
        entries: list[ChunkEntry] = []
        for chunk in chunks:
            first = max(0, before.floor_sequence - chunk.first_sequence)
            entries += chunk.entries[first : max(0, raised.floor_sequence - chunk.first_sequence)]
        uploaded = [entry for entry in entries if entry.inline is None]
        keys = [self._chunks.batch_key(entry.batch_id) for entry in uploaded]
        gone = await delete_all(self._chunks.store, keys, report)
        report.batches_expired += len(entries) - (len(keys) - gone)
        report.bytes_expired += sum(entry.size_bytes for entry in entries)


def _is_same_floor(one: QueueFloors, other: QueueFloors) -> bool:
    """Whether both were raised as far, and decisions for one count for the other."""
    return (one.chunk_floor, one.floor_sequence, one.policy) == (
        other.chunk_floor,
        other.floor_sequence,
        other.policy,
    )


def _floors_above(queue: QueueFloors, walked: ExpiredRange) -> QueueFloors:
    if walked.within is None:
        if not walked.whole:
            return queue
        end = walked.whole[-1]
        number, sequence, lsn = end.number + 1, end.next_sequence, end.next_lsn
    else:
        chunk, entries = walked.within, walked.within.entries[: walked.passed]
        number, sequence = chunk.number, chunk.first_sequence + walked.passed
        lsn = chunk.first_lsn + sum(entry.rows for entry in entries)
    return msgspec.structs.replace(
        queue,
        chunk_floor=number,
        floor_sequence=sequence,
        floor_lsn=lsn,
        floor_ms=walked.since_ms if number > queue.chunk_floor else queue.floor_ms,
    )
