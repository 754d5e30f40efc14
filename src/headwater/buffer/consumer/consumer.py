"""The owner of a partition's queue: reads it in order and acknowledges what was processed.

    consumer = await Consumer.open(store, "orders", group="billing")
    while batch := await consumer.next_batch():
        process(batch.records)
        await consumer.ack(batch.sequence)
    await consumer.close()

Always holds:

- one consumer: opening fences every earlier one, and every call that touches the queue says so
  (`Fenced`). A fetch handle never does;
- `next_batch` moves its cursor after the fetch; `next_descriptors` moves it at hand-out, and what
  it handed out is not handed out again by this consumer;
- acknowledgements are in order, of what was handed out, and reach the queue before anything here
  believes them. What was acknowledged and not yet dequeued is delivered again after a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import TypeVar

from headwater.buffer.consumer.collection import Sweeper, check_consumable, retention_of
from headwater.buffer.consumer.consumed_batch import ConsumedBatch
from headwater.buffer.consumer.delivery import Delivery, OnBadBatch
from headwater.buffer.consumer.fetcher import FetchHandle
from headwater.buffer.consumer.metrics import ConsumerMetrics, Lag, lag_of_owner
from headwater.buffer.consumer.ownership import Frontier, ProcessGuard
from headwater.buffer.queue.contract import Descriptor, QueueConsumer, Uncounted
from headwater.buffer.stream import Stream
from headwater.buffer.stream.handle import explain_deletion, open_source
from headwater.buffer.stream.streams import resolve_stream
from headwater.buffer.whole_number import whole_number
from headwater.core.errors import Fenced, HeadwaterError, Refused
from headwater.core.limits import GC_INTERVAL_S, READ_AHEAD_BATCHES, READ_AHEAD_BYTES
from headwater.store import Store

T = TypeVar("T")


class Consumer:
    """One partition's consumer. Reading and acknowledging may go on in two tasks."""

    def __init__(
        self,
        stream: Stream,
        partition: int,
        taker: QueueConsumer,
        delivery: Delivery,
        frontier: Frontier,
        metrics: ConsumerMetrics,
        sweeper: Sweeper | None,
        owned: Store | None = None,
    ) -> None:
        """Use `Consumer.open`. A store that is `owned` is closed with the consumer."""
        self.stream = stream
        self.partition = partition
        self.metrics = metrics
        self._taker = taker
        self._delivery = delivery
        self._frontier = frontier
        self._sweeper = sweeper
        self._owned = owned
        self._process = ProcessGuard("consumer")
        self._reading = asyncio.Lock()
        self._acking = asyncio.Lock()
        self._asking = asyncio.Lock()
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
        """Become the owner of a partition's queue, and fence whoever was.

        A store that is given by its address is closed with the consumer.
        `last_acked_sequence` resumes after that batch and acknowledges through it; without it,
        the queue says where to go on. `Refused` if another group owns the consumer and
        `take_over` is false, if the sequence was never given, or on a stream that nodes consume.
        """
        if last_acked_sequence is not None:
            last_acked_sequence = whole_number("last_acked_sequence", last_acked_sequence)
        async with open_source(source) as (found, owned):
            stream = check_consumable(
                await resolve_stream(found, name, writing=True), partition, group
            )
            taker = stream.taker(partition)
            metrics = ConsumerMetrics(taker.counters)
            # Everything that can be refused is refused before the predecessor is fenced.
            delivery = Delivery(
                stream,
                partition,
                position=None,
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
                    position = await taker.open(
                        group, take_over=take_over, last_acked_sequence=resume_after
                    )
                    resume_after = None
                except Uncounted:
                    if not delivery.dead_letters:
                        raise
                    position = await taker.open(group, take_over=take_over)
        delivery.cursor = position
        frontier = Frontier(position)
        consumer = cls(stream, partition, taker, delivery, frontier, metrics, sweeper, owned)
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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except HeadwaterError as closing:
            if error is None:
                raise
            error.add_note(f"closing the consumer failed as well: {closing}")

    def __repr__(self) -> str:
        return f"<consumer of {self.stream.name}/{self.partition}, epoch {self.epoch}>"

    def __len__(self) -> int:
        """Batches in the queue, as of the last time that it was read or written."""
        return self._taker.pending

    def __bool__(self) -> bool:
        return True  # a consumer of an empty queue is a consumer

    @property
    def epoch(self) -> int:
        """The number that this consumer's opening gave it: no later one has it."""
        return self._taker.epoch

    @property
    def conflict_rate(self) -> float:
        """Of a hundred conditional writes to the queue, how many lost a race.

        Opening and dequeuing write: to `consumer.json`, where another consumer that opens can be
        quicker, or to the published manifest, where every producer can.
        """
        return self._taker.counters.conflict_rate

    @property
    def last_acked_sequence(self) -> int | None:
        """The last batch that was acknowledged."""
        return self._frontier.last_acked

    @property
    def last_handed_out_sequence(self) -> int | None:
        """The last batch that was delivered or handed out."""
        return self._frontier.last_handed_out

    # Reading

    async def next_batch(self) -> ConsumedBatch | None:
        """The next batch; None if there is none at present.

        May be cancelled at any point, and tried again after any error: the same batch is
        delivered then. Batches that follow are fetched meanwhile. `LimitExceeded` while
        UNACKED_MAX_BATCHES wait for their acknowledgement.
        """
        async with self._reading:
            self._check_open()
            self._frontier.room()
            await self._delivery.look(self._after, self._check_fence)
            self._count_queue()
            async with explain_deletion(self.stream):
                batch = await self._delivery.next_batch()
            if batch is not None:
                self._hand_out([batch.descriptor])
            return batch

    async def next_descriptors(self, max_count: int) -> list[Descriptor]:
        """Up to so many descriptors of the batches that follow; none if there are none.

        They are the caller's from here on: to be fetched by `fetch_handle()`, in any order and
        place, and acknowledged. Lost ones are handed out again only after the consumer was
        opened again.
        """
        if whole_number("max_count", max_count) < 0:
            raise Refused(f"{max_count} descriptors: ask for none or more")
        async with self._reading:
            self._check_open()
            if not max_count:
                return []
            most = min(max_count, self._frontier.room())
            found = await self._after(self._delivery.cursor, most)
            self._count_queue()
            self._delivery.hand_out(found)
            self._hand_out(found)
            return found

    def fetch_handle(self) -> FetchHandle:
        """What fetches batches by their descriptors, in any task, thread or process."""
        return self._delivery.handle

    async def fetch_descriptor(self, descriptor: Descriptor) -> ConsumedBatch:
        """Fetch one batch by its descriptor."""
        return await self._delivery.handle.fetch(descriptor)

    # Acknowledging

    async def ack(self, sequence: int) -> None:
        """Acknowledge the batch that follows the last one acknowledged.

        The queue learns of it at every ACKS_PER_DEQUEUE-th, at `flush` and at `close`. After an
        error nothing was acknowledged here, and the same acknowledgement can be tried again.
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
        """Acknowledge every batch through this one, in the queue first."""
        sequence = whole_number("the sequence to acknowledge", sequence)
        async with self._acking:
            self._check_open()
            self._frontier.check_through(sequence)
            await self._dequeue(sequence)

    async def flush(self) -> None:
        """Let the queue know of everything acknowledged."""
        async with self._acking:
            self._check_open()
            await self._flush()

    async def lag(self) -> Lag:
        """What is not acknowledged, looked up in the queue."""
        self._check_open()
        async with explain_deletion(self.stream):
            return await lag_of_owner(
                self.stream.looker(self.partition),
                undequeued=self._frontier.undequeued,
                oldest=self._frontier.oldest_unacked,
            )

    async def close(self) -> None:
        """Flush, and stop reading ahead and collecting garbage. Closing twice is closing once.

        An error (`Fenced`, for one) says that the last acknowledgements did not reach the
        queue; the consumer is closed all the same.
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
        await self._ask(lambda: self._taker.dequeue(sequence))
        self._advance(sequence)
        self._frontier.settle()

    def _advance(self, sequence: int) -> None:
        self.metrics.acks += self._frontier.advance(sequence)
        self._count_waiting()

    def _hand_out(self, descriptors: list[Descriptor]) -> None:
        self._frontier.hand_out(descriptors)
        self._count_waiting()

    # Asking the queue

    async def _after(self, sequence: int | None, limit: int) -> list[Descriptor]:
        while True:
            try:
                return await self._ask(lambda: self._taker.after(sequence, limit))
            except Uncounted as error:
                if not self._delivery.dead_letters:
                    raise
                await self._give_up(error)

    async def _resume_after(self, sequence: int) -> None:
        """Acknowledge through a batch though some before it cannot be counted."""
        while True:
            try:
                await self._ask(lambda: self._taker.dequeue(sequence))
                break
            except Uncounted as error:
                await self._give_up(error)
        self._delivery.cursor, self._frontier = sequence, Frontier(sequence)

    async def _give_up(self, error: Uncounted) -> None:
        """Go on without a batch whose rows nobody can count: on the list first, then for ever."""
        lost = error.descriptor
        await self._check_fence()
        letter = await self._delivery.dead_letter(lost, f"{type(error).__name__}: {error}")
        await self._ask(lambda: self._taker.give_up(lost.sequence, rows=letter.rows))

    async def _check_fence(self) -> None:
        await self._ask(self._taker.check_fence)

    async def _ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """One at a time: reading and acknowledging may go on in two tasks."""
        async with self._asking:
            try:
                async with explain_deletion(self.stream):
                    return await question()
            except Fenced:
                if self._sweeper is not None:
                    self._sweeper.stop()  # the successor collects
                raise

    def _check_open(self) -> None:
        self._process.check()
        if self._is_closed:
            raise Refused(f"this consumer of {self.stream.name!r} is closed: open another")

    def _count_queue(self) -> None:
        self.metrics.queue_length = self._taker.pending

    def _count_waiting(self) -> None:
        oldest = self._frontier.oldest_unacked
        self.metrics.waiting_since_ms = None if oldest is None else oldest.min_ms
