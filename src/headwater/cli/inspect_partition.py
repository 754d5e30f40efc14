"""Describes a partition's queue: floors, positions, chunks, pending batches, producers' marks.

Each part is read by itself, so that a damaged one does not hide the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from headwater.buffer.queue.contract import Descriptor, QueueReader, QueueState
from headwater.buffer.queue.native.chunk import Chunk
from headwater.buffer.queue.native.chunk_log import ChunkLog, QueueFloors
from headwater.buffer.queue.native.producers import ProducerRecord, ProducerShard, shard_register
from headwater.buffer.queue.v1.manifest_format import decode_manifest
from headwater.buffer.queue.v1.manifest_object import V1Names
from headwater.buffer.stream import Stream
from headwater.buffer.stream.handle import queue_prefix
from headwater.cli.inspect_queue import add_manifest
from headwater.cli.inspect_register import mark_rows
from headwater.cli.report import InspectionReport
from headwater.cli.stream_report import disorder
from headwater.cli.terminal import gather_bounded
from headwater.core.errors import Corrupt, Damaged, NotFound, NotSupported, RolledBack, Trimmed
from headwater.store.register import Revision

CHUNKS_LISTED: Final = 100_000
T = TypeVar("T")


async def describe_partition(stream: Stream, partition: int, *, entries: int) -> InspectionReport:
    """The state of a partition's queue, with its newest chunks and its producers."""
    queue_reader = stream.queue_reader(partition)
    prefix = queue_prefix(stream.config, partition)
    report = InspectionReport(f"queue of stream {stream.name}, partition {partition}")
    report.facts |= {"format": stream.config.format, "folder": prefix}
    state = await _part(report, "state", queue_reader.state())
    wrong = None
    if state is not None:
        wrong = disorder(state)
        report.facts |= _state_facts(state, is_ordered=wrong is None)
    if wrong is not None:
        report.fail(RolledBack(wrong), "order of positions")
    if stream.config.format == "v1":
        await _published(report, stream, prefix, entries)
    else:
        await _native(report, stream, prefix, entries)
    if state is not None and wrong is None:
        await _part(report, "entries", _check_entries(report, stream, queue_reader, state))
    return report


async def _part(report: InspectionReport, check: str, reading: Awaitable[T]) -> T | None:
    """What was read; None, and a problem in the report, if it is damaged or gone."""
    try:
        return await reading
    except (Damaged, NotSupported, NotFound) as error:
        # The same fault met on two ways is one problem.
        if all(problem.message != str(error) for problem in report.problems):
            report.fail(error, check)
        return None


def _state_facts(state: QueueState, *, is_ordered: bool) -> dict[str, Any]:
    counts = {
        "retained_batches": state.next_sequence - state.floor_sequence,
        "pending_batches": state.pending,
        "pending_records": state.pending_records,
        "pending_size_bytes": state.pending_bytes,
    }
    return {
        "owner": state.group or "none yet",
        "epoch": state.epoch,
        "floor_sequence": state.floor_sequence,
        "floor_lsn": state.floor_lsn,
        "acknowledged_below_sequence": state.acked_sequence,
        "acknowledged_below_lsn": state.acked_lsn,
        "next_sequence": state.next_sequence,
        "next_lsn": state.next_lsn,
        **(counts if is_ordered else dict.fromkeys(counts)),
        "oldest_pending_ms": state.oldest_pending_ms,
    }


