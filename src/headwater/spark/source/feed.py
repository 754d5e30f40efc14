"""One partition as a query sees it: its bounds, and its batches.

`PartitionFeed` gets them from the buffer's queue. `PendingBatches` has the batches that a query has
listed and not read yet. A position is an LSN; the sequences of batches stay in this file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from headwater.buffer.consumer import (
    Ownership,
    UnreadableBatch,
    compact_descriptor,
    position_at_time,
)
from headwater.buffer.queue.contract import QueueState, Uncounted
from headwater.buffer.stream import Stream
from headwater.buffer.stream.config import encode_config
from headwater.buffer.stream.handle import explain_deletion
from headwater.core.errors import Refused, RolledBack, Trimmed
from headwater.core.limits import LOOK_BATCHES
from headwater.spark.option_values import TimeBound
from headwater.spark.source.offset import StreamPartition
from headwater.spark.source.slices import Slice, slices_until

T = TypeVar("T")


class Bounds(NamedTuple):
    """What is retained, as LSNs."""

    oldest: int
    latest: int
    """The LSN after the last record, or of the first that cannot be counted (published v1)."""
    is_counted: bool = True
    """Whether `latest` is the end: nothing more follows that cannot be counted."""


class PartitionFeed:
    """One partition of a stream, read from the buffer's queue. Opens and fences nothing, except to
    give up a batch that cannot be counted."""

    def __init__(self, stream: Stream, partition: int, *, gives_up_as: str = "") -> None:
        """`gives_up_as`: continue without batches that cannot be counted (published v1), as this
        group. Empty: raise `Uncounted`."""
        self.part = StreamPartition(stream.name, partition)
        self.stream = stream
        self.stream_config = bytes(encode_config(stream.config))
        self._partition = partition
        self._gives_up_as = gives_up_as
        self._queue_reader = stream.queue_reader(partition)

    async def bounds(self) -> Bounds:
        state = await self._state()
        return Bounds(state.floor_lsn, state.next_lsn, state.uncounted_sequence is None)

    async def check_offset(self, lsn: int) -> int:
        """The LSN itself, of a retained record or after the last one.

        `Trimmed` if it is no longer retained; `Refused` if it is beyond the end.
        """
        state = await self._state()
        self._check_retained(lsn, state)
        if lsn > state.next_lsn:
            raise Refused(
                f"{self.part}: offset {lsn} lies ahead; the next record will be {state.next_lsn}"
            )
        return lsn

    async def at_time(self, bound: TimeBound, *, skips_unreadable: bool) -> int | None:
        """The LSN of the first record at or after a time; None if there is none.

        Reads one batch at most. If that cannot be read and `skips_unreadable`, its first LSN.
        """
        time_us = bound.of(*self.part)
        try:
            async with explain_deletion(self.stream):
                found = await position_at_time(self.stream, self._partition, time_us, bound.by)
        except UnreadableBatch as error:
            if not skips_unreadable:
                raise
            # The query skips or records the batch once it reads it.
            return error.descriptor.first_lsn
        return None if found is None else found.lsn

    async def sequence_at(self, lsn: int) -> int:
        """The batch with this record; where there is none yet, the one that will have it.

        `Trimmed` if it is no longer retained; `RolledBack` if it is beyond the end.
        """
        return await self._giving_up(lambda: self._sequence_at(lsn))

    async def _sequence_at(self, lsn: int) -> int:
        state = await self._queue_reader.state()
        self._check_retained(lsn, state)
        if lsn == state.next_lsn:
            lost = state.uncounted_sequence
            return state.next_sequence if lost is None else lost
        sequence = await self._queue_reader.sequence_at_lsn(lsn)
        if sequence is None:
            raise RolledBack(
                f"{self.part}: the query is at offset {lsn}, and the next record of the stream "
                f"will be {state.next_lsn}: the stream was restored to an earlier state, or the "
                "checkpoint is that of another stream"
            )
        return sequence

    async def list_batches(self, sequence: int, limit: int) -> list[Slice]:
        """List up to `limit` batches from a sequence on; fewer at the end of the queue.

        `Trimmed` if the first one is no longer retained.
        """
        batches = await self._giving_up(lambda: self._queue_reader.after(sequence - 1, limit))
        return [Slice.whole(compact_descriptor(descriptor)) for descriptor in batches]

    async def _giving_up(self, read: Callable[[], Awaitable[T]]) -> T:
        """What `read` returns, once nothing before it cannot be counted."""
        while True:
            try:
                async with explain_deletion(self.stream):
                    return await read()
            except Uncounted as error:
                if not self._gives_up_as:
                    raise
                await self._give_up(error)

    async def _give_up(self, error: Uncounted) -> None:
        """Fix the rows of a lost batch, which only the consumer of a published v1 queue may."""
        try:
            ownership = await Ownership.open(
                self.stream, self._partition, self._gives_up_as, gc=False
            )
        except Refused as refused:
            raise error from refused  # another group consumes the queue
        try:
            await ownership.give_up(error)
        finally:
            await ownership.close()

    def _check_retained(self, lsn: int, state: QueueState) -> None:
        if lsn < state.floor_lsn:
            raise Trimmed(
                f"{self.part}: LSN {lsn} is no longer retained", floor_lsn=state.floor_lsn
            )

    async def _state(self) -> QueueState:
        async with explain_deletion(self.stream):
            return await self._queue_reader.state()


PENDING_BATCHES_MAX: Final = 65_536
"""The most batches of one partition in one micro-batch; the rest is for the next."""


class PendingBatches:
    """The batches of a partition that are listed and not read yet, without a gap."""

    def __init__(self, feed: PartitionFeed, start_lsn: int) -> None:
        self.feed = feed
        self.start_lsn = start_lsn
        """The first LSN that is listed: after the wanted one if the records between are lost."""
        self._wanted_lsn = start_lsn
        self._slices: deque[Slice] = deque()
        self._next_sequence: int | None = None
        """The batch to list next; None before it is looked up by its LSN."""
        self.end_lsn = start_lsn
        """The LSN after the last listed record."""
        self.is_at_end = False
        """Whether there was no more batch when it last looked."""

    @property
    def rows(self) -> int:
        """The number of listed rows after the start."""
        return self.end_lsn - self.start_lsn

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes for one in self._slices)

    def starts_at(self, lsn: int) -> bool:
        """Whether the listed batches begin at a position."""
        return self._wanted_lsn == lsn

    def restart_at(self, lsn: int, *, instead_of: int | None = None) -> None:
        """Drop the batches before a position; if it is not among them, list again from there.

        `instead_of`: the position that was wanted, if the records after it are lost.
        """
        wanted_lsn = lsn if instead_of is None else instead_of
        if wanted_lsn == self._wanted_lsn and instead_of is None:
            return
        self._wanted_lsn = wanted_lsn
        while self._slices and self._slices[0].end_lsn <= lsn:
            self._slices.popleft()
        self.start_lsn = lsn
        first = self._slices[0] if self._slices else None
        if first is not None and first.descriptor.first_lsn <= lsn:
            self._slices[0] = Slice.whole(first.descriptor).cut(lsn, first.end_lsn)
        elif first is not None or self.end_lsn != lsn:
            self._slices.clear()
            self._next_sequence = None
            self.end_lsn, self.is_at_end = lsn, False

    async def fetch(self, *, rows: int | None, size_bytes: int | None) -> bool:
        """List batches until there are enough for these limits; returns whether there were more."""
        listed_any = False
        while len(self._slices) < PENDING_BATCHES_MAX and not self._is_enough(rows, size_bytes):
            count = await self._list()
            listed_any = listed_any or bool(count)
            self.is_at_end = count < LOOK_BATCHES
            if self.is_at_end:
                break
        return listed_any

    async def fetch_until(self, end_lsn: int) -> list[Slice]:
        """The slices up to a position that existed before; lists the batches that are missing."""
        while self.end_lsn < end_lsn:
            if not await self._list():
                raise RolledBack(
                    f"{self.feed.part}: the checkpoint has records up to offset {end_lsn - 1}, and "
                    f"the stream ends at {self.end_lsn - 1}: it was restored to an earlier state, "
                    "or the checkpoint is that of another stream"
                )
        return self.up_to(end_lsn)

    def up_to(self, end_lsn: int | None) -> list[Slice]:
        """The listed slices up to a position."""
        return list(self._slices) if end_lsn is None else slices_until(self._slices, end_lsn)

    async def _list(self) -> int:
        """List more batches; returns how many there were."""
        if self._next_sequence is None:
            self._next_sequence = await self.feed.sequence_at(self.end_lsn)
        batches = await self.feed.list_batches(self._next_sequence, LOOK_BATCHES)
        for one in batches:
            # Batches without records, which published v1 queues may have, change no position.
            if one.take:
                self._slices.append(one.cut(self.start_lsn, one.end_lsn))
        if batches:
            self._next_sequence = batches[-1].sequence + 1
            self.end_lsn = max(self.end_lsn, batches[-1].end_lsn)
        return len(batches)

    def _is_enough(self, rows: int | None, size_bytes: int | None) -> bool:
        if rows is not None and self.rows >= rows:
            return True
        return size_bytes is not None and self.size_bytes >= size_bytes
