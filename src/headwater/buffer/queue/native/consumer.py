"""The owning consumer of a native queue: it reads in order, and acknowledges under its epoch.

It reads chunks first, then the fence and the floor: a fenced consumer delivers nothing,
and what was read below the floor does not count. Retention may pass what the consumer has not
acknowledged: then it gets `Trimmed`, and its stored position stays below the floor.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headwater.buffer.queue.contract import BatchTrimmed, Counters, Descriptor, QueueConsumer
from headwater.buffer.queue.native.chunk_log import ChunkLog, ConsumerRecord
from headwater.buffer.queue.native.reader import ChunkPosition, ChunkReader, acknowledge_to
from headwater.core import runtime
from headwater.core.errors import Bug, Fenced, Refused, RolledBack
from headwater.store import Store


class NativeConsumer(QueueConsumer):
    """One opening of a partition's owning consumer."""

    def __init__(self, store: Store, prefix: str, queue_id: str) -> None:
        self.counters = Counters()
        self.epoch = 0
        self._chunks = ChunkLog(store, prefix, queue_id)
        self._reading = ChunkReader(self._chunks)
        self._acked = ConsumerRecord()

    async def open(
        self, group: str, *, take_over: bool = False, last_acked_sequence: int | None = None
    ) -> int | None:
        if not group:
            raise Refused("a consumer needs the name of its group")
        self._check_position(last_acked_sequence)
        position = await self._resume_at(last_acked_sequence)

        def change(now: ConsumerRecord | None) -> ConsumerRecord:
            if now is None:
                raise RolledBack(
                    f"{self._chunks.consumer.key} is gone while the consumer is opened"
                )
            if now.group and now.group != group and not take_over:
                raise Refused(
                    f"the group {now.group!r} owns the consumer of {self._chunks.prefix}. Follow "
                    "it, or take the ownership over (take_over), which stops that group."
                )
            if position is not None and position.sequence > now.sequence:
                now = acknowledge_to(now, position)
            return msgspec.structs.replace(
                now, epoch=now.epoch + 1, group=group, opened_ms=runtime.wall_ms()
            )

        self._acked = await self._changed(change)
        self.epoch = self._acked.epoch
        if last_acked_sequence is not None:
            return last_acked_sequence
        return self._acked.sequence - 1 if self._acked.sequence else None

    async def after(self, sequence: int | None, limit: int) -> list[Descriptor]:
        if limit < 1:
            return []
        start = 0 if sequence is None else sequence + 1
        while True:
            try:
                batches = await self._reading.from_sequence(start, limit)
            except (BatchTrimmed, Refused, RolledBack):
                await self.check_fence()  # a successor may have moved on far from here
                raise
            await self.check_fence()
            if not batches or not await self._chunks.is_dead(self._reading.lowest_chunk):
                return batches
            self._reading.reset()

    async def dequeue(self, sequence: int) -> None:
        if sequence < self._acked.sequence:
            await self.check_fence()
            return
        try:
            position = await self._position_after(sequence)
        except BatchTrimmed:
            # It was processed, and deleted with more that was not. The stored position stays
            # where it is: the consumer, or its successor, gets `Trimmed` for the rest.
            await self.check_fence()
            return
        except (Refused, RolledBack):
            await self.check_fence()
            raise

        def change(now: ConsumerRecord | None) -> ConsumerRecord:
            owned = self._owned(now)
            return owned if position.sequence <= owned.sequence else acknowledge_to(owned, position)

        self._acked = await self._changed(change)

    async def _changed(
        self, change: Callable[[ConsumerRecord | None], ConsumerRecord]
    ) -> ConsumerRecord:
        try:
            return (await self._chunks.consumer.update(change)).value
        finally:
            self.counters.writes = self._chunks.consumer.writes
            self.counters.conflicts = self._chunks.consumer.conflicts

    async def check_fence(self) -> None:
        self._owned(await self._chunks.read_consumer())

    @property
    def pending(self) -> int:
        return max(0, self._reading.end_sequence - self._acked.sequence)

    def _owned(self, now: ConsumerRecord | None) -> ConsumerRecord:
        if not self.epoch:
            raise Bug("the consumer was not opened")
        if now is None or now.epoch < self.epoch:
            raise RolledBack(
                f"the consumer of {self._chunks.prefix} went back before epoch {self.epoch}"
            )
        if now.epoch != self.epoch:
            raise Fenced(
                f"a later consumer (epoch {now.epoch}, group {now.group!r}) took over "
                f"{self._chunks.prefix} from epoch {self.epoch}"
            )
        return now

    async def _resume_at(self, last_acked: int | None) -> ChunkPosition | None:
        """Where the last acknowledged batch ends; refuses a queue that is behind its consumer."""
        while True:
            try:
                return await self._find_position(last_acked)
            except BatchTrimmed as trimmed:
                # Unless what follows it is gone: it was acknowledged and deleted meanwhile.
                if last_acked is None or last_acked + 1 < trimmed.floor_sequence:
                    raise

    async def _find_position(self, last_acked: int | None) -> ChunkPosition | None:
        queue = await self._chunks.floors()
        consumer = await self._chunks.read_consumer()
        last = (await self._chunks.last_alive(max(consumer.chunk, queue.chunk_floor))).chunk
        self._reading.end_sequence = last.next_sequence
        self._chunks.check_end(consumer, last)
        if last_acked is None:
            is_first = not consumer.group and consumer.sequence < queue.floor_sequence
            # The first consumer begins at the oldest record.
            return await self._reading.position_before(queue.floor_sequence) if is_first else None
        if last_acked >= last.next_sequence:
            raise Refused(
                f"cannot resume after batch {last_acked} of {self._chunks.prefix}: there are only "
                f"{last.next_sequence}. Is it another stream's position, or was the queue replaced?"
            )
        if last_acked < consumer.sequence:
            await self._reading.locate(last_acked + 1)
            return None
        return await self._position_after(last_acked)

    async def _position_after(self, sequence: int) -> ChunkPosition:
        """The position after this batch, also if only what comes after it is retained."""
        try:
            return await self._reading.position_after(sequence)
        except BatchTrimmed as trimmed:
            if sequence + 1 != trimmed.floor_sequence:
                raise
        return await self._reading.position_before(sequence + 1)
