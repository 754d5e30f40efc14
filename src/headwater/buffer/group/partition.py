"""One partition while this process holds it under one epoch: reading on, and what was processed.

Always holds:

- the position is the one that this epoch's own write of the position register returned, never one
  that was read before: the predecessor acknowledges until that write;
- a batch leaves only by `pop`, which waits for nothing: a caller that is cancelled passes no batch;
- reading is in the background, and an error of it is raised in its turn by the caller's next poll;
- an acknowledgement is written under this epoch, and refused after a later one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from headwater.buffer.consumer.consumed_batch import ConsumedBatch
from headwater.buffer.consumer.delivery import Delivery, OnBadBatch
from headwater.buffer.consumer.progress import ConsumerMetrics
from headwater.buffer.group.record import GroupEpoch
from headwater.buffer.group.register import GroupRegister
from headwater.buffer.queue.contract import QueueReader
from headwater.buffer.stream import Stream
from headwater.buffer.stream.handle import explain_deletion
from headwater.core import runtime
from headwater.core.errors import Fenced, LimitExceeded, RolledBack, Trimmed
from headwater.core.limits import FOLLOW_POLL_BASE_S, UNACKED_MAX_BATCHES
from headwater.core.retry import PollBackoff

_log: Final = logging.getLogger("headwater")


@dataclass(frozen=True)
class ReadingOptions:
    """How the partitions of a group's consumer are read."""

    on_bad_batch: OnBadBatch
    fail_on_data_loss: bool
    read_ahead_bytes: int
    read_ahead_batches: int
    idle_look_s: float
    """The longest wait between two looks at a partition without new records."""

    def delivery(self, stream: Stream, partition: int, metrics: ConsumerMetrics) -> Delivery:
        """What delivers the batches of a partition."""
        return Delivery(
            stream,
            partition,
            on_bad_batch=self.on_bad_batch,
            read_ahead_bytes=self.read_ahead_bytes,
            read_ahead_batches=self.read_ahead_batches,
            metrics=metrics,
        )


