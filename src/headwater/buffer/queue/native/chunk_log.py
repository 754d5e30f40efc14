"""The chunks of a native queue, which are a numbered log, and the registers of the queue.

Always holds: the last chunk is never deleted. A chunk is deleted only once collectors have seen
FLOOR_SETTLE_S pass since the floor passed it, which is why a floor that was read less than
FLOOR_LEASE_S ago still says what counts (`headwater.store.numbered_log`).

The end of a queue is found by a search, and a last chunk that was deleted by hand looks as if it
had never existed. So each writer that creates a chunk records it in `end.json`, which only rises,
and each client reads `end.json` before it searches: an end below it means that the queue went back.
No append waits for this write or fails with it. While many chunks are created, it happens once a
second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from headwater.buffer.queue.contract import BatchTrimmed, Counters, QueuePosition, batch_trimmed
from headwater.buffer.queue.native.chunk import (
    NO_BATCH_FLOOR,
    Chunk,
    decode_chunk,
    encode_chunk,
    first_chunk,
)
from headwater.core import limits, runtime
from headwater.core.errors import Corrupt, HeadwaterError, NotFound, NotSupported, RolledBack
from headwater.core.lease import Lease, SettlingFloor
from headwater.store import LeasedFloor, LogFloor, NumberedLog, Object, Register, Store, Version


class QueueFloors(msgspec.Struct, frozen=True):
    """What is dead in a queue."""

    id: str
    chunk_floor: int = 0
    """Chunks below it may be deleted, and nothing at those numbers counts."""
    floor_sequence: int = 0
    """The oldest retained batch. It may be inside the oldest retained chunk."""
    floor_lsn: int = 1
    batch_floor: str = NO_BATCH_FLOOR
    """Batches at or below it are not appended any more."""
    floor_ms: int = 0
    """By the store's clock: nothing in the oldest retained chunk was appended before this."""
    policy: int = 0
    """The policy of the stream that the queue knows of: no floor is raised under an older one."""

    @property
    def floor(self) -> QueuePosition:
        """Where the oldest retained batch begins."""
        return QueuePosition(self.floor_sequence, self.floor_lsn)


class QueueEnd(msgspec.Struct, frozen=True):
    """A chunk that existed: the queue ends there or beyond."""

    chunk: int = 0
    first_sequence: int = 0
    """Of its first entry, or of the next to come."""
    first_lsn: int = 1


class ConsumerRecord(msgspec.Struct, frozen=True):
    """Who owns the consumer, and how far it came."""

    epoch: int = 0
    group: str = ""
    sequence: int = 0
    """The first one that is not acknowledged."""
    lsn: int = 1
    bytes: int = 0
    """Of all batches acknowledged so far."""
    chunk: int = 0
    """The chunk of the last acknowledged batch; that of the next one, if it was deleted before."""
    opened_ms: int = 0


class CollectorRecord(msgspec.Struct, frozen=True):
    """How far the collector has searched for uploads that were never appended."""

    batch_floor: str = NO_BATCH_FLOOR
    """Up to this id, uploads without an entry were deleted."""
    chunk: int = 0
    """Chunks below it were read."""
    referenced: tuple[str, ...] = ()
    """Ids above `batch_floor` in the chunks that were read."""
    full_ms: int = 0
    """When the last full pass ran."""
    shard: str = ""
    """The last shard of producers that was read."""
    passes: int = 0
    """Counts passes that read the store's time."""
    settled_chunk: int = 0
    """The floor of the chunks has been here for FLOOR_SETTLE_S: what is below may be deleted."""
    settling: SettlingFloor = SettlingFloor()
    """The floor of the chunks that is waited for next."""


# How many chunks are requested at once.
READ_AHEAD: Final = 16
# Some stores allow one write of an object a second, and chunks may be created faster than that.
END_WRITES_APART_S: Final = 1.0


class StoredChunk(NamedTuple):
    """A chunk and the version of the object it was read from."""

    chunk: Chunk
    version: Version
    modified_ms: int = 0
    """When the store wrote it, by the store's clock; 0 for a chunk that was written, not read."""


