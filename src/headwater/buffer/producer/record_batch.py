"""Batches of records, from the first record to the result of the append.

    ProducerBatch    records of one partition: open, sealed, uploaded, attempted, done
    UnroutedBatch    small calls with keys, which are split by partition together

A handle is a batch and a range of its rows. The batch has the result for all of its handles, so
that a call costs no future of its own.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.arrow_stream import DeferredBytes
from headwater.buffer.batch import Batch, BatchTimes, Calls
from headwater.buffer.producer.record_columns import (
    PartitionRows,
    RecordLists,
    joined,
    joined_deferred,
    split,
    without_nulls,
)
from headwater.buffer.queue.contract import AppendedBatch, NewBatch
from headwater.core.portal import Portal

_NEVER: Final = -1
_NO_TIMES: Final = BatchTimes(0, 0, None, None)


class CallColumns(NamedTuple):
    """The calls that some records came with, as columns."""

    starts: list[int]
    times_ms: list[int]
    metadata: list[bytes | None]


@dataclass(slots=True, eq=False, repr=False)
class BaseBatch:
    """Records in the order of their calls. The accumulator's lock guards it until it is sealed."""

    shape: pa.Schema | None
    """The typed columns that all its records have; None if they have opaque values."""
    first_s: float
    """When its first record came: linger and delivery timeout count from here."""
    portal: Portal | None
    """Through which threads wait for the result; None if only the event loop does."""
    schema_version: int = 0
    """The oldest version of the stream's schema that one of its calls was fitted to."""
    rows: int = 0
    size_bytes: int = 0
    calls: int = 0
    pieces: list[RecordLists | pa.RecordBatch] = field(default_factory=list)
    lists: RecordLists | None = None
    """The last piece, while further values can be added to it."""
    starts: list[int] = field(default_factory=list)
    times_ms: list[int] = field(default_factory=list)
    metadata: list[bytes | None] = field(default_factory=list)
    call_ms: int = _NEVER
    """The time of the last call, if the next one may share its entry."""
    ends_call: bool = False
    """Whether a call ends in this batch; then `last_metadata` are those of the last such."""
    last_metadata: bytes | None = None
    is_sealed: bool = False
    timer: asyncio.TimerHandle | None = None
    """Linger while the batch is open, the delivery timeout afterwards."""
    _event: asyncio.Event | None = None

    def begin_call(self, now_ms: int, metadata: bytes | None, *, ends: bool = True) -> None:
        """The records that follow came with this call.

        A call without metadata shares its entry with the one before it if both have the same time:
        with one record a call, the entry must not cost more than the record. A call that continues
        in another batch does not `end` here, so a successor does not resume after it.
        """
        if metadata is not None or now_ms != self.call_ms:
            self.starts.append(self.rows)
            self.times_ms.append(now_ms)
            self.metadata.append(metadata)
            self.call_ms = now_ms if metadata is None else _NEVER
        if ends:
            self.ends_call, self.last_metadata = True, metadata

    def begin_calls(self, calls: CallColumns) -> None:
        """The records that follow came with these calls, which all end here."""
        self.starts.extend([self.rows + start for start in calls.starts])
        self.times_ms.extend(calls.times_ms)
        self.metadata.extend(calls.metadata)
        self.call_ms = calls.times_ms[-1] if calls.metadata[-1] is None else _NEVER
        self.ends_call, self.last_metadata = True, calls.metadata[-1]

    def value_lists(self) -> RecordLists:
        if self.lists is None:
            self.lists = RecordLists()
            self.pieces.append(self.lists)
        return self.lists

    def add_columns(self, records: pa.RecordBatch) -> None:
        self.pieces.append(records)
        self.lists = None
        self.rows += records.num_rows

    def free(self) -> None:
        self.pieces, self.lists = [], None
        self.starts, self.times_ms, self.metadata = [], [], []

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def wake(self) -> None:
        """Wake the tasks that wait for a change of this batch."""
        if self._event is not None:
            self._event.set()

    async def _woken(self) -> None:
        if self._event is None:
            self._event = asyncio.Event()
        await self._event.wait()


class BatchRange(NamedTuple):
    """Some rows of a batch: records of one call."""

    batch: ProducerBatch
    start: int
    rows: int


