"""A queue in memory that does what the contract says and what it is told, over a real store.

    queue = FakeQueue()
    await queue.add([b"a", b"b"])
    queue.fail("dequeue", Unavailable("later"))

The next dequeue then fails, and the one after it works. `queue.asked` names every call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from headwater.buffer.batch import Batch, Call, Calls, encode_parts
from headwater.buffer.queue.contract import (
    Collected,
    Collector,
    Counters,
    Descriptor,
    QueueConsumer,
    QueuePosition,
    QueueReader,
    QueueState,
    TimeBy,
    Uncounted,
    batch_trimmed,
)
from headwater.buffer.queue.retention import Retention
from headwater.buffer.records import from_values
from headwater.buffer.stream import Stream
from headwater.buffer.stream.config import ConsumerKind, StreamConfig
from headwater.core import runtime
from headwater.core.errors import Fenced, Refused
from headwater.store import MemoryBackend, Store
from headwater.store.backend import Backend
from headwater.store.objects import ByteRange, Object

ID = "6f1b2c3d-0000-4000-8000-000000000001"


class FakeQueue:
    """The state that all doors share."""

    def __init__(self, backend: Backend | None = None) -> None:
        self.store = Store(backend or MemoryBackend())
        self.entries: list[Descriptor] = []
        self.epoch = 0
        self.group = ""
        self.acked = 0
        self.floor = 0
        self.uncounted: set[int] = set()
        self.asked: list[str] = []
        self._errors: dict[str, deque[Exception]] = {}

    def fail(self, call: str, *errors: Exception) -> None:
        """The next calls of this kind raise these, one after the other."""
        self._errors.setdefault(call, deque()).extend(errors)

    async def ask(self, call: str) -> None:
        """Every call passes here, and takes a moment."""
        self.asked.append(call)
        await runtime.sleep(0.001)
        errors = self._errors.get(call)
        if errors:
            raise errors.popleft()

    @property
    def floor_position(self) -> QueuePosition:
        return QueuePosition(self.floor, self.lsn_at(self.floor))

    @property
    def next_lsn(self) -> int:
        return self.entries[-1].last_lsn + 1 if self.entries else 1

    def lsn_at(self, sequence: int) -> int:
        return self.entries[sequence].first_lsn if sequence < len(self.entries) else self.next_lsn

    async def add(
        self,
        values: Sequence[bytes | None] = (b"data1", b"data2"),
        *,
        inline: bool = False,
        metadata: bytes | None = None,
        at_ms: int | None = None,
        batch: Batch | None = None,
    ) -> Descriptor:
        """Upload a batch and append it."""
        time_ms = runtime.wall_ms() if at_ms is None else at_ms
        if batch is None:
            calls = [Call(0, time_ms, metadata)] if values else []
            batch = Batch(runtime.new_ulid(), from_values(list(values)), Calls.of(calls))
        data = encode_parts(batch).together()
        descriptor = Descriptor(
            sequence=len(self.entries),
            location=f"batches/{batch.batch_id}",
            first_lsn=self.next_lsn,
            rows=batch.records.num_rows,
            size_bytes=len(data),
            **batch.times()._asdict(),
            batch_id=batch.batch_id,
            producer="p",
            producer_sequence=len(self.entries) + 1,
            inline=bytes(data) if inline else None,
        )
        if not inline:
            await self.store.put(descriptor.location, data)
        self.entries.append(descriptor)
        return descriptor

    async def add_many(self, count: int) -> list[Descriptor]:
        """Append so many batches of two records."""
        return [await self.add() for _ in range(count)]

    def stream(self, *, consumer: ConsumerKind = "query", partitions: int = 1) -> FakeStream:
        """A stream whose only queue this is."""
        return FakeStream(self, consumer, partitions)

    def slice_after(self, sequence: int | None, limit: int) -> list[Descriptor]:
        first = 0 if sequence is None else sequence + 1
        found: list[Descriptor] = []
        for descriptor in self.entries[first : first + limit]:
            if descriptor.sequence in self.uncounted:
                if not found:
                    lost = Descriptor(descriptor.sequence, descriptor.location, 1, 0, 0, 0, 0)
                    raise Uncounted("its rows cannot be told", descriptor=lost)
                break
            found.append(descriptor)
        return found


class KeyFaults(MemoryBackend):
    """A memory store in which reading chosen keys fails, as often as there are errors for it."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[str, list[Exception]] = {}

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        if self.errors.get(key):
            raise self.errors[key].pop(0)
        return await super().get(key, byte_range)