class ChunkLog(NumberedLog):
    """One queue's chunks and its floors. `QueueTail` appends: it fills the last chunk first."""

    def __init__(self, store: Store, prefix: str, queue_id: str) -> None:
        super().__init__(store, f"{prefix}/chunks", LeasedFloor(limits.FLOOR_LEASE_S))
        self.prefix = prefix
        self.queue_id = queue_id
        self.register = Register(store, f"{prefix}/queue.json", QueueFloors)
        self.consumer = Register(store, f"{prefix}/consumer.json", ConsumerRecord)
        self.ends = EndRecorder(store, prefix)
        self.floor = QueuePosition(0, 1)
        """No batch below it is retained, as of the last read."""

    @property
    def chunk_floor(self) -> int:
        """The highest chunk floor that was read."""
        return self.leased_floor.floor.needed_from

    def batch_key(self, batch_id: str) -> str:
        return f"{self.prefix}/batches/{batch_id}"

    def missing(self, number: int) -> RolledBack:
        """The error for a chunk that must exist and does not, or that lost entries."""
        return RolledBack(
            f"chunk {number} of {self.prefix}, or what was in it, is gone though Headwater did not "
            f"delete it: the queue went back. Restore {self.key(number)} from a backup, and let no "
            "producer write before."
        )

    def missing_queue(self) -> RolledBack:
        """The error for a queue that is gone: it is created before its stream is announced."""
        return RolledBack(
            f"there is no queue at {self.prefix}, though its stream has one: it was deleted or "
            "moved. Restore the folder from a backup; if that cannot be, make another stream, for "
            "in an empty queue sequences and LSNs begin again."
        )

    async def read_consumer(self) -> ConsumerRecord:
        """The consumer's record, which exists from the queue's creation on."""
        consumer = await self.consumer.find()
        if consumer is None:
            raise RolledBack(
                f"{self.consumer.key} is gone: what was acknowledged is not known. Restore it from "
                "a backup."
            )
        return consumer

    async def floors(self) -> QueueFloors:
        requested = Lease()
        queue = await self.register.find()
        if queue is None:
            raise self.missing_queue()
        self.check_id(queue)
        self.leased_floor.learn(LogFloor.at(queue.chunk_floor), requested)
        self.floor = max(self.floor, queue.floor)
        return queue

    async def raise_policy(self, policy: int) -> QueueFloors:
        """Let no floor be raised under a policy before this one."""

        def change(now: QueueFloors | None) -> QueueFloors:
            if now is None:
                raise self.missing_queue()
            self.check_id(now)
            return msgspec.structs.replace(now, policy=max(now.policy, policy))

        return (await self.register.update(change)).value

    async def read_floor(self) -> LogFloor:
        """The chunk floor. Below it nothing counts, though objects stay until it has settled."""
        return LogFloor.at((await self.floors()).chunk_floor)

    def check_end(self, consumer: ConsumerRecord, last: Chunk) -> None:
        """`RolledBack` if the queue ends before what the consumer acknowledged."""
        if last.next_sequence < consumer.sequence:
            raise RolledBack(
                f"{self.prefix}: {consumer.sequence} batches are acknowledged and there are only "
                f"{last.next_sequence}: the queue went back"
            )

    def check_id(self, queue: QueueFloors) -> None:
        """`Corrupt` if this is the record of another queue."""
        if queue.id != self.queue_id:
            raise Corrupt(f"{self.prefix} holds queue {queue.id}, not {self.queue_id}")

    def grown(self, number: int, *, met: Lease, began: Lease) -> None:
        """A write that began at this time was added to an open chunk, first met then.

        If no chunk can have been deleted since the floor was last known, this was the real one and
        not one that a stalled writer left there. It was open, and the floor passes closed chunks
        alone: so at that moment it had not passed this one, as if it had been read then.

        A chunk may also have been created after its whole stream was deleted, which only queue.json
        shows. So one read of the floor after the chunk was met comes first, and one now and then.
        """
        read_at = self.leased_floor.read_at
        if read_at is None or read_at.at_s <= met.at_s:
            return
        if read_at.is_within(limits.FLOOR_LOOK_S) and self.leased_floor.covers(number):
            self.leased_floor.learn_alive(number, began)

    def decode(self, number: int, stored: Object) -> StoredChunk:
        try:
            chunk = decode_chunk(stored.data, queue_id=self.queue_id, number=number)
        except (Corrupt, NotSupported) as error:
            raise type(error)(f"{self.key(number)}: {error}") from error
        return StoredChunk(chunk, stored.version, stored.meta.modified_ms)

    async def load(self, number: int) -> StoredChunk | None:
        """The chunk with this number, which need not count; None if there is none."""
        stored = await self.get(number)
        return None if stored is None else self.decode(number, stored)

    async def require(self, number: int) -> StoredChunk:
        """A chunk that must exist: `BatchTrimmed` below the floor, `RolledBack` otherwise."""
        stored = await self.load(number)
        if stored is not None:
            return stored
        if number < (await self.floors()).chunk_floor:
            raise self.trimmed(number)
        raise self.missing(number)

    def trimmed(self, number: int) -> BatchTrimmed:
        return batch_trimmed(f"{self.prefix}: chunk {number}", self.floor)

    async def check_alive(self, number: int) -> None:
        """`BatchTrimmed` if what was just read at this number does not count."""
        if await self.is_dead(number):
            await self.floors()
            raise self.trimmed(number)

    async def run(self, first: int, count: int) -> list[StoredChunk]:
        """Chunks from `first` on, until one is missing or open, at most `count`.

        Chunks that are read together are not read at one instant: an open one may have grown and
        been closed before the one after it was read.
        """
        chunks: list[StoredChunk] = []
        while len(chunks) < count:
            start = first + len(chunks)
            numbers = range(start, start + min(READ_AHEAD, count - len(chunks)))
            for stored in await asyncio.gather(*map(self.load, numbers)):
                if stored is None:
                    return chunks
                chunks.append(stored)
                if not stored.chunk.closed:
                    return chunks
        return chunks

    async def last(self, start: int = 0) -> StoredChunk:
        """The last chunk. The search begins at `start`, a chunk that existed once.

        `end.json` is read first: the queue ends there or beyond.
        """
        end = await self._least_end()
        low = max(start, end.chunk)
        while True:
            number = await self.first_free(low + 1, check_beyond=True) - 1
            stored = await self.load(number) if number >= self.chunk_floor else None
            if stored is not None and stored.chunk.first_sequence >= end.first_sequence:
                return stored
            floor = (await self.floors()).chunk_floor
            if floor <= number:
                raise self.missing(number)
            low = max(floor, end.chunk)

    async def last_alive(self, start: int = 0) -> StoredChunk:
        """The last chunk, for readers: a writer learns by writing whether it was the last.

        What `last` returns may lie below a floor that rose meanwhile. Then chunks after it may be
        deleted already, and it may be one that a stalled writer created.
        """
        while True:
            stored = await self.last(start)
            if not await self.is_dead(stored.chunk.number):
                return stored
            start = self.chunk_floor

    async def _least_end(self) -> QueueEnd:
        try:
            return await self.ends.read()
        except NotFound as error:
            await self.floors()  # which raises if the whole queue is gone
            raise RolledBack(
                f"{self.ends.register.key} is gone, which exists from the queue's creation on and "
                "says how far the queue has come. Restore it from a backup."
            ) from error

    async def search(self, low: int, high: int, is_before: Callable[[Chunk], bool]) -> StoredChunk:
        """The last chunk from `low` to `high` for which `is_before` holds; `low` if none.

        `is_before` holds for all chunks up to some number and for none after. `Trimmed` if a
        chunk on the way is deleted.
        """
        best = await self.require(low)
        low += 1
        while low <= high:
            middle = (low + high) // 2
            stored = await self.require(middle)
            if is_before(stored.chunk):
                best, low = stored, middle + 1
            else:
                high = middle - 1
        return best


