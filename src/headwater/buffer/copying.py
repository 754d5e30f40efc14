"""Copying a stream into a new one: the same records, in the same partitions, in the same order.

A copy is a producer. Its id names the source, and every call carries as metadata the LSN of the
source with which the next one begins. A copy that was cut off goes on from there: each partition's
last accepted batch tells how far it is, and nothing is sent twice.

Always holds:

- the records of one call go into one batch, so that a batch that was accepted tells a position;
- whoever copies the same source into the same stream at the same time is fenced;
- what the source's readers see of a record, but for where it stood and the metadata of its call,
  the copy's readers see: a record without a timestamp of its own gets the time of its ingestion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.consumer import AsyncReader, read_async
from headwater.buffer.consumer.consumed_batch import LSN, ON_REQUEST, SHOWN
from headwater.buffer.consumer.unreadable import GO_ON, UnreadableBatch
from headwater.buffer.producer import Producer
from headwater.buffer.producer.drafts import DRAFT_ROWS
from headwater.buffer.producer.pieces import ENTITY, cut
from headwater.buffer.queue.contract import ProducerState, QueueState
from headwater.buffer.records import HEADERS, KEY, OPERATION, RESERVED, VALUE, Operation
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
"""What the new stream takes over, besides the settings that are left to default."""
_RESERVED: Final = [name for name in (*SHOWN, *ON_REQUEST) if name in RESERVED]
_LEAVES_NOTHING_OUT: Final = (
    "a copy leaves nothing out, and goes on with resume=True once the object is back; to do "
    "without it, read what can be read and produce it into another stream"
)
_ANOTHER: Final = "Copy into a stream of another name"


class CopyPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the metadata of a call say."""

    copy_of: str
    """The id of the source."""
    next_lsn: int
    """In the source: where the next call begins."""
    records: int
    """How many were copied into this partition, with this call."""


class CopyResult(msgspec.Struct, frozen=True):
    """What became of one partition."""

    partition: int
    records: int
    """Copied by this run."""
    before: int
    """Copied by earlier ones."""
    end_lsn: int
    """In the source: where this run ended, which is the end it had when the run began."""


CopyProgress = Callable[[int, int], None]
"""How many records are copied, of how many."""


async def copy_stream(
    source: Stream,
    store: Store,
    name: str,
    *,
    resume: bool = False,
    progress: CopyProgress = lambda *_: None,
) -> list[CopyResult]:
    """Copy what a stream retains into a new one, up to the end that it has now.

    With `resume` the new stream may be there, as a copy of this source that was cut off or is
    behind; it is made if it is not. `Refused` otherwise. `Trimmed`: the source's retention took
    records before they were copied. `UnreadableBatch`: one of its batches is missing or damaged.
    """
    if source.config.consumer == "nodes":
        raise Refused(
            f"stream {source.name!r} is kept by nodes, and its history is in the tier, which is "
            "not read here: a copy would hold the latest records alone"
        )
    # The ends first: columns are recorded before they are written, so the schema that is read
    # afterwards has every column of the records before these ends.
    ends = [(await source.looker(one).state()).checked() for one in range(source.partitions)]
    source = await _refreshed(source)
    target, infers_types = await _target(source, store, name, resume=resume)
    states = [await target.looker(one).state() for one in range(target.partitions)]
    producer = await Producer.open(
        target, producer_id=f"copy-of-{source.id}", max_block_ms=None, delivery_timeout_ms=600_000
    )
    async with producer:
        starts = [
            _position(source, target, number, producer.resumed[number], states[number])
            for number in range(source.partitions)
        ]
        # Only now: columns stay, so a stream that is no copy must not get them.
        if infers_types and source.schema is not None:
            await target.recording(source.schema)
        run = _PartitionRun(source, producer, _total(starts, ends), progress)
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
            reader = await read_async(
                self._source, start=begin, end=end_lsn, partition=number, columns=self._columns
            )
            async with reader:
                while (rows := await _next_rows(reader)) is not None:
                    records = await self._send(rows, number, records)
        await self._producer.flush()
        return CopyResult(number, records - start.records, start.records, end_lsn)

    async def _send(self, rows: pa.RecordBatch, partition: int, records: int) -> int:
        for piece, _ in cut(rows, self._cut_bytes, DRAFT_ROWS):
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


async def _next_rows(reader: AsyncReader) -> pa.RecordBatch | None:
    try:
        return await reader.next_batch()
    except UnreadableBatch as error:
        message = str(error).replace(f"or go on without it: {GO_ON}", _LEAVES_NOTHING_OUT)
        raise UnreadableBatch(message, descriptor=error.descriptor, cause=error.cause) from error


def used_columns(rows: pa.RecordBatch, stream: str) -> pa.RecordBatch:
    """Without reserved columns in which nothing stands but what their absence means."""
    meaningless: dict[str, Any] = {
        KEY: None,
        HEADERS: None,
        OPERATION: int(Operation.INSERT),
        "_collection": stream,
        "_kind": ENTITY,
        "_rid": 0,
        "_refresh_records": None,
    }
    unused = [
        name
        for name, value in meaningless.items()
        if name in rows.schema.names and _is_throughout(rows.column(name), value)
    ]
    return rows.drop_columns(unused) if unused else rows


def _is_throughout(column: pa.Array, value: object) -> bool:
    if value is None:
        return bool(column.null_count == len(column))
    equal = pc.equal(column, pa.scalar(value, column.type))
    return bool(pc.all(equal, skip_nulls=False).as_py())


async def _refreshed(source: Stream) -> Stream:
    found = await open_stream(source.store, source.name)
    if found.id != source.id:
        raise Refused(f"stream {source.name!r} was deleted and made again: copy it from its start")
    return found


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
                "was cut off, go on with --resume"
            ) from error
        target = await open_stream(store, name, writing=True)
    if target.id == source.id:
        raise Refused(f"stream {name!r} is the source itself. {_ANOTHER}")
    if target.partitions != source.partitions or target.config.format != "native":
        raise Refused(
            f"stream {name!r} has {target.partitions} partitions in the {target.config.format} "
            f"format, and {source.name!r} has {source.partitions}, to be copied into the native "
            f"one: it is no copy. {_ANOTHER}"
        )
    return target, not is_declared


def _position(
    source: Stream, target: Stream, number: int, resumed: ProducerState, state: QueueState
) -> CopyPosition:
    """Where a partition's copy goes on; `Refused` if the stream there is no copy of this source."""
    if not resumed.producer_sequence:
        if state.next_sequence:
            raise Refused(
                f"partition {number} of stream {target.name!r} has records, and none of them is "
                f"known to be copied from {source.name!r}: it is no copy, or its producer was "
                f"forgotten, as any that is silent for 7 days. {_ANOTHER}"
            )
        return CopyPosition(source.id, 0, 0)
    try:
        found = msgspec.json.decode(resumed.metadata or b"", type=CopyPosition)
    except msgspec.DecodeError as error:
        raise Refused(
            f"partition {number} of stream {target.name!r}: the last batch of its copy does not "
            f"say how far it was. {_ANOTHER}"
        ) from error
    if found.copy_of != source.id:
        raise Refused(
            f"stream {target.name!r} is a copy of another stream (id {found.copy_of}). {_ANOTHER}"
        )
    return found


def _total(starts: list[CopyPosition], ends: list[QueueState]) -> int:
    pairs = zip(starts, ends, strict=True)
    return sum(max(0, end.next_lsn - max(start.next_lsn, end.floor_lsn)) for start, end in pairs)
