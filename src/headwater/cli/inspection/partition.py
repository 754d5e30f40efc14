"""The whole queue of a partition: floors, what is acknowledged, chunks, pending, producers' marks.

Each part is read by itself, so that one that is damaged does not hide the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable
from typing import Any, Final, TypeVar

from headwater.buffer.queue.contract import QueueState
from headwater.buffer.queue.native.chunk import Chunk
from headwater.buffer.queue.native.chunks import Chunks
from headwater.buffer.queue.native.records import Queue
from headwater.buffer.queue.v1.manifest_format import decode_manifest
from headwater.buffer.queue.v1.side_object import V1Names
from headwater.buffer.stream import Stream
from headwater.buffer.stream.queues import queue_prefix
from headwater.cli.inspection.entries import check_entries
from headwater.cli.inspection.manifest import describe as describe_manifest
from headwater.cli.inspection.marks import check_marks, read_marks, show_marks
from headwater.cli.inspection.report import Problem, Report, Rows
from headwater.cli.queue_order import disorder
from headwater.core.errors import Corrupt, Damaged, NotFound, NotSupported, RolledBack

CHUNKS_LISTED: Final = 100_000
T = TypeVar("T")


async def inspect_partition(stream: Stream, partition: int, *, entries: int) -> Report:
    """How the queue of a partition stands, with its newest chunks and its producers."""
    looker = stream.looker(partition)
    prefix = queue_prefix(stream.config, partition)
    report = Report(f"queue of stream {stream.name}, partition {partition}")
    report.facts |= {"format": stream.config.format, "folder": prefix}
    state = await _part(report, "state", looker.state())
    wrong = None
    if state is not None:
        wrong = disorder(state)
        report.facts |= _state_facts(state, is_ordered=wrong is None)
    if wrong is not None:
        report.problems.append(Problem.of(RolledBack(wrong), "order of positions"))
    if stream.config.format == "v1":
        await _published(report, stream, prefix, entries)
    else:
        await _native(report, stream, prefix, entries)
    if state is not None and wrong is None:
        await _part(report, "entries", check_entries(report, stream, looker, state))
    return report


async def _part(report: Report, check: str, reading: Awaitable[T]) -> T | None:
    """What was read; None, and a problem in the report, if it is damaged or gone."""
    try:
        return await reading
    except (Damaged, NotSupported, NotFound) as error:
        # The same fault met on two ways is one problem.
        if all(problem.message != str(error) for problem in report.problems):
            report.problems.append(Problem.of(error, check))
        return None


def _state_facts(state: QueueState, *, is_ordered: bool) -> dict[str, Any]:
    counts = {
        "retained_batches": state.next_sequence - state.floor_sequence,
        "pending_batches": state.pending,
        "pending_records": state.next_lsn - state.acked_lsn,
        "pending_size_bytes": state.pending_bytes,
    }
    return {
        "owner": state.group or "nobody yet",
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


async def _native(report: Report, stream: Stream, prefix: str, shown: int) -> None:
    chunks = Chunks(stream.store, prefix, stream.id)
    # Before the chunks: a mark is written once its chunk is, so none points beyond those.
    marks = await read_marks(stream, prefix, lambda check, reading: _part(report, check, reading))
    numbers = await _chunk_numbers(chunks)
    # After the listing: what is missing below this floor was deleted on purpose.
    queue = await _part(report, "queue.json", chunks.floors())
    if queue is not None:
        report.facts |= {"chunk_floor": queue.chunk_floor, "batch_floor": queue.batch_floor}
        _check_numbers(report, chunks, numbers, queue)
    read = [number for number in numbers if queue is None or number >= queue.chunk_floor]
    found = [
        (await _part(report, f"chunk {number}", chunks.get(number)), number)
        for number in read[-shown:]
    ]
    held = [one.chunk for one, _ in found if one is not None]
    report.facts["chunks"] = len(read)
    report.tables.append(_chunk_rows(held, len(read)))
    _check_neighbours(report, chunks, held)
    # Where the last chunk cannot be read, that is the problem, and no mark is measured against it.
    if held and held[-1].number == read[-1]:
        check_marks(report, marks, held[-1])
    show_marks(report, marks, shown)


async def _chunk_numbers(chunks: Chunks) -> list[int]:
    numbers: list[int] = []
    async for meta in chunks.store.list(f"{chunks.prefix}/chunks"):
        number = chunks.number_of(meta.key)
        if number is not None:
            numbers.append(number)
        if len(numbers) >= CHUNKS_LISTED:
            break
    return numbers


def _check_numbers(report: Report, chunks: Chunks, numbers: list[int], queue: Queue) -> None:
    below = sum(number < queue.chunk_floor for number in numbers)
    if below:
        report.notes.append(f"{below:,} chunks below the floor wait for the collector")
    kept = [number for number in numbers if number >= queue.chunk_floor]
    expected = range(queue.chunk_floor, kept[-1] + 1 if kept else queue.chunk_floor + 1)
    missing = sorted(set(expected) - set(kept))
    if missing:
        problem = RolledBack(
            f"{chunks.key(missing[0])} is missing, and {len(missing) - 1:,} others: chunks from "
            "the floor to the last are never deleted"
        )
        report.problems.append(Problem.of(problem, "chunks without gaps"))


def _chunk_rows(held: list[Chunk], count: int) -> Rows:
    rows = [
        (
            chunk.number,
            "closed" if chunk.closed else "open",
            len(chunk.entries),
            chunk.first_sequence,
            chunk.first_lsn,
            chunk.next_lsn - chunk.first_lsn,
            chunk.bytes_through - chunk.bytes_before,
            chunk.openings,
        )
        for chunk in held
    ]
    columns = (
        "chunk",
        "state",
        "entries",
        "first_sequence",
        "first_lsn",
        "records",
        "size_bytes",
        "openings",
    )
    return Rows("newest_chunks", columns, rows, count if count > len(rows) else None)


def _check_neighbours(report: Report, chunks: Chunks, held: list[Chunk]) -> None:
    for before, after in itertools.pairwise(held):
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
        report.problems.append(Problem.of(Corrupt(problem), f"chunk {after.number}"))


async def _published(report: Report, stream: Stream, prefix: str, shown: int) -> None:
    names = V1Names(prefix, stream.id)
    try:
        data = bytes((await stream.store.get(names.manifest)).data)
    except NotFound:
        report.notes.append("there is no manifest: nothing was ever appended")
        return
    try:
        manifest = decode_manifest(data)
    except (Corrupt, NotSupported) as error:
        if all(str(error) not in problem.message for problem in report.problems):
            report.problems.append(Problem.of(error, "manifest"))
        return
    inner = Report("manifest")
    describe_manifest(inner, manifest, shown)
    report.facts |= {"entries": inner.facts["entries"], "manifest_size_bytes": len(data)}
    report.tables += inner.tables
    report.notes += inner.notes
