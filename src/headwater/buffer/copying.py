"""Copying a stream into a new one: the same records, in the same partitions, in the same order.

A copy is a producer. Its id names the source, and the metadata of every call has the source's LSN
with which the next call begins. An interrupted copy resumes there: the last accepted batch of each
partition has its position, and nothing is sent twice.

Always holds:

- the records of one call are in one batch, so that an accepted batch has one position;
- of two copies of one source into the same stream, the earlier one is fenced;
- readers of the copy see the same records, except for their positions and the metadata of their
  calls: a record without a timestamp gets its ingestion time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.consumer import Reader, read
from headwater.buffer.consumer.consumed_batch import LSN, ON_REQUEST, SHOWN
from headwater.buffer.consumer.dead_letter import GO_ON, UnreadableBatch
from headwater.buffer.producer import Producer
from headwater.buffer.producer.open_batches import BATCH_ROWS
from headwater.buffer.producer.record_columns import cut, defaults_for
from headwater.buffer.queue.contract import ProducerState, QueueState
from headwater.buffer.records import HEADERS, KEY, RESERVED, VALUE
from headwater.buffer.stream import Stream, create_stream, open_stream
from headwater.core.errors import AlreadyExists, Refused
from headwater.store import Store

SETTINGS: Final = (
    "partitions",
    "compression",
    "retention_ms",
    "retention_bytes",
    "gc_grace_ms",
    "segment_bytes",
    "segment_ms",
)
"""Settings of the source that the new stream gets; the others have their defaults."""
_RESERVED: Final = [name for name in (*SHOWN, *ON_REQUEST) if name in RESERVED]
_LEAVES_NOTHING_OUT: Final = (
    "a copy skips nothing: restore the object, and continue with resume=True; or read what can be "
    "read, and produce it into another stream"
)
_ANOTHER: Final = "Copy into a stream of another name"


class CopyPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The metadata of a call."""

    copy_of: str
    """The id of the source."""
    next_lsn: int
    """The source's LSN with which the next call begins."""
    records: int
    """The number of records copied into this partition, including this call."""


class CopyResult(msgspec.Struct, frozen=True):
    """The result for one partition."""

    partition: int
    records: int
    """Records copied by this run."""
    before: int
    """Records copied by earlier runs."""
    end_lsn: int
    """The source's end when this run began, where the run ended."""


CopyProgress = Callable[[int, int], None]
"""Called with the number of copied records, and the total."""


async def copy_stream(
    source: Stream,
    store: Store,
    name: str,
    *,
    resume: bool = False,
    progress: CopyProgress = lambda *_: None,
) -> list[CopyResult]:
    """Copy what a stream retains into a new one, up to its current end.

    With `resume` the new stream may exist, as an interrupted or older copy of this source; without
    it, that is `Refused`. `Trimmed`: retention deleted records before they were copied.
    `UnreadableBatch`: a batch of the source is missing or damaged.
    """
    if source.config.consumer == "nodes":
        raise Refused(
            f"stream {source.name!r} is consumed by nodes, and its history is in the tier, which "
            "is not read here: a copy would have only the latest records"
        )
    # The ends are read first: columns are recorded before they are written, so the schema that is
    # read afterwards has every column of the records before these ends.
    ends = [(await source.queue_reader(one).state()).checked() for one in range(source.partitions)]
    source = await _refreshed(source)
    target, infers_types = await _target(source, store, name, resume=resume)
    states = [await target.queue_reader(one).state() for one in range(target.partitions)]
    async with Producer(
        target, producer_id=f"copy-of-{source.id}", max_block_ms=None, delivery_timeout_ms=600_000
    ) as producer:
        starts = [
            _position(source, target, number, producer.resumed[number], states[number])
            for number in range(source.partitions)
        ]
        # Only now: columns stay, so a stream that is no copy must not get them.
        if infers_types and source.schema is not None:
            await target.recording(source.schema)
        total = sum(
            max(0, end.next_lsn - max(start.next_lsn, end.floor_lsn))
            for start, end in zip(starts, ends, strict=True)
        )
        run = _PartitionRun(source, producer, total, progress)
        return [
            await run.partition(number, starts[number], ends[number])
            for number in range(source.partitions)
        ]


