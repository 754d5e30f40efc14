"""A chunk of a native queue."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import xxhash

from headwater.buffer.queue.native.chunk import MAGIC, OVERHEAD_BYTES, Chunk, decode_chunk
from headwater.cli.inspection.report import Problem, Report, Rows
from headwater.cli.inspection.source import Source
from headwater.core.errors import Corrupt, NotSupported

KIND: Final = "chunk of a native queue, HWC2"
_NUMBER: Final = re.compile(r"[0-9]{20}")
_QUEUE_ID: Final = re.compile(r"/ingest/([0-9a-f-]{36})/chunks/[0-9]{20}$")


def inspect_chunk(source: Source, *, entries: int) -> Report:
    """What a chunk holds, with its first entries."""
    data = source.data
    report = Report(KIND, len(data))
    number = int(source.key) if _NUMBER.fullmatch(source.key) else None
    placed = _QUEUE_ID.search(source.name)
    try:
        chunk = decode_chunk(data, queue_id=placed[1] if placed else None, number=number)
    except (Corrupt, NotSupported) as error:
        check, offset, detail = next(_failed_checks(data))
        report.problems.append(Problem.of(error, check, offset=offset, detail=detail))
        return report
    report.facts |= {
        "number": chunk.number,
        "queue_id": chunk.queue_id,
        "state": "closed: it never changes" if chunk.closed else "open: it may grow",
        "entries": len(chunk.entries),
        "first_sequence": chunk.first_sequence,
        "next_sequence": chunk.next_sequence,
        "first_lsn": chunk.first_lsn,
        "next_lsn": chunk.next_lsn,
        "batches_here_bytes": chunk.bytes_through - chunk.bytes_before,
        "batches_before_bytes": chunk.bytes_before,
        "batch_floor": chunk.batch_floor,
        "openings_of_producers": chunk.openings,
        "token": chunk.token.hex(),
        "checksum": f"XXH3 {xxhash.xxh3_64_hexdigest(data[:-8])} matches",
    }
    report.tables.append(entry_rows(chunk, entries))
    blocks = [
        (
            f"{block.first} to {block.first + block.size - 1}",
            block.newest.ingested_ms,
            block.newest.timestamp_us,
        )
        for block in chunk.blocks_before
    ]
    if blocks:
        columns = ("chunks", "latest_ingested_ms", "latest_timestamp_us")
        report.tables.append(Rows("times_before", columns, blocks))
    if chunk.recent_openings:
        owners = [(owner.producer, owner.incarnation) for owner in chunk.recent_openings]
        report.tables.append(Rows("recent_openings", ("producer", "incarnation"), owners))
    return report


def entry_rows(chunk: Chunk, shown: int) -> Rows:
    """The first entries of a chunk."""
    rows = [
        (
            place.sequence,
            place.first_lsn,
            entry.rows,
            entry.size_bytes,
            entry.min_ms,
            entry.min_timestamp_us,
            entry.max_timestamp_us,
            chunk.owners[entry.owner].producer,
            entry.producer_sequence,
            entry.batch_id,
            "an object" if entry.inline is None else "this chunk",
            entry.metadata,
        )
        for entry, place in list(zip(chunk.entries, chunk.places(), strict=True))[:shown]
    ]
    columns = (
        "sequence",
        "first_lsn",
        "records",
        "size_bytes",
        "first_ingested_ms",
        "earliest_timestamp_us",
        "latest_timestamp_us",
        "producer",
        "producer_sequence",
        "batch",
        "stands_in",
        "metadata",
    )
    total = len(chunk.entries) if len(chunk.entries) > len(rows) else None
    return Rows("chunk_entries", columns, rows, total)


def _failed_checks(data: bytes) -> Iterator[tuple[str, int | None, str]]:
    """The checks that a reader makes, in its order: those that fail, and where."""
    size = len(data)
    if size < OVERHEAD_BYTES:
        yield "length", None, ""
        return
    if data[:4] != MAGIC:
        yield "magic", 0, ""
    told = int.from_bytes(data[4:8], "little") + OVERHEAD_BYTES
    if told != size:
        way = f"{told - size:,} are missing" if told > size else f"{size - told:,} are too many"
        yield "length", 4, f"It tells of {told:,} bytes in all, so {way}"
    stored = int.from_bytes(data[-8:], "little")
    computed = xxhash.xxh3_64_intdigest(data[:-8])
    if stored != computed:
        yield "checksum", size - 8, f"It is {stored:016x}, and that of the bytes is {computed:016x}"
    yield "contents", None, "The checksum matches: it was written so, or stands in another's place"
