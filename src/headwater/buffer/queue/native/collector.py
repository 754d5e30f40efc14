"""The collector of a native queue: first the floor, then what lies below it.

A pass has three parts, each bounded:

- *expired*: batches that are acknowledged and past the retention. The marks of producers whose
  chunks go are folded, the floor is raised, the batches are deleted, and once the floor has
  settled, the chunks that lie wholly below it;
- *orphaned*: batches that were uploaded and never appended. The batch floor is raised to them and
  written into the last chunk, and *then* the queue is read once more: whatever was appended before
  is seen, and whoever appends after it sees the floor and is refused;
- *forgotten*: producers that were silent for long, and of which nothing is kept. They are closed
  first: told to stop, by a note in the last chunk. Once that chunk is gone, so is their mark.

Deleting by age alone is the obvious alternative; it deletes what a stalled producer appends, and
is told is accepted, right after.
"""

from __future__ import annotations

import msgspec

from headwater.buffer.queue.contract import Collected, Collector, Retention
from headwater.buffer.queue.native.chunks import Chunks
from headwater.buffer.queue.native.deleting import delete_all
from headwater.buffer.queue.native.expiring import Expiring
from headwater.buffer.queue.native.forgetting import Forgetting
from headwater.buffer.queue.native.orphans import Orphans
from headwater.buffer.queue.native.records import Scanned, consumer_register, read_consumer
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
        now_ms, scanned = await self._store_time()
        settled = await self._settled(queue.chunk_floor, now_ms, scanned)
        consumer = await read_consumer(self._consumer)
        last = await self._chunks.last(max(queue.chunk_floor, consumer.chunk))
        expiring = Expiring(self._chunks, consumer, last, retention, now_ms=now_ms)
        queue = await expiring.collect(queue, report)
        await Orphans(self._chunks, self._scanned, retention).collect(report, full=full)
        forgetting = Forgetting(
            self._chunks, self._scanned, queue, now_ms=now_ms, keep=retention.keep_producers
        )
        await forgetting.collect(report)
        await self._sweep(settled, report)
        if full and settled < queue.chunk_floor:
            await runtime.sleep(await self._settles_in_s((await self._store_time())[0]))
            await self._sweep(queue.chunk_floor, report)
        # In this order none is behind the one before: both only go forward.
        queue = await self._chunks.floors()
        consumer = await read_consumer(self._consumer)
        report.floor_sequence, report.floor_lsn = queue.floor_sequence, queue.floor_lsn
        report.batch_floor = queue.batch_floor
        report.kept_pending = max(0, last.chunk.next_sequence - consumer.sequence)
        report.kept_retained = consumer.sequence - queue.floor_sequence
        return report

    async def _sweep(self, floor: int, report: Collected) -> None:
        """Delete chunks below a settled floor: the expired, and what a stalled writer created.

        Only they, not the batches they name: a stalled writer appended those again.
        """
        keys: list[str] = []
        failed_before = report.failed
        async for meta in self._store.list(f"{self._prefix}/chunks"):
            number = self._chunks.number_of(meta.key)
            if number is None:
                continue
            if number >= floor or len(keys) >= limits.GC_LISTED:
                break
            keys.append(meta.key)
        report.chunks_expired += await delete_all(self._store, keys, report)
        # What could not be deleted would be met again at once: that waits for the next pass.
        all_went = report.failed == failed_before
        report.is_cut_short |= all_went and len(keys) >= limits.GC_LISTED

    async def _store_time(self) -> tuple[int, Scanned]:
        """What time it is by the store's clock: that of an object it just wrote."""

        def count(now: Scanned | None) -> Scanned:
            now = now or Scanned()
            return msgspec.structs.replace(now, passes=now.passes + 1)

        scanned = (await self._scanned.update(count)).value
        return (await self._store.head(self._scanned.key)).modified_ms, scanned

    async def _settled(self, chunk_floor: int, now_ms: int, scanned: Scanned) -> int:
        """Below which number chunks can be deleted: below a floor that has stood for long enough.

        The floor has stood since queue.json was changed. Where it rises in every pass that is
        never long ago; so a floor is noted with the time, and waited for.
        """
        if not await self._settles_in_s(now_ms):
            return chunk_floor
        has_stood = _left_s(scanned.floor_seen_ms, now_ms) == 0.0
        if has_stood and chunk_floor > scanned.floor_chunk:

            def note(now: Scanned | None) -> Scanned:
                now = now or Scanned()
                if now.floor_seen_ms != scanned.floor_seen_ms:
                    return now  # another collector waits for its own
                return msgspec.structs.replace(now, floor_chunk=chunk_floor, floor_seen_ms=now_ms)

            await self._scanned.update(note)
        return scanned.floor_chunk if has_stood else 0

    async def _settles_in_s(self, now_ms: int) -> float:
        """How long until the floor has stood for FLOOR_SETTLE_S, by the store's own clock.

        Until then there are writers that count on finding what was there. Passes may run on
        machines whose clocks disagree; so the store is asked when it last changed queue.json.
        """
        raised = await self._store.head(self._chunks.register.key)
        return _left_s(raised.modified_ms, now_ms)


def _left_s(since_ms: int, now_ms: int) -> float:
    # Stores round to seconds.
    stood_s = (now_ms - since_ms) / 1000 - 1.0
    return max(0.0, limits.FLOOR_SETTLE_S - stood_s)
