"""Delivering batches in order: reading ahead, and handling batches that cannot be read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Literal

from headwater.buffer.consumer.consumed_batch import ConsumedBatch
from headwater.buffer.consumer.dead_letter import (
    DeadLetter,
    UnreadableBatch,
    read_dead_letter,
    write_dead_letter,
)
from headwater.buffer.consumer.fetcher import FetchHandle
from headwater.buffer.consumer.progress import ConsumerMetrics
from headwater.buffer.queue.contract import Descriptor, Uncounted, batch_trimmed
from headwater.buffer.stream import Stream
from headwater.buffer.stream.handle import deletion_error
from headwater.core import runtime
from headwater.core.errors import Refused, Unavailable
from headwater.core.limits import READ_AHEAD_BATCHES, READ_AHEAD_BYTES
from headwater.core.settings import whole_number

OnBadBatch = Literal["raise", "dead_letter"]
Check = Callable[[], Awaitable[None]]


class Delivery:
    """The reading half of a consumer or follower."""

    def __init__(
        self,
        stream: Stream,
        partition: int,
        *,
        on_bad_batch: OnBadBatch,
        read_ahead_bytes: int,
        read_ahead_batches: int,
        metrics: ConsumerMetrics,
    ) -> None:
        if on_bad_batch not in ("raise", "dead_letter"):
            raise Refused(f'on_bad_batch is {on_bad_batch!r}: it is "raise" or "dead_letter"')
        self._stream = stream
        self._partition = partition
        self._on_bad_batch = on_bad_batch
        self.metrics = metrics
        self.handle = FetchHandle.of(stream, partition, metrics)
        self._ahead = ReadAhead(
            self.handle.fetch, max_bytes=read_ahead_bytes, max_batches=read_ahead_batches
        )
        self.cursor: int | None = None
        """The last batch that was delivered; None before the first."""

    async def read_more(self, after: After, check: Check | None) -> None:
        """Read more descriptors from the queue; if enough are known, only check the fence."""
        has_read = await self._ahead.read_more(after, self.cursor)
        if not has_read and check is not None:
            await check()

    @property
    def is_known(self) -> bool:
        """Whether the next batch is known, and perhaps not fetched yet."""
        return len(self._ahead) > 0

    @property
    def last_known(self) -> int | None:
        """The last batch that is known; None before the first."""
        last = self._ahead.last
        return self.cursor if last is None else last.sequence

    @property
    def wants_more(self) -> bool:
        """Whether there is room to read more descriptors."""
        return self._ahead.wanted > 0

    async def next_batch(self) -> ConsumedBatch | None:
        """The next known batch; None if there is none."""
        batch = await self.peek()
        if batch is not None:
            self.pass_next()
        return batch

    async def peek(self) -> ConsumedBatch | None:
        """The next known batch, which stays the next one; None if there is none."""
        if not len(self._ahead):
            return None
        outcome = await self._ahead.first()
        if not isinstance(outcome, ConsumedBatch):
            self._ahead.retry_first()
            outcome = await self._bad(outcome)
        elif _may_be_given_up(outcome.descriptor):
            letter = await read_dead_letter(self._stream, self._partition, outcome.sequence)
            outcome.lost = None if letter is None else letter.lost
        await self._update_columns(outcome.descriptor.schema_version)
        return outcome

    def peek_fetched(self) -> ConsumedBatch | None:
        """As `peek`, for a batch that needs no further request; None for any other."""
        outcome = self._ahead.first_fetched()
        if (
            not isinstance(outcome, ConsumedBatch)
            or _may_be_given_up(outcome.descriptor)
            or outcome.descriptor.schema_version > self._stream.schema_version
        ):
            return None
        return outcome

    def pass_next(self) -> None:
        """Pass the next batch, which was delivered."""
        self.cursor = self._ahead.pop().sequence

    async def _update_columns(self, version: int) -> None:
        """Read the stream's columns again if a batch has a newer schema version."""
        if version > self._stream.schema_version:
            self._stream = await self._stream.reread()
            self.handle.recorded.schema = self._stream.schema

    def pass_over(self, descriptors: list[Descriptor]) -> None:
        """Pass these batches, whose descriptors the caller gets."""
        if descriptors:
            self.cursor = descriptors[-1].sequence
            self._ahead.drop_through(self.cursor)
            self.metrics.descriptors_handed_out += len(descriptors)

    @property
    def dead_letters(self) -> bool:
        """Whether unreadable batches become dead letters, and the next ones are delivered."""
        return self._on_bad_batch == "dead_letter"

    async def dead_letter(self, descriptor: Descriptor, cause: str) -> DeadLetter:
        letter = await write_dead_letter(self._stream, self._partition, descriptor, cause)
        self.metrics.dead_letters += 1
        return letter

    async def close(self) -> None:
        """Stop reading ahead."""
        await self._ahead.close()

    async def _bad(self, error: Exception) -> ConsumedBatch:
        if not isinstance(error, UnreadableBatch):
            raise error
        await check_retained(self._stream, self._partition, error)
        if not self.dead_letters:
            raise error
        letter = await self.dead_letter(error.descriptor, error.cause)
        return ConsumedBatch(
            error.descriptor,
            stream=self._stream.name,
            partition=self._partition,
            lost=letter.lost,
            recorded=self.handle.recorded,
        )


def _may_be_given_up(descriptor: Descriptor) -> bool:
    """Whether a batch may have no rows because a consumer gave it up."""
    return descriptor.format == "v1" and not descriptor.rows and not descriptor.duplicate