async def _native(report: InspectionReport, stream: Stream, prefix: str, limit: int) -> None:
    chunks = ChunkLog(stream.store, prefix, stream.id)
    # Before the chunks: a mark is written once its chunk is, so none points beyond those.
    marks = await _read_marks(report, stream, prefix)
    numbers = await _chunk_numbers(chunks)
    # After the listing: what is missing below this floor was deleted on purpose.
    queue = await _part(report, "queue.json", chunks.floors())
    if queue is not None:
        report.facts |= {"chunk_floor": queue.chunk_floor, "batch_floor": queue.batch_floor}
        _check_numbers(report, chunks, numbers, queue)
    read = [number for number in numbers if queue is None or number >= queue.chunk_floor]
    loaded = [
        (await _part(report, f"chunk {number}", chunks.load(number)), number)
        for number in read[-limit:]
    ]
    newest = [one.chunk for one, _ in loaded if one is not None]
    report.facts["chunks"] = len(read)
    report.table("newest_chunks", [_chunk_row(chunk) for chunk in newest], len(read))
    _check_neighbours(report, chunks, newest)
    # Where the last chunk cannot be read, that is the problem, and no mark is measured against it.
    if newest and newest[-1].number == read[-1]:
        _check_marks(report, marks, newest[-1])
    report.facts |= {"producers": len(marks.rows), "producers_forgotten": marks.forgotten}
    if marks.rows:
        report.table("producers_marks", marks.rows[:limit], len(marks.rows))
    if not marks.is_all:
        report.remark(f"only the first {SHARDS_READ} objects with producers' marks were read")


async def _chunk_numbers(chunks: ChunkLog) -> list[int]:
    numbers: list[int] = []
    async for meta in chunks.store.list(chunks.folder):
        number = chunks.number_of(meta.key)
        if number is not None:
            numbers.append(number)
        if len(numbers) >= CHUNKS_LISTED:
            break
    return numbers


def _check_numbers(
    report: InspectionReport, chunks: ChunkLog, numbers: list[int], queue: QueueFloors
) -> None:
    below = sum(number < queue.chunk_floor for number in numbers)
    if below:
        report.remark(f"{below:,} chunks below the floor wait for the collector")
    retained = [number for number in numbers if number >= queue.chunk_floor]
    expected = range(queue.chunk_floor, retained[-1] + 1 if retained else queue.chunk_floor + 1)
    missing = sorted(set(expected) - set(retained))
    if missing:
        problem = RolledBack(
            f"{chunks.key(missing[0])} is missing, and {len(missing) - 1:,} others: chunks from "
            "the floor to the last are never deleted"
        )
        report.fail(problem, "chunks without gaps")


def _chunk_row(chunk: Chunk) -> dict[str, Any]:
    return {
        "chunk": chunk.number,
        "state": "closed" if chunk.closed else "open",
        "entries": len(chunk.entries),
        "first_sequence": chunk.first_sequence,
        "first_lsn": chunk.first_lsn,
        "records": chunk.next_lsn - chunk.first_lsn,
        "size_bytes": chunk.bytes_through - chunk.bytes_before,
        "openings": chunk.openings,
    }


def _check_neighbours(report: InspectionReport, chunks: ChunkLog, newest: list[Chunk]) -> None:
    for before, after in itertools.pairwise(newest):
        if after.number != before.number + 1:
            continue
        if not before.closed:
            problem = f"{chunks.key(before.number)} is open, and a chunk follows it"
        elif (after.first_sequence, after.first_lsn, after.bytes_before) != (
            before.next_sequence,
            before.next_lsn,
            before.bytes_through,
        ):
            problem = (
                f"{chunks.key(after.number)} begins at sequence {after.first_sequence:,} and LSN "
                f"{after.first_lsn:,}, and the chunk before it ends at {before.next_sequence:,} "
                f"and {before.next_lsn:,}"
            )
        else:
            continue
        report.fail(Corrupt(problem), f"chunk {after.number}")


async def _published(report: InspectionReport, stream: Stream, prefix: str, limit: int) -> None:
    names = V1Names(prefix, stream.id)
    try:
        data = bytes((await stream.store.get(names.manifest)).data)
    except NotFound:
        report.remark("there is no manifest: nothing was ever appended")
        return
    try:
        manifest = decode_manifest(data)
    except (Corrupt, NotSupported) as error:
        if all(str(error) not in problem.message for problem in report.problems):
            report.fail(error, "manifest")
        return
    inner = InspectionReport("manifest")
    add_manifest(inner, manifest, limit)
    report.facts |= {"entries": inner.facts["entries"], "manifest_size_bytes": len(data)}
    report.tables += inner.tables
    report.notes += inner.notes


LOOKED_AT: Final = 100
"""Of the oldest, and as many of the newest."""