class ClaimedPartition:
    """A partition under one epoch. `notify` is called when a poll may find something new."""

    def __init__(
        self,
        stream: Stream,
        register: GroupRegister,
        number: int,
        epoch: GroupEpoch,
        *,
        options: ReadingOptions,
        metrics: ConsumerMetrics,
        notify: Callable[[], None],
    ) -> None:
        self.number = number
        self.epoch = epoch
        self.is_draining = False
        """Whether it is about to be released: nothing more is delivered."""
        self.is_over = False
        """Whether it is this process's no more."""
        self.error: Exception | None = None
        """Why reading stopped; it is tried again once this was raised."""
        self.next_lsn: int | None = None
        """The record that is delivered next; None before the position is known."""
        self.acked_lsn = 0
        """The first record that is not acknowledged."""
        self.committed_lsn = 0
        """The same, as stored."""
        self._stream = stream
        self._register = register
        self._options = options
        self._metrics = metrics
        self._notify = notify
        self._delivered: deque[tuple[int, int]] = deque()
        """Sequence and ingestion time of each batch that was delivered and not acknowledged."""
        self._ready: ConsumedBatch | None = None
        self._reader: QueueReader | None = None
        self._delivery: Delivery | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()
        self._polls = PollBackoff(FOLLOW_POLL_BASE_S, options.idle_look_s)
        self.due_s = runtime.monotonic_s()
        """When to look for more records."""

    def __repr__(self) -> str:
        return f"<partition {self.number} of {self._stream.name} under epoch {self.epoch.number}>"

    # Reading

    def advance(self) -> None:
        """Begin in the background what the next batches need."""
        if self.is_over or self.is_draining or self.error is not None:
            return
        delivery = self._delivery
        wants_more = delivery is None or delivery.wants_more
        if wants_more and runtime.monotonic_s() >= self.due_s:
            self._begin("fill", self._fill)
        # One at a time looks at the next batch: two would both deliver it.
        is_peeking = "peek" in self._tasks
        if delivery is not None and delivery.is_known and self._ready is None and not is_peeking:
            self._ready = delivery.peek_fetched()
            if self._ready is None:
                self._begin("peek", self._peek)

    @property
    def is_ready(self) -> bool:
        """Whether `pop` returns a batch."""
        return self._ready is not None and not self.is_over and not self.is_draining

    @property
    def is_waiting(self) -> bool:
        """Whether nothing is under way, and more is read when it is due."""
        return not (self._tasks or self.is_over or self.is_draining)

    def pop(self) -> ConsumedBatch:
        """The next batch, which is delivered by this call."""
        batch, delivery = self._ready, self._delivery
        assert batch is not None
        assert delivery is not None
        assert self.next_lsn is not None
        if len(self._delivered) >= UNACKED_MAX_BATCHES:
            raise LimitExceeded(
                f"{len(self._delivered):,} delivered batches of partition {self.number} are not "
                f"acknowledged; UNACKED_MAX_BATCHES is {UNACKED_MAX_BATCHES:,}. Acknowledge what "
                "was processed (ack); to read without acknowledging, use headwater.read"
            )
        delivery.pass_next()
        self._ready = None
        batch = batch.from_lsn(self.next_lsn)
        self.next_lsn = batch.last_lsn + 1
        self._delivered.append((batch.sequence, batch.descriptor.min_ms))
        return batch

    def _begin(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        if name not in self._tasks:
            task = runtime.spawn(self._run(work), name=f"{name} {self.number}")
            self._tasks[name] = task
            task.add_done_callback(lambda done: self._end(name, done))

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            async with explain_deletion(self._stream):
                await work()
        except Exception as error:
            self.error = error

    def _end(self, name: str, done: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is done:  # a seek may have begun another one
            del self._tasks[name]
            self._notify()

    async def _fill(self) -> None:
        """Take the position if that is to be done, and read descriptors."""
        lsn = await self.take()
        try:
            if self._delivery is None or self._reader is None:
                await self._locate(lsn)
                return
            before = self._delivery.last_known
            await self._delivery.read_more(self._reader.after, None)
        except Trimmed as error:
            await self._skip_lost(error)
            return
        if self._delivery.last_known != before:
            self._polls.reset()
        else:
            self.due_s = runtime.monotonic_s() + self._polls.next_s()

    async def _peek(self) -> None:
        """Fetch the next batch, or write its dead letter."""
        assert self._delivery is not None
        try:
            self._ready = await self._delivery.peek()
        except Trimmed as error:
            await self._skip_lost(error)

    async def _locate(self, lsn: int) -> None:
        """Begin to read at this record."""
        reader = self._stream.queue_reader(self.number)
        state = await reader.state()
        if lsn > state.next_lsn and state.uncounted_sequence is None:
            raise RolledBack(
                f"{self._where()} is at LSN {lsn}, and the queue ends at {state.next_lsn}: the "
                "queue was restored to an earlier state. If that was meant, reset the group"
            )
        if lsn < state.floor_lsn:
            raise Trimmed(
                f"{self._where()}: LSN {lsn} was deleted by retention before the group processed "
                f"it; the oldest record is {state.floor_lsn}. With fail_on_data_loss=False the "
                "group continues there",
                floor_lsn=state.floor_lsn,
            )
        sequence = None if lsn == state.next_lsn else await reader.sequence_at_lsn(lsn)
        # The sequence before the first is -1 and not None, which would mean the oldest retained.
        self._start_delivery(reader, (state.next_sequence if sequence is None else sequence) - 1)

    def _start_delivery(self, reader: QueueReader, cursor: int) -> None:
        self._reader = reader
        self._delivery = self._options.delivery(self._stream, self.number, self._metrics)
        self._delivery.cursor = cursor

    async def _skip_lost(self, error: Trimmed) -> None:
        """Continue at the oldest retained record; raise if data loss is an error."""
        if self._options.fail_on_data_loss:
            self._stop_reading()
            raise error
        floor = await self._stream.queue_reader(self.number).floor()
        assert self.next_lsn is not None
        _log.warning(
            "%s: retention deleted the records from LSN %s to %s before the group processed them",
            self._where(),
            self.next_lsn,
            floor.lsn - 1,
        )
        self._stop_reading()
        self.next_lsn = max(self.next_lsn, floor.lsn)
        if not self._delivered:  # nothing else will move the position if nothing follows
            self.acked_lsn = self.next_lsn

    def _where(self) -> str:
        return (
            f"group {self._register.group!r} of stream {self._stream.name!r}, partition "
            f"{self.number}"
        )

    async def take(self) -> int:
        """Take the partition under this epoch; returns the LSN that is delivered next."""
        if self.next_lsn is None:
            async with explain_deletion(self._stream):
                position = await self._register.take(self.number, self.epoch)
            if self.next_lsn is None:  # another task may have done the same
                self.next_lsn = self.acked_lsn = self.committed_lsn = position.lsn
        return self.next_lsn

    # Acknowledging

    @property
    def waiting_since_ms(self) -> int | None:
        """The ingestion time of the oldest delivered batch that is not acknowledged."""
        return self._delivered[0][1] if self._delivered else None

    @property
    def is_drained(self) -> bool:
        """Whether no acknowledgement is to be waited for."""
        return self.is_over or not self._delivered

    @property
    def unwritten(self) -> bool:
        """Whether something is acknowledged that is not stored yet."""
        return self.acked_lsn > self.committed_lsn

    def ack(self, batch: ConsumedBatch) -> int:
        """Acknowledge everything delivered through a batch; returns the number of batches."""
        end_lsn = batch.last_lsn + 1
        delivered = self._delivered
        if not delivered or not delivered[0][0] <= batch.sequence <= delivered[-1][0]:
            if end_lsn <= self.acked_lsn:
                return 0
            raise Fenced(
                f"{self._where()}: batch {batch.sequence} (LSNs {batch.first_lsn}–"
                f"{batch.last_lsn}) was delivered under an earlier epoch, or before a seek: it is "
                "delivered again"
            )
        count = 0
        while delivered and delivered[0][0] <= batch.sequence:
            delivered.popleft()
            count += 1
        self.acked_lsn = max(self.acked_lsn, end_lsn)
        return count

    def moved_error(self) -> Fenced:
        """The error for acknowledgements that are not stored any more."""
        return Fenced(
            f"{self._where()}: the partition moved to another member, or the group was reset. What "
            f"was acknowledged after LSN {self.committed_lsn - 1} and not stored is delivered again"
        )

    async def write(self) -> None:
        """Store what is acknowledged. `Fenced` after a later epoch took the partition."""
        async with self._writing:
            lsn = self.acked_lsn
            if lsn > self.committed_lsn:
                async with explain_deletion(self._stream):
                    stored = await self._register.acknowledge(self.number, self.epoch, lsn)
                self.committed_lsn = stored.lsn

    async def seek(self, lsn: int) -> None:
        """Store this position, also one that lies back, and read on from there."""
        async with self._writing, explain_deletion(self._stream):
            await self.take()
            await self._register.seek(self.number, self.epoch, lsn)
            self._stop_reading()
            self._delivered.clear()
            self.next_lsn = self.acked_lsn = self.committed_lsn = lsn
            self.error = None
        self._notify()

    # Ending

    def drain(self) -> None:
        """Deliver nothing more; what was delivered can be acknowledged."""
        self.is_draining = True
        self._stop_reading()

    def abandon(self) -> None:
        """End: it is this process's no more. Waits for nothing."""
        self.is_over = True
        self._stop_reading()

    @property
    def is_closing(self) -> bool:
        """Whether requests are under way that it does not need any more."""
        return bool(self._closing)

    async def close(self) -> None:
        """End, and wait until every request has."""
        self.abandon()
        if self._closing:
            await asyncio.wait(list(self._closing))

    def _stop_reading(self) -> None:
        """Forget what was read ahead. A task that is under way ends in the background."""
        delivery, self._delivery, self._reader, self._ready = self._delivery, None, None, None
        own = asyncio.current_task()
        tasks = [task for task in self._tasks.values() if task is not own]
        self._tasks = {name: task for name, task in self._tasks.items() if task is own}
        for task in tasks:
            task.cancel()
        self.due_s = runtime.monotonic_s()
        self._polls.reset()
        if delivery is not None or tasks:
            closing = runtime.spawn(_close(delivery, tasks), name=f"close {self.number}")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


async def _close(delivery: Delivery | None, tasks: list[asyncio.Task[Any]]) -> None:
    if tasks:
        await asyncio.wait(tasks)
    if delivery is not None:
        await delivery.close()
