"""How batches reach whoever asked: read ahead, in order, each handed over once.

Always holds:

- one cursor: what `next_batch` delivers and what `next_descriptors` hands out never overlap;
- the cursor moves with the hand-over, after everything that can fail or be cancelled: the same
  batch is delivered by the next call;
- nothing is passed over silently: a batch that cannot be read is an error, or is delivered as
  lost, after its dead letter was written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

from headwater.buffer.consumer.consumed import ConsumedBatch
from headwater.buffer.consumer.dead_letter import (
    DeadLetter,
    read_dead_letter,
    write_dead_letter,
)
from headwater.buffer.consumer.fetch import FetchHandle
from headwater.buffer.consumer.metrics import ConsumerMetrics
from headwater.buffer.consumer.read_ahead import After, ReadAhead
from headwater.buffer.consumer.unreadable import UnreadableBatch
from headwater.buffer.queue.contract import Descriptor
from headwater.buffer.stream import Stream
from headwater.buffer.stream.deleted import told_of_deletion
from headwater.core.errors import Refused, Trimmed

OnBadBatch = Literal["raise", "dead_letter"]
Check = Callable[[], Awaitable[None]]


class Delivery:
    """The reading half of a consumer, and of a follower."""

    def __init__(
        self,
        stream: Stream,
        partition: int,
        *,
        position: int | None,
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
        self.cursor = position
        """The last batch that was handed over; None before the first."""

    async def look(self, after: After, check: Check | None) -> None:
        """Learn of more batches; where there is enough to do, only see whether one still may."""
        asked = await self._ahead.learn(after, self.cursor)
        if not asked and check is not None:
            await check()

    async def next_batch(self) -> ConsumedBatch | None:
        """The next batch of those known; None if there is none."""
        if not len(self._ahead):
            return None
        outcome = await self._ahead.first()
        if not isinstance(outcome, ConsumedBatch):
            self._ahead.try_first_again()
            outcome = await self._bad(outcome)
        elif _may_be_given_up(outcome.descriptor):
            letter = await read_dead_letter(self._stream, self._partition, outcome.sequence)
            outcome.lost = None if letter is None else letter.lost
        await self._learn(outcome.descriptor.schema_version)
        self.cursor = outcome.sequence
        self._ahead.pop()
        return outcome

    async def _learn(self, version: int) -> None:
        """Learn the stream's columns from the version that a batch was written under."""
        if version > self._stream.schema_version:
            self._stream = await self._stream.reread()
            self.handle.recorded.schema = self._stream.schema

    def hand_out(self, descriptors: list[Descriptor]) -> None:
        """These follow the cursor, and go to the caller as they are."""
        if descriptors:
            self.cursor = descriptors[-1].sequence
            self._ahead.drop_through(self.cursor)
            self.metrics.descriptors_handed_out += len(descriptors)

    @property
    def dead_letters(self) -> bool:
        """Whether bad batches go to the dead letters, and what follows them is delivered."""
        return self._on_bad_batch == "dead_letter"

    async def dead_letter(self, descriptor: Descriptor, cause: str) -> DeadLetter:
        """Put a batch on the list of those that cannot be read."""
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
        return ConsumedBatch.empty(
            error.descriptor,
            stream=self._stream.name,
            partition=self._partition,
            lost=letter.lost,
            recorded=self.handle.recorded,
        )


def _may_be_given_up(descriptor: Descriptor) -> bool:
    """Whether a batch has no rows because a consumer declared it lost; few have none."""
    return descriptor.format == "v1" and not descriptor.rows and not descriptor.duplicate


async def check_retained(stream: Stream, partition: int, error: UnreadableBatch) -> None:
    """Say `Trimmed` of a batch that went with the retention while it was being read.

    `floor` is the oldest sequence. `NotFound` if it went with its stream: batches are deleted
    before the queue that knows them.
    """
    floor = await stream.looker(partition).floor()
    sequence = error.descriptor.sequence
    if sequence < floor:
        raise Trimmed(
            f"stream {stream.name!r}, partition {partition}: batch {sequence} went with the "
            f"retention while it was being read; the oldest one is {floor}",
            floor=floor,
        ) from error
    told = await told_of_deletion(stream, error)
    if told is not error:
        raise told from error
