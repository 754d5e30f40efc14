"""Reading a stream without being its consumer: looks, opens nothing, fences nobody."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from headwater.buffer.consumer.consumed_batch import ConsumedBatch, LostRecords, ReaderColumns
from headwater.buffer.consumer.delivery import ReadAhead, check_retained
from headwater.buffer.consumer.fetcher import FetchHandle
from headwater.buffer.consumer.positions import (
    EARLIEST,
    LATEST,
    ReadBounds,
    check_bounds,
    check_time_by,
    partition_bound,
    resolve_end,
    resolve_start,
    trimmed_by_lsn,
)
from headwater.buffer.consumer.unreadable import UnreadableBatch
from headwater.buffer.queue.contract import Descriptor, TimeBy, Uncounted
from headwater.buffer.stream import Stream
from headwater.buffer.stream.handle import explain_deletion, open_source
from headwater.buffer.stream.streams import resolve_stream
from headwater.core import runtime
from headwater.core.errors import Refused
from headwater.core.limits import FOLLOW_POLL_BASE_S, FOLLOW_POLL_CAP_S, READ_AHEAD_BYTES
from headwater.store import Store

RaiseOrSkip = Literal["raise", "skip"]


class ReaderOptions(NamedTuple):
    """What all partitions of one reading share."""

    follow: bool
    time_by: TimeBy
    on_bad_batch: RaiseOrSkip
    read_ahead_bytes: int
    lost: list[LostRecords]
    """Records that could not be read and were passed over, as they were asked to be."""


class PartitionReader:
    """The batches of one partition from one LSN up to another, or for ever."""

    def __init__(
        self,
        stream: Stream,
        partition: int,
        *,
        after: int | None,
        first_lsn: int,
        end_lsn: int | None,
        options: ReaderOptions,
    ) -> None:
        self._stream = stream
        self._partition = partition
        self._looker = stream.looker(partition)
        handle = FetchHandle.of(stream, partition)
        self._ahead = ReadAhead(handle.fetch, max_bytes=options.read_ahead_bytes)
        self._after = after
        self._first_lsn = first_lsn
        self._end_lsn = end_lsn
        self._options = options
        self.is_over = end_lsn is not None and first_lsn >= end_lsn

    async def peek(self) -> ConsumedBatch | None:
        """The next batch, which stays the next; None if there is none at present."""
        while not self.is_over:
            last = self._ahead.last
            if last is None or not self._reaches_end(last):
                try:
                    async with trimmed_by_lsn(self._stream, self._partition):
                        await self._ahead.learn(self._looker.after, self._after)
                except Uncounted as error:
                    self._end_at(error)
                    continue
            if not len(self._ahead):
                return None
            found = await self._ahead.first()
            if isinstance(found, ConsumedBatch):
                return found
            self._ahead.try_first_again()
            if not isinstance(found, UnreadableBatch):
                raise found
            async with trimmed_by_lsn(self._stream, self._partition):
                await check_retained(self._stream, self._partition, found)
            if self._options.on_bad_batch == "raise":
                raise found
            self._leave_out(found.descriptor, found.cause)
            self.skip()
        return None

    def _end_at(self, error: Uncounted) -> None:
        """Nothing from this batch on has LSNs: as good as the end, where that is asked for."""
        if self._options.follow or self._options.on_bad_batch == "raise":
            raise error
        self._leave_out(error.descriptor, str(error))
        self.is_over = True

    def _leave_out(self, gone: Descriptor, cause: str) -> None:
        lost = LostRecords(gone.first_lsn, gone.last_lsn, cause, self._partition)
        self._options.lost.append(lost)

    def skip(self) -> None:
        """Go on after the next batch."""
        passed = self._ahead.pop()
        self._after = passed.sequence
        self.is_over = self._reaches_end(passed)

    def _reaches_end(self, batch: Descriptor) -> bool:
        return self._end_lsn is not None and batch.last_lsn + 1 >= self._end_lsn

    def cut(self, batch: ConsumedBatch, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that lie between the two LSNs."""
        first = max(self._first_lsn - batch.first_lsn, 0)
        end = len(batch)
        if self._end_lsn is not None:
            end = min(end, max(self._end_lsn - batch.first_lsn, 0))
        return rows if (first, end) == (0, len(batch)) else rows.slice(first, max(end - first, 0))

    async def close(self) -> None:
        """Stop reading ahead."""
        await self._ahead.close()