async def _check_entries(
    report: InspectionReport, stream: Stream, queue_reader: QueueReader, state: QueueState
) -> None:
    """Look for the objects of the oldest and the newest retained entries."""
    entries = await _oldest_and_newest(queue_reader, state)
    in_objects = [one for one in entries if one.inline is None and not one.duplicate]
    retained = state.next_sequence - state.floor_sequence
    if len(entries) < retained:
        report.remark(
            f"objects were looked for of the oldest {LOOKED_AT} and the newest {LOOKED_AT} of "
            f"{retained:,} retained batches, not of those between"
        )
    missing = await _missing_objects(stream, in_objects)
    if not missing:
        return
    # What is gone by now may have been acknowledged and collected while it was looked for.
    floor = await queue_reader.floor()
    gone = [one for one in missing if one.sequence >= floor.sequence]
    if gone:
        more = f", and those of {len(gone) - 1:,} others" if len(gone) > 1 else ""
        problem = RolledBack(
            f"{gone[0].location}, the object of batch {gone[0].sequence:,}, is missing{more}: a "
            "batch that is retained is never deleted"
        )
        advice = (
            "Restore it from a backup; or read past it with --skip-unreadable, which names what "
            "is lost."
        )
        report.fail(problem, "batch objects", advice=advice)


async def _oldest_and_newest(queue_reader: QueueReader, state: QueueState) -> list[Descriptor]:
    """The oldest and the newest entries, each once."""
    while True:
        try:
            oldest = await queue_reader.after(None, LOOKED_AT)
            last_sequence = oldest[-1].sequence if oldest else -1
            start = max(last_sequence, state.next_sequence - 1 - LOOKED_AT)
            return oldest + (await queue_reader.after(start, LOOKED_AT) if oldest else [])
        except Trimmed:
            continue  # collected meanwhile: the oldest are others


async def _missing_objects(stream: Stream, entries: Sequence[Descriptor]) -> list[Descriptor]:
    async def is_missing(one: Descriptor) -> bool:
        try:
            # Other software may have chosen the name, where the format is not ours alone.
            await stream.store.head(one.location, foreign=one.format == "v1")
        except NotFound:
            return True
        return False

    missing = await gather_bounded(is_missing, entries)
    return [one for one, is_gone in zip(entries, missing, strict=True) if is_gone]


SHARDS_READ: Final = 64


@dataclass(slots=True)
class ProducerMarks:
    """What was read of the producers' records."""

    producers: dict[str, ProducerRecord] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    forgotten: int = 0
    is_all: bool = True


async def _read_marks(report: InspectionReport, stream: Stream, prefix: str) -> ProducerMarks:
    folder = f"{prefix}/producers"
    names = []
    async for meta in stream.store.list(folder):
        names.append(meta.key.removeprefix(f"{folder}/").removesuffix(".json"))
        if len(names) > SHARDS_READ:
            break
    marks = ProducerMarks(is_all=len(names) <= SHARDS_READ)

    async def shard(name: str) -> Revision[ProducerShard] | None:
        register = shard_register(stream.store, prefix, name)
        return await _part(report, f"producers/{name}.json", register.read())

    for found in await gather_bounded(shard, names[:SHARDS_READ]):
        if found is not None:
            marks.producers |= found.value.producers
            marks.rows += mark_rows(found.value)
            marks.forgotten += found.value.dropped
    marks.rows.sort(key=lambda row: -row["seen_ms"])
    return marks


def _check_marks(report: InspectionReport, marks: ProducerMarks, last: Chunk) -> None:
    beyond = [name for name, one in sorted(marks.producers.items()) if _is_beyond(one, last)]
    if not beyond:
        return
    more = f", and those of {len(beyond) - 1:,} others" if len(beyond) > 1 else ""
    problem = RolledBack(
        f"the mark of producer {beyond[0]!r} points beyond the end of the queue, which is chunk "
        f"{last.number:,} and sequence {last.next_sequence:,}{more}: a mark is written after its "
        "batch, so the end of the queue went back"
    )
    report.fail(problem, "producers' marks")


def _is_beyond(producer: ProducerRecord, last: Chunk) -> bool:
    mark = producer.mark
    if producer.anchor > last.number:
        return True
    return mark is not None and (
        mark.chunk > last.number
        or mark.sequence >= last.next_sequence
        or mark.first_lsn > last.next_lsn
    )
