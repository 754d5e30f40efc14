"""The owner of a partition: reads its batches in order and acknowledges what was processed.

    consumer = await Consumer.open(store, "orders", group="billing")
    while batch := await consumer.next_batch():
        process(batch.records)
        await consumer.ack(batch.sequence)
    await consumer.close()

Always holds:

- there is one consumer: opening fences every earlier one, and each of its calls that touches the
  queue then raises `Fenced`. A fetch handle is not fenced;
- `next_batch` moves the cursor after the fetch; `next_descriptors` moves it when it returns, and
  this consumer does not return the same descriptors again;
- acknowledgements are in order and only of delivered batches, and reach the queue before this
  object counts them. What was acknowledged and not dequeued is delivered again after a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from headwater.buffer.consumer.consumed_batch import ConsumedBatch
from headwater.buffer.consumer.delivery import Delivery, OnBadBatch
from headwater.buffer.consumer.fetcher import FetchHandle
from headwater.buffer.consumer.ownership import (
    Frontier,
    ProcessGuard,
    Sweeper,
    check_consumable,
    retention_of,
)
from headwater.buffer.consumer.progress import ConsumerMetrics, Lag, lag_of_owner
from headwater.buffer.queue.contract import Descriptor, QueueConsumer, Uncounted
from headwater.buffer.stream import Stream
from headwater.buffer.stream.handle import explain_deletion, open_source
from headwater.buffer.stream.streams import resolve_stream
from headwater.core.errors import Fenced, Refused, adding_to
from headwater.core.limits import GC_INTERVAL_S, READ_AHEAD_BATCHES, READ_AHEAD_BYTES
from headwater.core.settings import whole_number
from headwater.store import Store

T = TypeVar("T")


class Consumer:
    """The consumer of one partition. One task may read while another acknowledges."""

    def __init__(
        self,
        stream: Stream,
        partition: int,
        queue_consumer: QueueConsumer,
        delivery: Delivery,
        frontier: Frontier,
        metrics: ConsumerMetrics,
        sweeper: Sweeper | None,
        owned: Store | None = None,
    ) -> None:
        """Use `Consumer.open`. An `owned` store is closed with the consumer."""
        self.stream = stream
        self.partition = partition
        self.metrics = metrics
        self._queue_consumer = queue_consumer
        self._delivery = delivery
        self._frontier = frontier
        self._sweeper = sweeper
        self._owned = owned
        self._process = ProcessGuard("consumer")
        self._reading = asyncio.Lock()
        self._acking = asyncio.Lock()
        self._calling = asyncio.Lock()
        self._closing = asyncio.Lock()
        self._is_closed = False
        self._is_over = False

    @classmethod
    async def open(
        cls,
        source: str | Store | Stream,
        name: str | None = None,
        partition: int = 0,
        group: str = "default",
        *,
        last_acked_sequence: int | None = None,
        take_over: bool = False,
        on_bad_batch: OnBadBatch = "raise",
        read_ahead_bytes: int = READ_AHEAD_BYTES,
        read_ahead_batches: int = READ_AHEAD_BATCHES,
        gc: bool = True,
        gc_interval_s: float = GC_INTERVAL_S,
    ) -> Consumer:
        """Become the owner of a partition, and fence the previous one.

        A store that is given by its address is closed with the consumer. `last_acked_sequence`
        resumes after that batch and acknowledges through it; without it, the consumer resumes at
        the acknowledged position. `Refused` if another group owns the partition and `take_over` is
        false, if no batch has this sequence, or if nodes consume the stream.
        """
        if last_acked_sequence is not None:
            last_acked_sequence = whole_number("last_acked_sequence", last_acked_sequence)
        async with open_source(source) as (found, owned):
            stream = check_consumable(
                await resolve_stream(found, name, writing=True), partition, group
            )
            queue_consumer = stream.queue_consumer(partition)
            metrics = ConsumerMetrics(queue_consumer.counters)
            metrics.register(stream=stream.name, partition=partition, group=group)
            # Checked before the predecessor is fenced.
            delivery = Delivery(
                stream,
                partition,
                on_bad_batch=on_bad_batch,
                read_ahead_bytes=read_ahead_bytes,
                read_ahead_batches=read_ahead_batches,
                metrics=metrics,
            )
            sweeper = None
            if gc:
                collector = stream.collector(partition)
                sweeper = Sweeper(
                    collector, partial(retention_of, stream), metrics, interval_s=gc_interval_s
                )
            async with explain_deletion(stream):
                resume_after = last_acked_sequence
                try:
                    position = await queue_consumer.open(
                        group, take_over=take_over, last_acked_sequence=resume_after
                    )
                    resume_after = None
                except Uncounted:
                    if not delivery.dead_letters:
                        raise
                    position = await queue_consumer.open(group, take_over=take_over)
        delivery.cursor = position
        frontier = Frontier(position)
        consumer = cls(
            stream, partition, queue_consumer, delivery, frontier, metrics, sweeper, owned
        )
        if resume_after is not None:
            try:
                await consumer._resume_after(resume_after)
            except BaseException:
                if owned is not None:
                    await owned.close()
                raise
        if sweeper is not None:
            sweeper.start(consumer)
        return consumer

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, at: object) -> None:
        with adding_to(error, "closing the consumer"):
            await self.close()

    def __repr__(self) -> str:
        return f"<consumer of {self.stream.name}/{self.partition}, epoch {self.epoch}>"

    def __len__(self) -> int:
        """Batches that are not acknowledged, as of the last read or write of the queue."""
        return self._queue_consumer.pending

    def __bool__(self) -> bool:
        return True  # a consumer of an empty queue is a consumer

    @property
    def epoch(self) -> int:
        """The epoch of this consumer. Each opening gets a higher one."""
        return self._queue_consumer.epoch

    @property
    def conflict_rate(self) -> float:
        """Lost races per hundred conditional writes to the queue.

        Opening and dequeuing write to `consumer.json`, where another consumer that opens competes,
        or to the v1 manifest, where every producer does.
        """
        return self._queue_consumer.counters.conflict_rate

    @property
    def last_acked_sequence(self) -> int | None:
        """The last acknowledged batch."""
        return self._frontier.last_acked

    @property
    def last_handed_out_sequence(self) -> int | None:
        """The last batch that was delivered, or whose descriptor was."""
        return self._frontier.last_handed_out

    # Reading

    async def next_batch(self) -> ConsumedBatch | None:
        """The next batch; None if there is none at present.

        After an error or a cancellation, the next call delivers the same batch. The batches after
        it are fetched in the background. `LimitExceeded` while UNACKED_MAX_BATCHES delivered
        batches are not acknowledged.
        """
        async with self._reading:
            self._check_open()
            self._frontier.room()
            await self._delivery.read_more(self._after, self._check_fence)
            self._count_queue()
            async with explain_deletion(self.stream):
                batch = await self._delivery.next_batch()
            if batch is not None:
                self._note_delivered([batch.descriptor])
            return batch

    async def next_descriptors(self, max_count: int) -> list[Descriptor]:
        """Up to `max_count` descriptors of the next batches.

        The caller fetches them (`fetch_handle()`), in any order and process, and acknowledges
        them. They are returned again only after the consumer was opened again.
        """
        whole_number("max_count", max_count, at_least=0)
        async with self._reading:
            self._check_open()
            if not max_count:
                return []
            most = min(max_count, self._frontier.room())
            found = await self._after(self._delivery.cursor, most)
            self._count_queue()
            self._delivery.pass_over(found)
            self._note_delivered(found)
            return found

    def fetch_handle(self) -> FetchHandle:
        """A handle that fetches batches by their descriptors, in any task, thread or process."""
        return self._delivery.handle

    async def fetch_descriptor(self, descriptor: Descriptor) -> ConsumedBatch:
        """Fetch one batch by its descriptor."""
        return await self._delivery.handle.fetch(descriptor)

    # Acknowledging

    async def ack(self, sequence: int) -> None:
        """Acknowledge the batch after the last acknowledged one.

        Every ACKS_PER_DEQUEUE-th acknowledgement, `flush` and `close` write to the queue. After an
        error nothing was acknowledged, and the same call can be repeated.
        """
        sequence = whole_number("the sequence to acknowledge", sequence)
        async with self._acking:
            self._check_open()
            self._frontier.check_next(sequence)
            if self._frontier.is_due:
                await self._dequeue(sequence)
            else:
                self._advance(sequence)

    async def ack_through(self, sequence: int) -> None:
        """Acknowledge every batch through this one, and write that to the queue."""
        sequence = whole_number("the sequence to acknowledge", sequence)
        async with self._acking:
            self._check_open()
            self._frontier.check_through(sequence)
            await self._dequeue(sequence)

    async def flush(self) -> None:
        """Write all acknowledgements to the queue."""
        async with self._acking:
            self._check_open()
            await self._flush()

    async def lag(self) -> Lag:
        """What is not acknowledged, according to the queue."""
        self._check_open()
        async with explain_deletion(self.stream):
            return await lag_of_owner(
                self.stream.queue_reader(self.partition),
                undequeued=self._frontier.undequeued,
                oldest=self._frontier.oldest_unacked,
            )

    async def close(self) -> None:
        """Flush, and stop reading ahead and collecting garbage. May be called twice.

        After an error, such as `Fenced`, the last acknowledgements did not reach the queue; the
        consumer is closed anyway.
        """
        if self._process.is_left:
            return
        self._is_closed = True
        async with self._closing:
            if not self._is_over:
                await self._end()

    async def _end(self) -> None:
        try:
            async with self._acking:
                await self._flush()
        finally:
            self._is_over = True
            if self._sweeper is not None:
                await self._sweeper.close()
            await self._delivery.close()
            if self._owned is not None:
                await self._owned.close()

    async def _flush(self) -> None:
        if self._frontier.undequeued and self._frontier.last_acked is not None:
            await self._dequeue(self._frontier.last_acked)
        else:
            await self._check_fence()

    async def _dequeue(self, sequence: int) -> None:
        await self._call(lambda: self._queue_consumer.dequeue(sequence))
        self._advance(sequence)
        self._frontier.settle()

    def _advance(self, sequence: int) -> None:
        self.metrics.acks += self._frontier.advance(sequence)
        self._count_waiting()

    def _note_delivered(self, descriptors: list[Descriptor]) -> None:
        self._frontier.note_delivered(descriptors)
        self._count_waiting()

    # Calling the queue

    async def _after(self, sequence: int | None, limit: int) -> list[Descriptor]:
        while True:
            try:
                return await self._call(lambda: self._queue_consumer.after(sequence, limit))
            except Uncounted as error:
                if not self._delivery.dead_letters:
                    raise
                await self._give_up(error)

    async def _resume_after(self, sequence: int) -> None:
        """Acknowledge through a batch, giving up those before it that cannot be counted."""
        while True:
            try:
                await self._call(lambda: self._queue_consumer.dequeue(sequence))
                break
            except Uncounted as error:
                await self._give_up(error)
        self._delivery.cursor, self._frontier = sequence, Frontier(sequence)

    async def _give_up(self, error: Uncounted) -> None:
        """Continue without a batch that cannot be counted. Its dead letter is written first."""
        lost = error.descriptor
        await self._check_fence()
        letter = await self._delivery.dead_letter(lost, f"{type(error).__name__}: {error}")
        await self._call(lambda: self._queue_consumer.give_up(lost.sequence, rows=letter.rows))

    async def _check_fence(self) -> None:
        await self._call(self._queue_consumer.check_fence)

    async def _call(self, request: Callable[[], Awaitable[T]]) -> T:
        """Call the queue. One call at a time: two tasks may read and acknowledge."""
        async with self._calling:
            try:
                async with explain_deletion(self.stream):
                    return await request()
            except Fenced:
                if self._sweeper is not None:
                    self._sweeper.stop()  # the successor collects
                raise

    def _check_open(self) -> None:
        self._process.check()
        if self._is_closed:
            raise Refused(f"this consumer of {self.stream.name!r} is closed: open another")

    def _count_queue(self) -> None:
        self.metrics.queue_length = self._queue_consumer.pending

    def _count_waiting(self) -> None:
        oldest = self._frontier.oldest_unacked
        self.metrics.waiting_since_ms = None if oldest is None else oldest.min_ms