class FakeTaker(QueueConsumer):
    def __init__(self, queue: FakeQueue) -> None:
        self.queue = queue
        self.counters = Counters()
        self.epoch = 0
        self._pending = 0

    async def open(
        self, group: str, *, take_over: bool = False, last_acked_sequence: int | None = None
    ) -> int | None:
        await self.queue.ask("open")
        queue = self.queue
        if queue.group not in ("", group) and not take_over:
            raise Refused(f"{queue.group!r} owns the consumer")
        if last_acked_sequence is not None and last_acked_sequence >= len(queue.entries):
            raise Refused(f"batch {last_acked_sequence} was never appended")
        queue.epoch += 1
        queue.group, self.epoch = group, queue.epoch
        if last_acked_sequence is not None:
            queue.acked = max(queue.acked, last_acked_sequence + 1)
        self._see()
        if last_acked_sequence is not None:
            return last_acked_sequence
        return queue.acked - 1 if queue.acked else None

    async def after(self, sequence: int | None, limit: int) -> list[Descriptor]:
        await self.queue.ask("after")
        found = self.queue.slice_after(sequence, limit)
        self._owned()
        self._see()
        return found

    async def dequeue(self, sequence: int) -> None:
        await self.queue.ask("dequeue")
        self._owned()
        self.counters.writes += 1
        self.queue.acked = max(self.queue.acked, sequence + 1)
        self._see()

    async def check_fence(self) -> None:
        await self.queue.ask("check_fence")
        self._owned()

    async def give_up(self, sequence: int, *, rows: int = 0) -> None:
        await self.queue.ask("give_up")
        self._owned()
        self.queue.uncounted.discard(sequence)
        old = self.queue.entries[sequence]
        self.queue.entries[sequence] = Descriptor(
            sequence, old.location, old.first_lsn, rows, 0, 0, 0, format="v1"
        )

    @property
    def pending(self) -> int:
        return self._pending

    def _owned(self) -> None:
        if self.queue.epoch != self.epoch:
            raise Fenced(f"epoch {self.queue.epoch} took over from {self.epoch}")

    def _see(self) -> None:
        self._pending = len(self.queue.entries) - self.queue.acked


class FakeLooker(QueueReader):
    def __init__(self, queue: FakeQueue) -> None:
        self.queue = queue

    async def state(self) -> QueueState:
        await self.queue.ask("state")
        queue = self.queue
        pending = queue.entries[queue.acked :]
        return QueueState(
            epoch=queue.epoch,
            group=queue.group,
            floor_sequence=queue.floor,
            floor_lsn=queue.lsn_at(queue.floor),
            acked_sequence=queue.acked,
            acked_lsn=queue.lsn_at(queue.acked),
            next_sequence=len(queue.entries),
            next_lsn=queue.next_lsn,
            pending_bytes=sum(d.size_bytes for d in pending),
            oldest_pending_ms=pending[0].min_ms if pending else None,
        )

    async def floor(self) -> QueuePosition:
        await self.queue.ask("floor")
        return self.queue.floor_position

    async def after(self, sequence: int | None, limit: int) -> list[Descriptor]:
        await self.queue.ask("look_after")
        if sequence is None:
            sequence = self.queue.floor - 1
        if sequence + 1 < self.queue.floor:
            raise batch_trimmed(f"batch {sequence + 1}", self.queue.floor_position)
        return self.queue.slice_after(sequence, limit)

    async def sequence_at_lsn(self, lsn: int) -> int | None:
        await self.queue.ask("sequence_at_lsn")
        if lsn < self.queue.lsn_at(self.queue.floor):
            raise batch_trimmed(f"LSN {lsn}", self.queue.floor_position)
        for descriptor in self.queue.entries:
            if descriptor.first_lsn <= lsn <= descriptor.last_lsn:
                return descriptor.sequence
        return None

    async def batch_at_time(self, time_us: int, by: TimeBy) -> Descriptor | None:
        await self.queue.ask("batch_at_time")
        for descriptor in self.queue.entries[self.queue.floor :]:
            if descriptor.rows and descriptor.range_us(by)[1] >= time_us:
                return descriptor
        return None


class FakeCollector(Collector):
    def __init__(self, queue: FakeQueue) -> None:
        self.queue = queue

    async def collect(self, retention: Retention, *, full: bool = False) -> Collected:
        await self.queue.ask("collect")
        return Collected(batches_expired=2, batches_orphaned=1, chunks_expired=1, failed=3)


class FakeStream(Stream):
    """A stream that exists in no register."""

    def __init__(self, queue: FakeQueue, consumer: ConsumerKind, partitions: int) -> None:
        config = StreamConfig(
            id=ID, name="orders", created_ms=0, consumer=consumer, partitions=partitions
        )
        super().__init__(queue.store, config)
        self.queue = queue

    async def settled(self) -> Stream:
        return self

    def queue_consumer(self, partition: int) -> QueueConsumer:
        return FakeTaker(self.queue)

    def queue_reader(self, partition: int) -> QueueReader:
        return FakeLooker(self.queue)

    def collector(self, partition: int) -> Collector:
        return FakeCollector(self.queue)