async def create_native_queue(store: Store, prefix: str, queue_id: str) -> None:
    """Create a queue if there is none. `queue.json` is written last: it shows that all is there."""
    chunks = ChunkLog(store, prefix, queue_id)
    if (queue := await chunks.register.find()) is not None:
        chunks.check_id(queue)
        return
    data = encode_chunk(first_chunk(queue_id))
    # Other creators write the same bytes, and they are recognised.
    await store.put_if_absent(chunks.key(0), data, token=queue_id.encode())
    await chunks.ends.register.update(lambda end: end or QueueEnd())
    await chunks.consumer.update(lambda consumer: consumer or ConsumerRecord())
    await chunks.register.update(lambda queue: queue or QueueFloors(queue_id))


class EndRecorder:
    """Reads `end.json`, and raises it beside other work."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.register = Register(store, f"{prefix}/end.json", QueueEnd)
        self.latest: QueueEnd | None = None
        """The furthest end that this client read or wrote; None before it read."""
        self._wanted: tuple[Chunk, Counters] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._written_s = -END_WRITES_APART_S

    async def read(self) -> QueueEnd:
        """Where the queue ends, or beyond; requested once. `NotFound` if the object is gone."""
        if self.latest is None:
            self.latest = (await self.register.read()).value
        return self.latest

    def note_created(self, chunk: Chunk, counters: Counters) -> None:
        """Note a chunk that was created and counts, beside other work."""
        self._wanted = (chunk, counters)
        if self._writing is None:
            self._writing = runtime.spawn(self._write(), name="headwater-end")

    async def close(self) -> None:
        """Write what is not written yet, without waiting for its time."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait((self._writing,))
        await self._write_wanted()

    async def _write(self) -> None:
        try:
            while self._wanted is not None:
                since_s = runtime.monotonic_s() - self._written_s
                await runtime.sleep(max(0.0, END_WRITES_APART_S - since_s))
                await self._write_wanted()
        finally:
            self._writing = None

    async def _write_wanted(self) -> None:
        if (wanted := self._wanted) is None:
            return
        chunk, counters = wanted
        try:
            await self._raise(chunk)
        except HeadwaterError:
            counters.ends_unwritten += 1
        self._written_s = runtime.monotonic_s()
        if self._wanted is wanted:
            self._wanted = None

    async def _raise(self, chunk: Chunk) -> None:
        end = QueueEnd(chunk.number, chunk.first_sequence, chunk.first_lsn)

        def change(now: QueueEnd | None) -> QueueEnd:
            if now is None:
                raise RolledBack(f"{self.register.key} is gone")
            return end if now.chunk < end.chunk else now

        self.latest = (await self.register.update(change)).value