class _PartitionRun:
    """One run of a copy."""

    def __init__(
        self, source: Stream, producer: Producer, total: int, progress: CopyProgress
    ) -> None:
        self._source = source
        self._producer = producer
        self._total = total
        self._progress = progress
        self._sent = 0
        typed = [] if source.schema is None else source.schema.names
        self._columns = [*(typed or [VALUE]), *_RESERVED, LSN]
        self._cut_bytes = max(1, producer.settings.batch_bytes // 2)

    async def partition(self, number: int, start: CopyPosition, state: QueueState) -> CopyResult:
        """Copy one partition up to its end, and wait until all of it is accepted."""
        end_lsn, records = state.next_lsn, start.records
        begin = start.next_lsn or state.floor_lsn
        if begin < end_lsn:
            reader = await read(
                self._source, start=begin, end=end_lsn, partition=number, columns=self._columns
            ).open()
            async with reader:
                while (rows := await _next_rows(reader)) is not None:
                    records = await self._send(rows, number, records)
        await self._producer.flush()
        return CopyResult(number, records - start.records, start.records, end_lsn)

    async def _send(self, rows: pa.RecordBatch, partition: int, records: int) -> int:
        for piece, _ in cut(rows, self._cut_bytes, BATCH_ROWS):
            records += piece.num_rows
            next_lsn = piece.column(LSN)[-1].as_py() + 1
            position = CopyPosition(self._source.id, next_lsn, records)
            await self._producer.produce_arrow(
                used_columns(piece.drop_columns([LSN]), self._source.name),
                msgspec.json.encode(position),
                partition=partition,
            )
            self._sent += piece.num_rows
            self._progress(self._sent, self._total)
        return records


async def _next_rows(reader: Reader) -> pa.RecordBatch | None:
    try:
        return await reader.next_batch()
    except UnreadableBatch as error:
        message = str(error).replace(f"or continue without it: {GO_ON}", _LEAVES_NOTHING_OUT)
        raise UnreadableBatch(message, descriptor=error.descriptor, cause=error.cause) from error


def used_columns(rows: pa.RecordBatch, stream: str) -> pa.RecordBatch:
    """The rows without the reserved columns that have only default values."""
    defaults = defaults_for(stream)
    names = (KEY, HEADERS, *defaults, "_refresh_records")
    columns = {name: rows.column(name) for name in names if name in rows.schema.names}
    unused = [name for name, column in columns.items() if _has_only(column, defaults.get(name))]
    return rows.drop_columns(unused) if unused else rows


def _has_only(column: pa.Array, value: pa.Scalar | None) -> bool:
    if value is None:
        return bool(column.null_count == len(column))
    return bool(pc.all(pc.equal(column, value), skip_nulls=False).as_py())


async def _refreshed(source: Stream) -> Stream:
    now = await open_stream(source.store, source.name)
    if now.id != source.id:
        raise Refused(
            f"stream {source.name!r} was deleted and created again: copy it from its start"
        )
    return now


async def _target(source: Stream, store: Store, name: str, *, resume: bool) -> tuple[Stream, bool]:
    """The stream to copy into, and whether it has yet to record the source's columns."""
    latest = source.config.schemas[-1] if source.config.schemas else None
    is_declared = latest is not None and latest.origin == "declared"
    settings = {setting: getattr(source.config, setting) for setting in SETTINGS}
    try:
        target = await create_stream(
            store, name, schema=source.schema if is_declared else None, **settings
        )
    except AlreadyExists as error:
        if not resume:
            raise Refused(
                f"stream {name!r} exists. {_ANOTHER}, or, if it is a copy of {source.name!r} that "
                "was interrupted, continue with --resume"
            ) from error
        target = await open_stream(store, name, writing=True)
    if target.id == source.id:
        raise Refused(f"stream {name!r} is the source itself. {_ANOTHER}")
    if target.partitions != source.partitions or target.config.format != "native":
        raise Refused(
            f"stream {name!r} has {target.partitions} partitions in the {target.config.format} "
            f"format, and {source.name!r} has {source.partitions}, to be copied into the native "
            f"one: it is not a copy. {_ANOTHER}"
        )
    return target, not is_declared


def _position(
    source: Stream, target: Stream, number: int, resumed: ProducerState, state: QueueState
) -> CopyPosition:
    """Where a partition's copy continues; `Refused` if the stream is not a copy of this source."""
    if not resumed.producer_sequence:
        if state.next_sequence:
            raise Refused(
                f"partition {number} of stream {target.name!r} has records that are not known to "
                f"be copied from {source.name!r}: it is not a copy, or its producer was forgotten, "
                f"as producers are after 7 silent days. {_ANOTHER}"
            )
        return CopyPosition(source.id, 0, 0)
    try:
        position = msgspec.json.decode(resumed.metadata or b"", type=CopyPosition)
    except msgspec.DecodeError as error:
        raise Refused(
            f"partition {number} of stream {target.name!r}: the last batch of its copy has no "
            f"position. {_ANOTHER}"
        ) from error
    if position.copy_of != source.id:
        other = f"a copy of another stream (id {position.copy_of})"
        raise Refused(f"stream {target.name!r} is {other}. {_ANOTHER}")
    return position