async def check_retained(stream: Stream, partition: int, error: UnreadableBatch) -> None:
    """Raise `BatchTrimmed` if retention deleted the batch while it was being read.

    `NotFound` if the stream was deleted: its batches are deleted before its queue.
    """
    floor = await stream.queue_reader(partition).floor()
    sequence = error.descriptor.sequence
    if sequence < floor.sequence:
        what = f"stream {stream.name!r}, partition {partition}: batch {sequence}"
        raise batch_trimmed(what, floor) from error
    cause = await deletion_error(stream, error)
    if cause is not error:
        raise cause from error


After = Callable[[int | None, int], Awaitable[list[Descriptor]]]
Fetch = Callable[[Descriptor], Awaitable[ConsumedBatch]]
Outcome = ConsumedBatch | Exception


class _Slot:
    """One batch: its descriptor, and the task that fetches it."""

    def __init__(self, descriptor: Descriptor) -> None:
        self.descriptor = descriptor
        self.task: asyncio.Task[Outcome] | None = None
        self.decoded_bytes = 0

    @property
    def size_bytes(self) -> int:
        """The memory it needs: decoded, it may be larger than its object."""
        return max(self.descriptor.size_bytes, self.decoded_bytes)

    @property
    def failed_unnoticed(self) -> bool:
        """Whether the store failed while no caller waited: it may answer now."""
        task = self.task
        if task is None or not task.done() or task.cancelled():
            return False
        return isinstance(task.result(), Unavailable)

    async def fetched(self, fetch: Fetch) -> Outcome:
        """The batch, or the error, which is raised in its turn."""
        try:
            batch = await fetch(self.descriptor)
        except Exception as error:
            return error
        self.decoded_bytes = int(batch.records.nbytes)
        return batch


class ReadAhead:
    """The next batches, in order. The first ones are being fetched.

    Always holds: running fetches and decoded batches are bounded by number and size. The first one
    is fetched whatever its size, or a batch above the bound would never arrive. Batches leave only
    by `pop` and `drop_through`, so a caller that is cancelled finds the first batch at its next
    call. A failed fetch keeps its place until its error was raised.
    """

    def __init__(
        self,
        fetch: Fetch,
        *,
        max_bytes: int = READ_AHEAD_BYTES,
        max_batches: int = READ_AHEAD_BATCHES,
    ) -> None:
        max_bytes = whole_number("read_ahead_bytes", max_bytes)
        max_batches = whole_number("read_ahead_batches", max_batches)
        if max_bytes < 0 or max_batches < 1:
            raise Refused(
                f"read-ahead of {max_batches} batches and {max_bytes} bytes: at least 1 and 0"
            )
        self._fetch = fetch
        self._max_bytes = max_bytes
        self._max_batches = max_batches
        self._slots: deque[_Slot] = deque()

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def last(self) -> Descriptor | None:
        """The last known batch; None if there is none."""
        return self._slots[-1].descriptor if self._slots else None

    @property
    def wanted(self) -> int:
        """How many more descriptors to read; 0 while enough are known."""
        known_bytes = sum(slot.descriptor.size_bytes for slot in self._slots)
        if self._slots and (
            2 * len(self._slots) >= self._max_batches or 2 * known_bytes >= self._max_bytes
        ):
            return 0
        return self._max_batches - len(self._slots)

    async def read_more(self, after: After, cursor: int | None) -> bool:
        """Read more descriptors if there is room. Returns whether the queue was read.

        `cursor` is the batch before the first known one.
        """
        wanted, last = self.wanted, self.last
        if not wanted:
            return False
        try:
            self.add(await after(cursor if last is None else last.sequence, wanted))
        except Uncounted:
            # Raised when its turn comes: the batches before it are delivered first.
            if last is None:
                raise
            return False
        return True

    def add(self, descriptors: Iterable[Descriptor]) -> None:
        """Append descriptors that follow the known ones."""
        self._slots.extend(_Slot(descriptor) for descriptor in descriptors)
        self._begin_more()

    async def first(self) -> Outcome:
        """Wait for the first batch, or for the error of fetching it. It stays the first."""
        if self._slots[0].failed_unnoticed:
            self.retry_first()
        self._begin_more()
        task = self._slots[0].task
        assert task is not None
        if not task.done():
            await asyncio.wait((task,))
        if task.cancelled():
            raise Refused("closed while waiting for a batch")
        return task.result()

    def first_fetched(self) -> Outcome | None:
        """What became of fetching the first batch, if that is over."""
        task = self._slots[0].task if self._slots else None
        return task.result() if task is not None and task.done() and not task.cancelled() else None

    def pop(self) -> Descriptor:
        """Remove the first batch, which was delivered."""
        slot = self._slots.popleft()
        self._begin_more()
        return slot.descriptor

    def retry_first(self) -> None:
        """The error of the first batch was raised: fetch it again at the next call."""
        self._slots[0].task, self._slots[0].decoded_bytes = None, 0

    def drop_through(self, sequence: int) -> None:
        """Remove the batches through this one, whose descriptors were delivered."""
        while self._slots and self._slots[0].descriptor.sequence <= sequence:
            task = self._slots.popleft().task
            if task is not None:
                task.cancel()

    async def close(self) -> None:
        """Stop running fetches, and wait until they have stopped."""
        tasks = [slot.task for slot in self._slots if slot.task is not None]
        self._slots.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _begin_more(self) -> None:
        total_bytes = 0
        for number, slot in enumerate(self._slots):
            total_bytes += slot.size_bytes
            if number and (number >= self._max_batches or total_bytes > self._max_bytes):
                return
            if slot.task is None:
                slot.task = runtime.spawn(
                    slot.fetched(self._fetch),
                    name=f"fetch batch {slot.descriptor.sequence}",
                )