class AsyncReader:
    """Record batches of a stream, in the order of each partition, all of one schema.

    Bounded, it reads one partition after the other; following, it takes them in turn.
    """

    def __init__(
        self,
        stream: Stream,
        parts: list[PartitionReader],
        *,
        columns: ReaderColumns,
        options: ReaderOptions,
    ) -> None:
        """Use `read_async`."""
        self.stream = stream
        self.lost = options.lost
        """With on_bad_batch="skip": the records that could not be read so far."""
        self.follows = options.follow
        self.owns_store = False
        """Whether closing closes the store, which nobody else has."""
        self._parts = parts
        self._columns = columns

    @property
    def schema(self) -> pa.Schema:
        """The columns of every batch."""
        return self._columns.schema

    def __aiter__(self) -> AsyncReader:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        found = await self.next_batch()
        if found is None:
            raise StopAsyncIteration
        return found

    async def next_batch(self) -> pa.RecordBatch | None:
        """The next rows; None at the end, which a reader that follows does not have."""
        wait_s = FOLLOW_POLL_BASE_S
        while True:
            found = await self._next()
            if found is not None:
                return found
            if all(part.is_over for part in self._parts) or not self.follows:
                return None
            # A queue that nobody appends to is asked ever more seldom.
            await runtime.sleep(wait_s)
            wait_s = min(2 * wait_s, FOLLOW_POLL_CAP_S)

    async def __aenter__(self) -> AsyncReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop reading ahead, and give back what was opened for this reading."""
        parts, self._parts = self._parts, []
        for part in parts:
            await part.close()
        if self.owns_store:
            self.owns_store = False
            await self.stream.store.close()

    async def _next(self) -> pa.RecordBatch | None:
        """The next rows at hand; None if no partition has any at present."""
        for part in list(self._parts):
            async with explain_deletion(self.stream):
                rows = await self._next_of(part)
            if rows is None:
                continue
            if self.follows:
                # Whose turn it was comes last, or a busy partition would be the only one read.
                self._parts.remove(part)
                self._parts.append(part)
            return rows
        return None

    async def _next_of(self, part: PartitionReader) -> pa.RecordBatch | None:
        while (batch := await part.peek()) is not None:
            rows = part.cut(batch, self._columns.of(batch))
            part.skip()
            if rows.num_rows:
                return rows
        return None


async def read_async(
    source: str | Store | Stream,
    stream: str | None = None,
    start: ReadBounds = None,
    end: ReadBounds = None,
    *,
    partition: int | Sequence[int] | None = None,
    time_by: TimeBy = "timestamp",
    follow: bool = False,
    columns: Sequence[str] | None = None,
    on_bad_batch: RaiseOrSkip = "raise",
    read_ahead_bytes: int = READ_AHEAD_BYTES,
) -> AsyncReader:
    """Read a stream from `start` (inclusive) to `end` (exclusive) as Arrow record batches.

    Without `start`, from the oldest record that is retained; without `end`, to the latest one
    at this moment, or with `follow` for ever. A time is that of a record's timestamp, or with
    `time_by="ingestion"` of its ingestion. `Trimmed`, when it is opened and later: what comes
    next is not retained any more, and `floor` is the oldest LSN that is.
    """
    if on_bad_batch not in ("raise", "skip"):
        raise Refused(f'on_bad_batch is {on_bad_batch!r}: it is "raise" or "skip"')
    check_time_by(time_by)
    options = ReaderOptions(follow, time_by, on_bad_batch, read_ahead_bytes, [])
    async with open_source(source) as (found, owned):
        chosen = await resolve_stream(found, stream)
        if chosen is found:
            # A handle from before the first record knows nothing of what the stream carries.
            chosen = await chosen.settled()
        reader = await _open_reader(chosen, start, end, partition, columns, options)
    reader.owns_store = owned is not None
    return reader


async def _open_reader(
    stream: Stream,
    start: ReadBounds,
    end: ReadBounds,
    partition: int | Sequence[int] | None,
    columns: Sequence[str] | None,
    options: ReaderOptions,
) -> AsyncReader:
    check_bounds(stream, start)
    check_bounds(stream, end)
    parts: list[PartitionReader] = []
    try:
        for number in _partitions(stream, partition):
            parts.append(await _open_partition(stream, number, start, end, options))
        chosen = ReaderColumns(stream.schema, columns, version=stream.schema_version)
    except BaseException:
        for part in parts:
            await part.close()
        raise
    return AsyncReader(stream, parts, columns=chosen, options=options)


def _partitions(stream: Stream, asked: int | Sequence[int] | None) -> Sequence[int]:
    if asked is None:
        return range(stream.partitions)
    several = isinstance(asked, Iterable) and not isinstance(asked, str | bytes)
    numbers: list[Any] = list(asked) if several else [asked]  # type: ignore[arg-type]
    for number in numbers:
        stream.check_partition(number)
    if len(set(numbers)) < len(numbers) or not numbers:
        raise Refused(f"partitions {numbers}: name one or more, each once")
    return numbers


async def _open_partition(
    stream: Stream,
    partition: int,
    start: ReadBounds,
    end: ReadBounds,
    options: ReaderOptions,
) -> PartitionReader:
    looker = stream.looker(partition)
    state = (await looker.state()).checked()
    from_place, to_place = partition_bound(start, partition), partition_bound(end, partition)
    how: Any = {"time_by": options.time_by, "skips": options.on_bad_batch == "skip"}
    first_lsn = await resolve_start(stream, partition, from_place, state, **how)
    end_lsn = None
    if to_place is not None or not options.follow:
        end_lsn = await resolve_end(stream, partition, to_place, state, **how)
    if not options.follow:
        # A batch that cannot be counted is met in its turn: nothing is passed over silently.
        known_lsn = state.next_lsn + (state.uncounted_sequence is not None)
        latest = to_place in (None, LATEST)
        end_lsn = known_lsn if latest or end_lsn is None else min(end_lsn, known_lsn)
    after = None
    if from_place not in (None, EARLIEST):
        async with trimmed_by_lsn(stream, partition):
            sequence = await looker.sequence_at_lsn(first_lsn)
        # -1 and not None before batch 0: asked for by number, it must be that one or `Trimmed`.
        after = (state.next_sequence if sequence is None else sequence) - 1
    return PartitionReader(
        stream,
        partition,
        after=after,
        first_lsn=first_lsn,
        end_lsn=end_lsn,
        options=options,
    )