@dataclass(slots=True, eq=False, repr=False)
class ProducerBatch(BaseBatch):
    """Records of one partition, which become one batch of its queue."""

    is_routed: ClassVar[bool] = True

    partition: int = field(kw_only=True)
    sealed_s: float = 0.0
    # The sender's
    batch_id: str = ""
    producer_sequence: int = 0
    content: Batch | None = None
    encoded_bytes: int = 0
    times: BatchTimes = _NO_TIMES
    inline: bytes | None = None
    packed_calls: bytes = b""
    resume_metadata: bytes | None = None
    """Where a successor resumes once this batch has landed."""
    is_uploaded: bool = False
    """Whether it can be appended: it is uploaded, or goes inline in its entry."""
    is_attempted: bool = False
    """Whether it was part of an append, which may have landed whatever the answer was."""
    cause: BaseException | None = None
    """Why it is not accepted yet."""
    upload: asyncio.Task[None] | None = None
    # The result
    is_done: bool = False
    """Whether the handles have a result: accepted, or an error."""
    placed: AppendedBatch | None = None
    error: BaseException | None = None
    is_reported: bool = False
    """Whether a handle, `flush` or `close` has raised the error."""

    def build(self, defaults: Mapping[str, pa.Scalar], *, deferred: bool = False) -> Batch:
        """All records and calls as columns. Computes only; may run in a thread, once sealed.

        With `deferred`, values are written from where they are.
        """
        calls = Calls.from_columns(self.starts, self.times_ms, self.metadata)
        values: DeferredBytes | None = None
        first = self.pieces[0]
        if len(self.pieces) > 1 or not isinstance(first, RecordLists):
            pieces = [
                one.to_arrow() if isinstance(one, RecordLists) else one for one in self.pieces
            ]
            records, values = joined_deferred(pieces) if deferred else (joined(pieces), None)
        elif deferred:
            records, values = first.to_arrow_deferred()
        else:
            records = first.to_arrow()
        records = without_nulls(records, defaults, lambda: calls.per_record(self.rows)[0])
        return Batch(self.batch_id, records, calls, values)

    def entry(self) -> NewBatch:
        return NewBatch(
            batch_id=self.batch_id,
            producer_sequence=self.producer_sequence,
            rows=self.rows,
            size_bytes=self.encoded_bytes,
            **self.times._asdict(),
            metadata=self.resume_metadata,
            schema_version=self.schema_version,
            inline=self.inline,
            calls=self.packed_calls,
        )

    def cancel(self) -> None:
        self.cancel_timer()
        if self.upload is not None and self.upload is not asyncio.current_task():
            self.upload.cancel()
        self.content = None

    # The result

    def accept(self, placed: AppendedBatch) -> None:
        """It has landed, perhaps after a failure with an unknown outcome."""
        self.placed = placed
        self._end()

    def fail(self, error: BaseException) -> None:
        """It was dropped, or its outcome is unknown."""
        if not self.is_done:
            self.error = error
        self._end()

    async def wait(self) -> None:
        """Until it is accepted or failed."""
        if not self.is_done:
            await self._woken()

    def _end(self) -> None:
        self.is_done = True
        self.free()
        self.wake()

    def ranges(self, start: int, rows: int) -> list[BatchRange]:
        return [BatchRange(self, start, rows)]


class CallBatches(NamedTuple):
    """The batches of a call that was cut into several; none for a call without records."""

    parts: list[BatchRange]
    portal: Portal | None
    is_routed: bool = True

    def ranges(self, start: int, rows: int) -> list[BatchRange]:
        """All parts: it has one call."""
        return self.parts


class _Route(NamedTuple):
    batch: ProducerBatch
    start: int
    rows: memoryview | None
    """Which rows of the unrouted batch went there, rising; None if all of them."""


@dataclass(slots=True, eq=False, repr=False)
class UnroutedBatch(BaseBatch):
    """Small calls with keys, which are hashed together, not one by one.

    When it is large enough, or due, each partition's batch gets its rows.
    """

    _routes: list[_Route] = field(default_factory=list)

    def split(self, partitions: int, keyless: int) -> list[tuple[PartitionRows, CallColumns]]:
        """The records by partition, with their calls."""
        (lists,) = self.pieces
        assert isinstance(lists, RecordLists)
        shares = split(lists.to_arrow(), partitions, keyless)
        return [(share, self._calls_of(share)) for share in shares]

    def route(self, rows: pa.UInt64Array | None, batch: ProducerBatch) -> None:
        """These rows are added to the end of `batch`."""
        indices = None
        if rows is not None:
            indices = memoryview(rows.buffers()[1]).cast("Q")[rows.offset : rows.offset + len(rows)]
        self._routes.append(_Route(batch, batch.rows, indices))

    def close(self) -> None:
        """All rows have been routed."""
        self.is_sealed = True
        self.free()

    def _calls_of(self, share: PartitionRows) -> CallColumns:
        if share.rows is None or len(self.starts) == 1:
            starts = self.starts if share.rows is None else [0]
            return CallColumns(starts, self.times_ms, self.metadata)
        # The call of each row of the share: a call begins wherever it changes.
        ends = pa.array([*self.starts[1:], self.rows], pa.int32())
        calls = pa.RunEndEncodedArray.from_arrays(ends, pa.array(range(len(ends)), pa.int32()))
        of_row = pc.run_end_decode(calls).take(share.rows)
        changes = pc.indices_nonzero(pc.not_equal(of_row[1:], of_row[:-1]))
        starts = [0, *(row + 1 for row in changes.to_pylist())]
        chosen = of_row.take(pa.array(starts, pa.int64())).to_pylist()
        return CallColumns(
            starts, [self.times_ms[c] for c in chosen], [self.metadata[c] for c in chosen]
        )

    @property
    def is_routed(self) -> bool:
        """Whether the partitions of its records are known."""
        return self.is_sealed

    async def routed(self) -> None:
        """Until the partitions of its records are known."""
        if not self.is_sealed:
            await self._woken()

    def ranges(self, start: int, rows: int) -> list[BatchRange]:
        """Where these rows are, by partition."""
        ranges = []
        for batch, first, indices in self._routes:
            if indices is None:
                ranges.append(BatchRange(batch, first + start, rows))
                continue
            # A partition's rows stay in order, so the rows of one call are together there.
            low, high = bisect_left(indices, start), bisect_left(indices, start + rows)
            if high > low:
                ranges.append(BatchRange(batch, first + low, high - low))
        return ranges


OpenBatch: TypeAlias = ProducerBatch | UnroutedBatch
"""A batch that calls are added to."""
