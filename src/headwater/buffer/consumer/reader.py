"""Reading a stream without consuming it: opens and fences nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from headwater.buffer.consumer.consumed_batch import ConsumedBatch, ReaderColumns
from headwater.buffer.consumer.dead_letter import LostRecords, UnreadableBatch
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
)
from headwater.buffer.queue.contract import Descriptor, TimeBy, Uncounted
from headwater.buffer.stream import Stream
from headwater.buffer.stream.handle import explain_deletion, open_source
from headwater.buffer.stream.streams import resolve_stream
from headwater.core import runtime
from headwater.core.errors import Refused
from headwater.core.limits import FOLLOW_POLL_BASE_S, FOLLOW_POLL_CAP_S, READ_AHEAD_BYTES
from headwater.core.retry import PollBackoff
from headwater.store import Store

RaiseOrSkip = Literal["raise", "skip"]


class ReaderOptions(NamedTuple):
    """The options of a reader, shared by its partitions."""

    follow: bool
    time_by: TimeBy
    on_bad_batch: RaiseOrSkip
    read_ahead_bytes: int
    lost: list[LostRecords]
    """Unreadable records that were skipped because of on_bad_batch="skip"."""


class PartitionReader:
    """The batches of one partition from one LSN to another, or without an end."""

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
        self._queue_reader = stream.queue_reader(partition)
        handle = FetchHandle.of(stream, partition)
        self._ahead = ReadAhead(handle.fetch, max_bytes=options.read_ahead_bytes)
        self._after = after
        self._first_lsn = first_lsn
        self._end_lsn = end_lsn
        self._options = options
        self.is_over = end_lsn is not None and first_lsn >= end_lsn

    async def peek(self) -> ConsumedBatch | None:
        """The next batch, without passing it; None if there is none at present."""
        while not self.is_over:
            last = self._ahead.last
            if last is None or not self._reaches_end(last):
                try:
                    await self._ahead.read_more(self._queue_reader.after, self._after)
                except Uncounted as error:
                    self._end_at(error)
                    continue
            if not len(self._ahead):
                return None
            outcome = await self._ahead.first()
            if isinstance(outcome, ConsumedBatch):
                return outcome
            self._ahead.retry_first()
            if not isinstance(outcome, UnreadableBatch):
                raise outcome
            await check_retained(self._stream, self._partition, outcome)
            if self._options.on_bad_batch == "raise":
                raise outcome
            self._note_lost(outcome.descriptor, outcome.cause)
            self.skip()
        return None

    def _end_at(self, error: Uncounted) -> None:
        """End before a batch that cannot be counted: nothing from there on has LSNs."""
        if self._options.follow or self._options.on_bad_batch == "raise":
            raise error
        self._note_lost(error.descriptor, str(error))
        self.is_over = True

    def _note_lost(self, gone: Descriptor, cause: str) -> None:
        lost = LostRecords(gone.first_lsn, gone.last_lsn, cause, self._partition)
        self._options.lost.append(lost)

    def skip(self) -> None:
        """Pass the next batch."""
        passed = self._ahead.pop()
        self._after = passed.sequence
        self.is_over = self._reaches_end(passed)

    def _reaches_end(self, batch: Descriptor) -> bool:
        return self._end_lsn is not None and batch.last_lsn + 1 >= self._end_lsn

    def cut(self, batch: ConsumedBatch, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows between the two LSNs."""
        first = max(self._first_lsn - batch.first_lsn, 0)
        end = len(batch)
        if self._end_lsn is not None:
            end = min(end, max(self._end_lsn - batch.first_lsn, 0))
        return rows if (first, end) == (0, len(batch)) else rows.slice(first, max(end - first, 0))

    async def close(self) -> None:
        await self._ahead.close()


class AsyncReader:
    """The record batches of a stream, in the order of each partition, all with one schema.

    Without `follow` it reads one partition after the other; with it, in turn.
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
        """With on_bad_batch="skip": the unreadable records so far."""
        self.follows = options.follow
        self.owns_store = False
        """Whether `close` also closes the store."""
        self._parts = parts
        self._columns = columns

    @property
    def schema(self) -> pa.Schema:
        return self._columns.schema

    def __aiter__(self) -> AsyncReader:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        rows = await self.next_batch()
        if rows is None:
            raise StopAsyncIteration
        return rows

    async def next_batch(self) -> pa.RecordBatch | None:
        """The next rows; None at the end. With `follow`, waits for more."""
        polls = PollBackoff(FOLLOW_POLL_BASE_S, FOLLOW_POLL_CAP_S)
        while True:
            rows = await self._next()
            if rows is not None:
                return rows
            if all(part.is_over for part in self._parts) or not self.follows:
                return None
            await runtime.sleep(polls.next_s())

    async def __aenter__(self) -> AsyncReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop reading ahead, and close what was opened for this reader."""
        parts, self._parts = self._parts, []
        for part in parts:
            await part.close()
        if self.owns_store:
            self.owns_store = False
            await self.stream.store.close()

    async def _next(self) -> pa.RecordBatch | None:
        for part in list(self._parts):
            async with explain_deletion(self.stream):
                rows = await self._next_of(part)
            if rows is None:
                continue
            if self.follows:
                # In turn: otherwise only a busy partition would be read.
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

    The defaults are the oldest retained record and the current end, or with `follow` no end. Times
    are compared with a record's timestamp, or with `time_by="ingestion"` with its ingestion time.
    `Trimmed`, here and from the reader: the next record is not retained any more.
    """
    if on_bad_batch not in ("raise", "skip"):
        raise Refused(f'on_bad_batch is {on_bad_batch!r}: it is "raise" or "skip"')
    check_time_by(time_by)
    options = ReaderOptions(follow, time_by, on_bad_batch, read_ahead_bytes, [])
    async with open_source(source) as (opened, owned):
        chosen = await resolve_stream(opened, stream)
        if chosen is opened:
            # The handle may be from before the first record, when no columns were recorded.
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


def _partitions(stream: Stream, wanted: int | Sequence[int] | None) -> Sequence[int]:
    if wanted is None:
        return range(stream.partitions)
    several = isinstance(wanted, Iterable) and not isinstance(wanted, str | bytes)
    numbers: list[Any] = list(wanted) if several else [wanted]  # type: ignore[arg-type]
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
    queue_reader = stream.queue_reader(partition)
    state = (await queue_reader.state()).checked()
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
        sequence = await queue_reader.sequence_at_lsn(first_lsn)
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
