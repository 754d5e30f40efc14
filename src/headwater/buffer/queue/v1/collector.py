"""Garbage collection of a v1 queue.

The published manifest has no floor: a batch without a reference may be one that a slow producer is
about to append, and that append could not be refused. So the collector does not list batches. It
deletes what Headwater dequeued, which the segments name, once the retention releases it and it is
out of the manifest. A batch that was uploaded and never appended stays.

The manifest has room for one consumer. It is the stream's required group: a pass dequeues what the
group has processed, and opens the manifest's consumer for that, which fences other software. On a
stream without a required group nothing is dequeued here.

    side object: the floor     batches, then their segments     side object: swept up to the floor

After a crash, the next pass deletes what is between swept and floor.

The age of a batch is the time at which the store wrote its object. A producer's clock that is ahead
would retain everything after its batch; one that is late would delete its batch at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec

from headwater.buffer.queue.contract import Collected, Collector, Descriptor
from headwater.buffer.queue.retention import ClockGuard, QueuedBatch, Retention, RetentionRule
from headwater.buffer.queue.v1.consumer import V1Consumer
from headwater.buffer.queue.v1.manifest_object import StoredManifest
from headwater.buffer.queue.v1.reader import V1Queue
from headwater.buffer.queue.v1.side_object import SideState
from headwater.core import limits
from headwater.core.errors import (
    BadKey,
    Denied,
    Fenced,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.store import Register


class ClockReads(msgspec.Struct, frozen=True):
    """The value of the object whose modification time is the store's time."""

    times: int = 0


