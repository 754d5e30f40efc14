"""Garbage collection of a v1 queue.

The published manifest has no floor: a batch without a reference may be one that a slow producer is
about to append, and that append could not be refused. So the collector does not list batches. It
deletes what Headwater's consumer acknowledged, which the segments name, once it is past the
retention and out of the manifest. A batch that was uploaded and never appended stays.

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

from headwater.buffer.queue.contract import Collected, Collector, Descriptor, Retention
from headwater.buffer.queue.v1.acked import AckedSegments
from headwater.buffer.queue.v1.manifest_object import ManifestObject, StoredManifest, V1Names
from headwater.buffer.queue.v1.side_object import SideObject, SideState, read_view
from headwater.core import limits
from headwater.core.errors import BadKey, NotFound, OutcomeUnknown, Refused, Unavailable
from headwater.store import Register, Store


class ClockReads(msgspec.Struct, frozen=True):
    """The value of the object whose modification time is the store's time."""

    times: int = 0


class V1Collector(Collector):
    """Deletes only acknowledged batches past the retention."""

    def __init__(self, store: Store, prefix: str, queue_id: str, *, lenient: bool = False) -> None:
        names = V1Names(prefix, queue_id)
        self._store = store
        self._names = names
        self._manifest = ManifestObject(store, names.manifest, lenient=lenient)
        self._side = SideObject(store, names, queue_id)
        self._acked = AckedSegments(store, names)
        self._clock = Register(store, names.clock, ClockReads)
        self._now_ms: int | None = None

    async def collect(self, retention: Retention, *, full: bool = False) -> Collected:
        done = Collected()
        self._now_ms = None
        found, side = await read_view(self._manifest, self._side)
        pending = {found.manifest.entries[n].location for n in range(len(found.manifest.entries))}
        if side.swept_sequence < side.floor_sequence:
            side = await self._sweep(side, found, pending, done)
        if side.swept_sequence == side.floor_sequence:
            before, floor = side.floor_sequence, await self._expired(found, side, retention)
            if floor.floor_sequence > side.floor_sequence:
                side = await self._side.update(lambda now: _raised(now, floor))
                side = await self._sweep(side, found, pending, done)
                passed = floor.floor_sequence - before
                done.is_cut_short = passed >= limits.V1_COLLECT_BATCHES and not done.failed
        if full:
            await self._sweep_segments(side.swept_sequence, done)
        done.kept_pending = found.next_sequence - side.sequence
        done.kept_retained = side.sequence - side.floor_sequence
        done.floor_sequence, done.floor_lsn = side.floor_sequence, side.floor_lsn
        return done

    async def _expired(
        self, found: StoredManifest, side: SideState, retention: Retention
    ) -> SideState:
        """The side object with the floor that the retention allows, as far as one pass goes.

        Not above the manifest's first entry: other implementations would find references to
        deleted batches that are acknowledged and not yet dequeued.
        """
        floor = (side.floor_sequence, side.floor_lsn, side.floor_bytes)
        end = min(side.sequence, found.front, side.floor_sequence + limits.V1_COLLECT_BATCHES)
        past = self._acked.each(range(side.floor_sequence, end))
        async with contextlib.aclosing(past) as segments:
            async for batches in segments:
                async for batch, written_ms in self._dated(batches, retention):
                    retained_bytes = side.acked_bytes - floor[2]
                    is_past = await self._is_past(written_ms, retained_bytes, retention)
                    if batch.sequence != floor[0] or not is_past:
                        return _at(side, floor)
                    taken_bytes = floor[2] + batch.size_bytes
                    floor = (batch.sequence + 1, batch.last_lsn + 1, taken_bytes)
        return _at(side, floor)

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

    async def _is_past(self, written_ms: int, retained_bytes: int, retention: Retention) -> bool:
        if retention.retention_bytes is not None and retained_bytes > retention.retention_bytes:
            return True
        if retention.retention_ms is None:
            return False
        if self._now_ms is None:
            self._now_ms = await self._store_time()
        return written_ms + retention.retention_ms <= self._now_ms

    async def _store_time(self) -> int:
        """The store's time: the modification time of an object that it just wrote."""
        await self._clock.update(lambda asked: ClockReads((asked or ClockReads()).times + 1))
        return await self._store.now_ms(self._clock.key)

    async def _sweep(
        self, side: SideState, found: StoredManifest, pending: set[str], done: Collected
    ) -> SideState:
        """Delete the batches between swept and floor.

        Not above the manifest's first entry as it was read: another collector may have raised the
        floor since, and batches that were pending then would be skipped and count as swept.
        """
        swept = side.swept_sequence
        end = max(swept, min(side.floor_sequence, found.front))
        async for batches in self._acked.each(range(swept, end)):
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
        return await self._side.update(
            lambda now: msgspec.structs.replace(now, swept_sequence=max(now.swept_sequence, swept))
        )

    async def _sweep_segments(self, before: int, done: Collected) -> None:
        """Delete the segments whose batches are all gone."""
        async for key in self._acked.keys_before(before):
            try:
                await self._acked.delete(key)
                done.chunks_expired += 1
            except (Unavailable, OutcomeUnknown, Refused):
                done.failed += 1

    async def _delete(self, batch: Descriptor, pending: set[str], done: Collected) -> None:
        """Delete one batch, if it has a name of this queue and is not pending again."""
        # A batch that was appended twice is deleted with the later entry.
        is_own = self._names.is_own(batch.location)
        if not is_own or batch.location in pending:
            done.batches_left += not is_own and not batch.duplicate
            return
        try:
            await self._store.delete(batch.location)
        except (Unavailable, OutcomeUnknown, Refused):
            done.failed += 1
            return
        if not batch.duplicate:
            done.batches_expired += 1
            done.bytes_expired += batch.size_bytes


def _at(side: SideState, floor: tuple[int, int, int]) -> SideState:
    sequence, lsn, floor_bytes = floor
    return msgspec.structs.replace(
        side, floor_sequence=sequence, floor_lsn=lsn, floor_bytes=floor_bytes
    )


def _raised(now: SideState, to: SideState) -> SideState:
    """The current value with the floor of `to`, if that is higher."""
    if to.floor_sequence <= now.floor_sequence:
        return now
    return _at(now, (to.floor_sequence, to.floor_lsn, to.floor_bytes))
