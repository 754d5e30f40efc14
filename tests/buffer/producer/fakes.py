"""A queue in memory that answers as it is told, and a stream that has such queues.

    stream = fake_stream()
    stream.queues[0].next_append(lands_then(OutcomeUnknown("reset")))

The first append is then carried out and its answer is lost. A step gets what would carry the
request out, and decides whether and when. The queue holds on to the contract: it fails a test that
skips or reuses a producer sequence, appends out of order, or changes what it tries again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pyarrow as pa

from headwater.buffer.batch import Batch, decode_batch, encode_parts
from headwater.buffer.compression import Compression
from headwater.buffer.queue.contract import (
    AppendedBatch,
    Appender,
    BelowFloor,
    Counters,
    EncodedBytes,
    NewBatch,
    ProducerState,
)
from headwater.buffer.stream import Stream
from headwater.buffer.stream.config import StreamConfig, check_config
from headwater.buffer.stream.schema import declared_schema, schema_version, taking_in
from headwater.core import runtime
from headwater.core.errors import Fenced
from headwater.store import Store, open_store

Apply = Callable[[], Awaitable[Any]]
Step = Callable[[Apply], Awaitable[Any]]
ID = "6b1c7c0e-27a4-4a56-9d1f-3f1f8a2f6f11"


def fails_after(seconds: float, error: Exception) -> Step:
    """Not carried out, which takes so long."""

    async def step(_: Apply) -> None:
        await runtime.sleep(seconds)
        raise error

    return step


def takes(seconds: float) -> Step:
    """Carried out after so long."""

    async def step(apply: Apply) -> Any:
        await runtime.sleep(seconds)
        return await apply()

    return step


def hangs() -> Step:
    """Never answered."""

    async def step(_: Apply) -> None:
        await asyncio.Event().wait()

    return step


def lands_partly(count: int, error: Exception) -> Step:
    """Only the first batches of the group land; then an error."""

    async def step(apply: Apply) -> None:
        await apply(count)  # type: ignore[call-arg]
        raise error

    return step


class FakeQueue:
    """What one partition holds, and how it answers next."""

    def __init__(self, *, inline_max_bytes: int = 0) -> None:
        self.inline_max_bytes = inline_max_bytes
        self.objects: dict[str, bytes] = {}
        self.entries: list[NewBatch] = []
        self.rows = 0
        self.landed: dict[str, dict[int, AppendedBatch]] = {}
        """By producer id and producer sequence."""
        self.floor = ""
        self.producer = ""
        self.resumed = ProducerState(0, None)
        self.groups: list[int] = []
        """The size of every append that arrived."""
        self.uploads: list[str] = []
        self.uploading = 0
        self.uploading_most = 0
        self.opened = 0
        self.closed = 0
        self.closed_for_good = 0
        self._steps: dict[str, deque[Step]] = {"append": deque(), "upload": deque()}
        self.always: dict[str, Step | None] = {"append": None, "upload": None}

    def next_append(self, *steps: Step) -> None:
        """What is done with the next appends."""
        self._steps["append"].extend(steps)

    def next_upload(self, *steps: Step) -> None:
        """What is done with the next uploads."""
        self._steps["upload"].extend(steps)

    async def do(self, operation: str, apply: Apply) -> Any:
        steps = self._steps[operation]
        step = steps.popleft() if steps else self.always[operation]
        return await (step(apply) if step is not None else apply())

    def batches(self) -> list[Batch]:
        """What a consumer would read."""
        return [
            decode_batch(e.inline or self.objects[e.batch_id], expected_id=e.batch_id)
            for e in self.entries
        ]

    def values(self) -> list[bytes | None]:
        """All values, in order."""
        return [v for batch in self.batches() for v in batch.records.column("_value").to_pylist()]


class FakeAppender(Appender):
    """One producer's door to a FakeQueue."""

    takes_deferred = True

    def __init__(self, queue: FakeQueue, producer: str) -> None:
        self.counters = Counters()
        self.inline_max_bytes = queue.inline_max_bytes
        self._queue = queue
        self._producer = producer
        self._attempted: list[int] = []
        self._appending = False

    async def open(self) -> ProducerState:
        self._queue.producer = self._producer
        self._queue.opened += 1
        return self._queue.resumed

    def encode(self, batch: Batch, compression: Compression) -> EncodedBytes:
        return encode_parts(batch, compression)

    async def upload(self, batch_id: str, data: EncodedBytes) -> None:
        queue = self._queue

        async def apply() -> None:
            queue.objects[batch_id] = bytes(data)

        queue.uploads.append(batch_id)
        queue.uploading += 1
        queue.uploading_most = max(queue.uploading_most, queue.uploading)
        try:
            await queue.do("upload", apply)
        finally:
            queue.uploading -= 1

    async def append(self, batches: Sequence[NewBatch]) -> list[AppendedBatch]:
        assert not self._appending, "two appends at once"
        sequences = [batch.producer_sequence for batch in batches]
        assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))
        again = sequences[: len(self._attempted)]
        assert again == self._attempted, f"{sequences} does not begin with {self._attempted}"
        self._attempted = sequences
        self._queue.groups.append(len(batches))
        self._appending = True
        try:
            placed = await self._queue.do("append", lambda *n: self._apply(batches, *n))
        finally:
            self._appending = False
        self._attempted = []
        assert isinstance(placed, list)
        return placed

    async def _apply(
        self, batches: Sequence[NewBatch], count: int | None = None
    ) -> list[AppendedBatch]:
        queue = self._queue
        if queue.producer != self._producer:
            raise Fenced("a successor took over")
        self.counters.writes += 1
        landed = queue.landed.setdefault(self._producer, {})
        todo = [batch for batch in batches if batch.producer_sequence not in landed]
        if any(batch.batch_id <= queue.floor for batch in todo):
            raise BelowFloor("the collector has passed", floor=queue.floor)
        for batch in todo if count is None else todo[:count]:
            last = max(landed, default=queue.resumed.producer_sequence)
            assert batch.producer_sequence == last + 1, "a producer sequence was skipped"
            data = batch.inline if batch.inline is not None else queue.objects[batch.batch_id]
            assert len(data) == batch.size_bytes
            landed[batch.producer_sequence] = AppendedBatch(len(queue.entries), queue.rows + 1)
            queue.entries.append(batch)
            queue.rows += batch.rows
        return [landed[b.producer_sequence] for b in batches if b.producer_sequence in landed]

    async def close(self, *, for_good: bool = False) -> None:
        self._queue.closed += 1
        self._queue.closed_for_good += for_good