class V1Collector(Collector):
    """Deletes only dequeued batches that the retention releases."""

    def __init__(self, queue: V1Queue) -> None:
        self._store = queue.store
        self._queue = queue
        self._clock = Register(queue.store, queue.names.clock, ClockReads)
        self._clocks = ClockGuard()
        self._consumer: V1Consumer | None = None

    async def collect(self, retention: Retention, *, full: bool = False) -> Collected:
        done = Collected()
        stored, side = await self._queue.view()
        pending = _locations(stored)
        if side.swept_sequence < side.floor_sequence:
            side = await self._sweep(side, stored, pending, done)
        if side.policy < retention.policy:
            side = await self._queue.side.raise_policy(retention.policy)
        done.is_outdated = side.policy != retention.policy
        if not done.is_outdated and await self._dequeue(retention):
            stored, side = await self._queue.view()
            pending = _locations(stored)
        if side.swept_sequence == side.floor_sequence and not done.is_outdated:
            before, raised = side.floor_sequence, await self._expired(stored, side, retention, done)
            if raised.floor_sequence > before:
                side = await self._queue.side.update(lambda now: _raise_floor(now, raised))
                side = await self._sweep(side, stored, pending, done)
                passed = raised.floor_sequence - before
                done.is_cut_short = passed >= limits.V1_COLLECT_BATCHES and not done.failed
        if full:
            await self._sweep_segments(side.swept_sequence, done)
        done.kept_pending = stored.next_sequence - side.sequence
        done.kept_retained = side.sequence - side.floor_sequence
        done.floor_sequence, done.floor_lsn = side.floor_sequence, side.floor_lsn
        return done

    async def _dequeue(self, retention: Retention) -> bool:
        """Dequeue what the required group has processed; whether there was something."""
        group, below_lsn = retention.required_group, retention.below_lsn
        if group is None or below_lsn is None:
            return False
        async with self._queue.lock:
            (_, side), _ = await self._queue.count(await self._queue.view())
            ledger, end = self._queue.ledger, side.sequence
            if side.lsn < below_lsn:
                # A batch that cannot be counted stays, and what comes after it.
                is_within = below_lsn < ledger.next_lsn
                end = ledger.sequence_at_lsn(below_lsn) if is_within else ledger.end
        if end <= side.sequence:
            return False
        try:
            if self._consumer is None:
                consumer = V1Consumer(self._queue)
                await consumer.open(group, take_over=True)
                self._consumer = consumer
            await self._consumer.dequeue(end - 1)
        except Fenced:
            self._consumer = None  # another collector dequeues; the next pass looks again
            return False
        return True

    async def _expired(
        self, stored: StoredManifest, side: SideState, retention: Retention, done: Collected
    ) -> SideState:
        """The side object with the floor that the retention allows, as far as one pass goes.

        Not above the manifest's first entry: other implementations would find references to
        deleted batches that are acknowledged and not yet dequeued.
        """
        raised = side
        end = min(side.sequence, stored.front, side.floor_sequence + limits.V1_COLLECT_BATCHES)
        if side.floor_sequence >= end:
            return raised
        rule = await self._rule(side, retention, done)
        past = self._queue.acked.each(range(side.floor_sequence, end))
        async with contextlib.aclosing(past) as segments:
            async for batches in segments:
                async for batch, written_ms in self._dated(batches, retention):
                    floor_bytes = raised.floor_bytes + batch.size_bytes
                    queued = QueuedBatch(
                        batch.sequence,
                        batch.last_lsn + 1,
                        written_ms,
                        side.acked_bytes - floor_bytes,
                    )
                    if batch.sequence != raised.floor_sequence or not rule.releases(queued):
                        return raised
                    raised = msgspec.structs.replace(
                        raised,
                        floor_sequence=batch.sequence + 1,
                        floor_lsn=batch.last_lsn + 1,
                        floor_bytes=floor_bytes,
                    )
        return raised

    async def _rule(self, side: SideState, retention: Retention, done: Collected) -> RetentionRule:
        now_ms = 0
        if retention.retention_ms is not None:
            await self._clock.update(lambda reads: ClockReads((reads or ClockReads()).times + 1))
            now_ms = await self._store.now_ms(self._clock.key)
            done.clock_doubt = self._clocks.doubt(now_ms)
        return RetentionRule(
            retention, now_ms=now_ms, acked_sequence=side.sequence, clock_doubt=done.clock_doubt
        )

    async def _dated(
        self, batches: list[Descriptor], retention: Retention
    ) -> AsyncIterator[tuple[Descriptor, int]]:
        """Each batch with the time at which the store wrote it, if the retention needs it."""
        for first in range(0, len(batches), limits.V1_SEGMENTS_AT_ONCE):
            group = batches[first : first + limits.V1_SEGMENTS_AT_ONCE]
            times = [0] * len(group)
            if retention.retention_ms is not None:
                times = await asyncio.gather(*(self._written_ms(batch) for batch in group))
            for dated in zip(group, times, strict=True):
                yield dated

    async def _written_ms(self, batch: Descriptor) -> int:
        """The modification time of the object; 0 if it is gone."""
        try:
            return (await self._store.head(batch.location, foreign=True)).modified_ms
        except (NotFound, BadKey):
            return 0

    async def _sweep(
        self, side: SideState, stored: StoredManifest, pending: set[str], done: Collected
    ) -> SideState:
        """Delete the batches between swept and floor.

        Not above the manifest's first entry as it was read: another collector may have raised the
        floor since, and batches that were pending then would be skipped and count as swept.
        """
        swept = side.swept_sequence
        end = max(swept, min(side.floor_sequence, stored.front))
        async with contextlib.aclosing(self._queue.acked.each(range(swept, end))) as segments:
            async for batches in segments:
                failed_before = done.failed
                for first in range(0, len(batches), limits.V1_SEGMENTS_AT_ONCE):
                    group = batches[first : first + limits.V1_SEGMENTS_AT_ONCE]
                    await asyncio.gather(*(self._delete(batch, pending, done) for batch in group))
                if done.failed > failed_before:
                    break
                swept = max([swept, *(batch.sequence + 1 for batch in batches)])
            else:
                swept = end
        await self._sweep_segments(swept, done)
        return await self._queue.side.update(
            lambda now: msgspec.structs.replace(now, swept_sequence=max(now.swept_sequence, swept))
        )

    async def _sweep_segments(self, before: int, done: Collected) -> None:
        async for key in self._queue.acked.keys_before(before):
            try:
                await self._queue.acked.delete(key)
                done.chunks_expired += 1
            except (Unavailable, OutcomeUnknown, Refused):
                done.failed += 1

    async def _delete(self, batch: Descriptor, pending: set[str], done: Collected) -> None:
        # A batch that was appended twice is deleted with the later entry.
        is_own = self._queue.names.is_own(batch.location)
        if not is_own or batch.location in pending:
            done.batches_left += not is_own and not batch.duplicate
            return
        try:
            await self._store.delete(batch.location)
        except (Unavailable, OutcomeUnknown, Refused) as error:
            done.failed += 1
            done.is_denied |= isinstance(error, Denied)
            return
        if not batch.duplicate:
            done.batches_expired += 1
            done.bytes_expired += batch.size_bytes


def _locations(stored: StoredManifest) -> set[str]:
    """Where the batches are that the manifest still has."""
    entries = stored.manifest.entries
    return {entries[index].location for index in range(len(entries))}


def _raise_floor(now: SideState, raised: SideState) -> SideState:
    if raised.floor_sequence <= now.floor_sequence or raised.policy != now.policy:
        return now
    return msgspec.structs.replace(
        now,
        floor_sequence=raised.floor_sequence,
        floor_lsn=raised.floor_lsn,
        floor_bytes=raised.floor_bytes,
    )
