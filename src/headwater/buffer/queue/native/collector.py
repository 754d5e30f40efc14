"""The collector of a native queue: it raises the floor, then deletes what is below.

A pass has three parts, each bounded:

- *expired*: batches that are acknowledged and past the retention. The marks of producers whose
  chunks go are folded, the floor is raised, the batches are deleted, and once the floor has
  settled, the chunks that are wholly below it. A floor settles by the time that collectors
  themselves saw pass (`core.lease`): the store's clock, which may be set forward, only decides
  what is past the retention;
- *orphaned*: batches that were uploaded and never appended. The batch floor is raised to them and
  written into the last chunk, and *then* the queue is read once more: it shows what was appended
  before, and a producer that appends after it sees the floor and is refused;
- *forgotten*: producers that were silent for long, and of which nothing is kept. They are closed
  first, by a note in the last chunk that fences them. Once that chunk is gone, so is their mark.

To delete uploads by age alone is the obvious alternative; it deletes what a stalled producer
appends right after, and has reported as accepted.
"""

from __future__ import annotations

import contextlib

import msgspec

from headwater.buffer.queue.contract import BatchTrimmed, Collected, Collector, Retention
from headwater.buffer.queue.native.chunk_log import ChunkLog
from headwater.buffer.queue.native.orphans import OrphanPass
from headwater.buffer.queue.native.producers import SilencePass
from headwater.buffer.queue.native.reading import ChunkPosition, ChunkReader, acknowledge_to
from headwater.buffer.queue.native.registers import (
    CollectorRecord,
    ConsumerRecord,
    consumer_register,
    read_consumer,
)
from headwater.buffer.queue.native.retention import RetentionPass, delete_all
from headwater.core import limits, runtime
from headwater.core.errors import RolledBack
from headwater.core.lease import FloorClock
from headwater.store import LogFloor, Register, Store, next_standing


class NativeCollector(Collector):
    """Collects one partition's garbage. Several may run at once."""

    def __init__(self, store: Store, prefix: str, queue_id: str) -> None:
        self._store = store
        self._prefix = prefix
        self._chunks = ChunkLog(store, prefix, queue_id)
        self._consumer = consumer_register(store, prefix)
        self._scanned = Register(store, f"{prefix}/gc.json", CollectorRecord)
        self._standing = FloorClock()

    async def collect(self, retention: Retention, *, full: bool = False) -> Collected:
        try:
            return await self._collect(retention, full=full)
        finally:
            await self._chunks.ends.close()

    async def _collect(self, retention: Retention, *, full: bool) -> Collected:
        report = Collected()
        queue = await self._chunks.floors()
        scanned, now_ms = await self._begin(queue.chunk_floor)
        consumer = await read_consumer(self._consumer)
        last = await self._chunks.last(max(queue.chunk_floor, consumer.chunk))
        expiring = RetentionPass(self._chunks, consumer, last, retention, now_ms=now_ms)
        queue = await expiring.collect(queue, report)
        orphans = OrphanPass(self._chunks, self._scanned, retention, now_ms=now_ms)
        await orphans.collect(report, full=full)
        forgetting = SilencePass(
            self._chunks, self._scanned, queue, now_ms=now_ms, keep=retention.keep_producers
        )
        await forgetting.collect(report)
        await self._sweep(scanned.settled_chunk, report)
        if scanned.settled_chunk < queue.chunk_floor:
            if full:
                await self._settle(queue.chunk_floor)
                await self._sweep(queue.chunk_floor, report)
            else:
                await self._note_standing(queue.chunk_floor)
        # In this order none is behind the one before: both only go forward.
        queue = await self._chunks.floors()
        consumer = await read_consumer(self._consumer)
        report.floor_sequence, report.floor_lsn = queue.floor_sequence, queue.floor_lsn
        report.batch_floor = queue.batch_floor
        report.kept_pending = max(0, last.chunk.next_sequence - consumer.sequence)
        report.kept_retained = consumer.sequence - queue.floor_sequence
        return report

    async def acknowledge_before(self, sequence: int) -> None:
        position = await self._position_before(sequence)
        if position is None:
            return

        def change(now: ConsumerRecord | None) -> ConsumerRecord:
            if now is None:
                raise RolledBack(f"{self._consumer.key} is gone: restore it from a backup")
            if position.sequence <= now.sequence:
                return now
            return msgspec.structs.replace(
                acknowledge_to(now, position), truncated=position.sequence
            )

        await self._consumer.update(change)

    async def _position_before(self, sequence: int) -> ChunkPosition | None:
        """The place before this batch; None if the floor is there, and so the position, too."""
        while sequence > (await self._chunks.floors()).floor_sequence:
            # What is read counts under a floor read after it, and it may rise meanwhile.
            with contextlib.suppress(BatchTrimmed):
                position = await ChunkReader(self._chunks).position_after(sequence - 1)
                if not await self._chunks.is_dead(position.chunk):
                    return position
        return None

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
        self._standing.see(scanned.settling)
        return scanned, await self._store.now_ms(self._scanned.key)

    async def _note_standing(self, chunk_floor: int) -> None:
        """Add the time that the pass took, or begin to wait for the floor that it raised.

        The process may end here; the next collector goes on from what is written.
        """
        scanned = await self._scanned.update(
            lambda now: self._settled(now or CollectorRecord(), chunk_floor)
        )
        self._standing.see(scanned.value.settling)

    def _settled(self, now: CollectorRecord, chunk_floor: int) -> CollectorRecord:
        """With the time that was seen to pass, under a floor that was read or raised before."""
        settling, settled = self._standing.count(now.settling), now.settled_chunk
        if settling.is_settled(limits.FLOOR_SETTLE_S):
            settled = max(settled, settling.floor)
        settling = next_standing(settling, LogFloor(chunk_floor, settled))
        return msgspec.structs.replace(now, settled_chunk=settled, settling=settling)

    async def _settle(self, chunk_floor: int) -> None:
        """Stay until this floor, which was read or raised before, has settled."""
        await runtime.sleep(limits.FLOOR_SETTLE_S)

        def change(now: CollectorRecord | None) -> CollectorRecord:
            now = now or CollectorRecord()
            settled = max(now.settled_chunk, chunk_floor)
            return self._settled(msgspec.structs.replace(now, settled_chunk=settled), chunk_floor)

        await self._scanned.update(change)
