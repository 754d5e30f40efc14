"""Reading a stream without consuming it: fences nothing, and stores no position.

async for batch in read("s3://bucket/root", "orders", start="2026-01-31"):
    …
table = await read("s3://bucket/root", "orders").to_table()
"""

from __future__ import annotations

import functools
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
from headwater.buffer.stream.handle import check_source, explain_deletion, not_open, open_source
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


class ReadRange(NamedTuple):
    """What of a stream is read, and in which columns."""

    start: ReadBounds
    end: ReadBounds
    partition: int | Sequence[int] | None
    columns: Sequence[str] | None


class Reader:
    """The record batches of a stream, in the order of each partition, all with one schema.

    Without `follow` it reads one partition after the other; with it, in turn. It is opened by its
    `async with` block, by its first batch, or by `open()`; and it is closed by the block, after the
    last batch, or by `close()`. Use a block if you may stop before the end.
    """

    def __init__(
        self,
        source: str | Store | Stream,
        name: str | None,
        wanted: ReadRange,
        options: ReaderOptions,
    ) -> None:
        """Use `read`."""
        self.lost = options.lost
        """With on_bad_batch="skip": the unreadable records so far."""
        self.follows = options.follow
        self._source = source
        self._name = name
        self._wanted = wanted
        self._options = options
        self._opened: tuple[Stream, ReaderColumns] | None = None
        self._owned: Store | None = None
        """The store, if this reader opened it: then it also closes it."""
        self._parts: list[PartitionReader] = []
        self._is_closed = False

    @property
    def stream(self) -> Stream:
        """The stream, as it was when the reader was opened."""
        return self._while_open()[0]

    @property
    def schema(self) -> pa.Schema:
        """The columns of every batch."""
        return self._while_open()[1].schema

    def _while_open(self) -> tuple[Stream, ReaderColumns]:
        if self._opened is None:
            raise not_open("reader")
        return self._opened

    async def open(self) -> Reader:
        """Find the first and the last record to read; returns the reader. May be repeated."""
        if self._is_closed:
            raise Refused("this reader is closed: call read() again")
        if self._opened is None:
            async with open_source(self._source) as (opened, owned):
                stream = await resolve_stream(opened, self._name)
                if stream is opened:
                    # The handle may be from before the first record, when no columns were recorded.
                    stream = await stream.settled()
                parts, columns = await _open_partitions(stream, self._wanted, self._options)
                self._parts, self._owned = parts, owned
                self._opened = stream, columns
        return self

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        rows = await self.next_batch()
        if rows is None:
            await self.close()
            raise StopAsyncIteration
        return rows

    async def to_table(self) -> pa.Table:
        """All records, in memory."""
        check_ends(follow=self.follows)
        async with self:
            batches = [batch async for batch in self]
            return pa.Table.from_batches(batches, schema=self.schema)

    async def to_pandas(self, **options: Any) -> Any:
        """All records as a pandas DataFrame. Options are those of `pyarrow.Table.to_pandas`."""
        table = await self.to_table()
        return await runtime.run_blocking(functools.partial(to_frame, table, options))

    async def next_batch(self) -> pa.RecordBatch | None:
        """The next rows; None at the end. With `follow`, waits for more."""
        if self._opened is None and not self._is_closed:
            await self.open()
        polls = PollBackoff(FOLLOW_POLL_BASE_S, FOLLOW_POLL_CAP_S)
        while True:
            rows = await self._next()
            if rows is not None:
                return rows
            if all(part.is_over for part in self._parts) or not self.follows:
                return None
            await runtime.sleep(polls.next_s())

    async def __aenter__(self) -> Reader:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop reading ahead, and close what was opened for this reader."""
        self._is_closed = True
        parts, self._parts = self._parts, []
        for part in parts:
            await part.close()
        owned, self._owned = self._owned, None
        if owned is not None:
            await owned.close()

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
        _, columns = self._while_open()
        while (batch := await part.peek()) is not None:
            rows = part.cut(batch, columns.of(batch))
            part.skip()
            if rows.num_rows:
                return rows
        return None


def read(
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
) -> Reader:
    """Read a stream as Arrow record batches. Fences nothing, and stores no position.

    `start` (inclusive) and `end` (exclusive) are LSNs, "earliest", "latest" or times; a mapping
    has one for each partition. The defaults are the oldest retained record and the current end, or
    with `follow` no end. A time means the first record with this timestamp or a later one; with
    `time_by="ingestion"`, the first record ingested then or later. `Trimmed`, from the reader: the
    next record is not retained any more.
    """
    if on_bad_batch not in ("raise", "skip"):
        raise Refused(f'on_bad_batch is {on_bad_batch!r}: it is "raise" or "skip"')
    check_time_by(time_by)
    check_source(source, stream)
    wanted = ReadRange(start, end, partition, columns)
    options = ReaderOptions(follow, time_by, on_bad_batch, read_ahead_bytes, [])
    return Reader(source, stream, wanted, options)


def check_ends(*, follow: bool) -> None:
    if follow:
        raise Refused("a reader with follow=True never ends: iterate over it")


def to_frame(table: pa.Table, options: dict[str, Any]) -> Any:
    """The table as a pandas DataFrame."""
    try:
        return table.to_pandas(**options)
    except ModuleNotFoundError as error:
        raise Refused("pandas is not installed: pip install pandas") from error


async def _open_partitions(
    stream: Stream, wanted: ReadRange, options: ReaderOptions
) -> tuple[list[PartitionReader], ReaderColumns]:
    check_bounds(stream, wanted.start)
    check_bounds(stream, wanted.end)
    parts: list[PartitionReader] = []
    try:
        for number in _partitions(stream, wanted.partition):
            part = await _open_partition(stream, number, wanted.start, wanted.end, options)
            parts.append(part)
        columns = ReaderColumns(stream.schema, wanted.columns, version=stream.schema_version)
    except BaseException:
        for part in parts:
            await part.close()
        raise
    return parts, columns


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