class FakeStream(Stream):
    """A stream whose partitions are FakeQueues."""

    def __init__(self, store: Store, config: StreamConfig, *, inline_max_bytes: int = 0) -> None:
        super().__init__(store, config)
        self.queues = [
            FakeQueue(inline_max_bytes=inline_max_bytes) for _ in range(config.partitions)
        ]

    def appender(self, partition: int, producer_id: str) -> Appender:
        return FakeAppender(self.queues[partition], producer_id)

    async def recording(self, records: pa.Schema, *, is_fresh: bool = False) -> Stream:
        return self.with_config(taking_in(self.config, records, added_ms=0))

    def with_config(self, config: StreamConfig) -> Stream:
        found = FakeStream(self.store, config)
        found.queues = self.queues
        return found


def fake_stream(
    *,
    partitions: int = 1,
    schema: pa.Schema | None = None,
    inline_max_bytes: int = 0,
    **settings: Any,
) -> FakeStream:
    """A stream called `orders`."""
    schemas = [] if schema is None else [schema_version(1, declared_schema(schema), added_ms=0)]
    config = StreamConfig(
        id=ID,
        name="orders",
        created_ms=0,
        partitions=partitions,
        shape=None if schema is None else "typed",
        schemas=schemas,
        **settings,
    )
    return FakeStream(
        open_store("memory://"), check_config(config), inline_max_bytes=inline_max_bytes
    )
