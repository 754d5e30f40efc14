"""Objects of a queue: a chunk, a register, a segment of acknowledged entries, a v1 manifest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import xxhash

from headwater.buffer.queue.native.chunk import MAGIC, OVERHEAD_BYTES, Chunk, decode_chunk
from headwater.buffer.queue.v1 import acked, manifest_format
from headwater.buffer.queue.v1.manifest_format import Manifest, ManifestEntry
from headwater.buffer.queue.v1.manifest_object import V1Names
from headwater.cli.inspection.register import inspect_register
from headwater.cli.inspection.report import (
    InspectedObject,
    InspectionReport,
    Problem,
    ReportTable,
    empty_object,
    recognise,
    wrong_kind,
)
from headwater.core.errors import Corrupt, HeadwaterError, NotSupported

ACKED_SEGMENT: Final = "segment of acknowledged entries, HWA1"


def inspect_queue_object(source: InspectedObject, *, entries: int) -> InspectionReport:
    """What an object of a queue holds."""
    data = source.data
    if not data:
        return InspectionReport(
            "no part of a queue, but an empty object", 0, problems=[empty_object("queue")]
        )
    if data[:3] == b"HWC":
        return inspect_chunk(source, entries=entries)
    if data[:3] == acked.MAGIC[:3]:
        return _acked_segment(source, entries)
    if data[:1] == b"{" or source.key.endswith(".json"):
        return inspect_register(source, entries=entries)
    if source.key.isdigit() and not recognise(data):
        return inspect_chunk(source, entries=entries)
    report = InspectionReport("no part of a queue that is known", len(data))
    problem = Corrupt(
        f"these {len(data):,} bytes are no part of a queue: neither a chunk (HWC2), nor a "
        "register, nor a segment (HWA1)"
    )
    report.problems.append(wrong_kind(data, "queue") or Problem.of(problem, "kind", offset=0))
    return report


def _acked_segment(source: InspectedObject, shown: int) -> InspectionReport:
    report = InspectionReport(ACKED_SEGMENT, len(source.data))
    name = source.key or "the segment"
    try:
        found = acked.decode_segment(V1Names("unknown", "unknown"), name, source.data)
    except (Corrupt, NotSupported) as error:
        check = "checksum" if "checksum" in str(error) else "contents"
        report.problems.append(Problem.of(error, check))
        return report
    header = found.header
    report.facts |= {
        "entries": header.entries,
        "first_sequence": header.first_sequence,
        "next_sequence": header.next_sequence,
        "first_lsn": header.first_lsn,
        "next_lsn": header.next_lsn,
        "latest_ingested_ms": header.newest_ms,
        "token": header.token.hex(),
        "checksum": "CRC-32 matches",
    }
    rows = [
        (one.sequence, one.first_lsn, one.rows, one.size_bytes, one.min_ms, one.location)
        for one in found.descriptors[:shown]
    ]
    columns = ("sequence", "first_lsn", "records", "size_bytes", "first_ingested_ms", "location")
    total = header.entries if header.entries > len(rows) else None
    report.tables.append(ReportTable("acknowledged_entries", columns, rows, total))
    return report


CHUNK: Final = "chunk of a native queue, HWC2"
_CHUNK_NUMBER: Final = re.compile(r"[0-9]{20}")
_QUEUE_ID: Final = re.compile(r"/ingest/([0-9a-f-]{36})/chunks/[0-9]{20}$")


def inspect_chunk(source: InspectedObject, *, entries: int) -> InspectionReport:
    """What a chunk holds, with its first entries."""
    data = source.data
    report = InspectionReport(CHUNK, len(data))
    number = int(source.key) if _CHUNK_NUMBER.fullmatch(source.key) else None
    placed = _QUEUE_ID.search(source.name)
    try:
        chunk = decode_chunk(data, queue_id=placed[1] if placed else None, number=number)
    except (Corrupt, NotSupported) as error:
        check, offset, detail = next(_failed_chunk_checks(data))
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
        report.tables.append(ReportTable("times_before", columns, blocks))
    if chunk.recent_openings:
        owners = [(owner.producer, owner.incarnation) for owner in chunk.recent_openings]
        report.tables.append(ReportTable("recent_openings", ("producer", "incarnation"), owners))
    return report


def entry_rows(chunk: Chunk, shown: int) -> ReportTable:
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
    return ReportTable("chunk_entries", columns, rows, total)


def _failed_chunk_checks(data: bytes) -> Iterator[tuple[str, int | None, str]]:
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


MANIFEST: Final = "published v1 manifest"
_UNREADABLE: Final = (Corrupt, NotSupported)
_MANIFEST_CHECKS: Final = (
    ("its footer alone takes", "length"),
    ("manifest version", "version"),
    ("entry_count", "entry count"),
    ("follow the last entry", "bytes after the last entry"),
    ("follow the last metadata item", "bytes after the last metadata item"),
    ("metadata_count", "metadata count"),
    ("metadata item", "metadata item"),
    ("is not UTF-8", "location"),
    ("for its location", "location"),
    ("has sequence", "sequences"),
    ("entry at offset", "entry"),
)


def inspect_manifest(source: InspectedObject, *, entries: int) -> InspectionReport:
    """What a manifest holds, with its first entries and their metadata."""
    report = InspectionReport(MANIFEST, len(source.data))
    if not source.data:
        return InspectionReport(
            "no manifest, but an empty object", 0, problems=[empty_object("manifest")]
        )
    try:
        manifest = manifest_format.decode_manifest(source.data)
    except _UNREADABLE as error:
        report.problems.append(
            wrong_kind(source.data, "manifest") or _manifest_problem(source.data, error)
        )
        if report.problems[0].check in ("kind", "version"):
            report.kind = "no manifest that is known"
        return report
    describe_manifest(report, manifest, entries)
    return report


def describe_manifest(report: InspectionReport, manifest: Manifest, shown: int) -> None:
    """Add what a manifest holds to a report."""
    pending = manifest.entries
    report.facts |= {
        "entries": len(pending),
        "first_sequence": pending[0].sequence if len(pending) else None,
        "last_sequence": pending[-1].sequence if len(pending) else None,
        "next_sequence": manifest.next_sequence,
        "epoch": manifest.epoch,
    }
    if not len(pending):
        report.notes.append("nothing is pending: everything was dequeued, or nothing was appended")
    gaps = _sequence_gaps(manifest)
    if gaps:
        report.notes.append(
            f"there are {gaps:,} gaps between sequences, which no known writer leaves"
        )
    first = pending[:shown]
    total = len(pending) if len(pending) > len(first) else None
    report.tables.append(
        ReportTable(
            "pending_entries",
            ("sequence", "location", "metadata_items"),
            [(entry.sequence, entry.location, len(entry.metadata)) for entry in first],
            total,
        )
    )
    metadata = [row for entry in first for row in _metadata_rows(entry, shown)]
    if metadata:
        columns = ("sequence", "first_record", "ingestion_time_ms", "payload")
        report.tables.append(ReportTable("metadata", columns, metadata))


def _metadata_rows(entry: ManifestEntry, shown: int) -> list[tuple[int, int, int, bytes]]:
    return [
        (entry.sequence, item.start_index, item.ingestion_time_ms, item.payload)
        for item in entry.metadata[:shown]
    ]


def _sequence_gaps(manifest: Manifest) -> int:
    pending = manifest.entries
    if not len(pending):
        return 0
    return manifest.next_sequence - pending[0].sequence - len(pending)


def _manifest_problem(data: bytes, error: HeadwaterError) -> Problem:
    said = str(error)
    check = next((name for words, name in _MANIFEST_CHECKS if words in said), "contents")
    try:
        lenient = manifest_format.decode_manifest(data, lenient=True)
    except _UNREADABLE:
        return Problem.of(error, check)
    detail = f"Other implementations read it all the same, as {len(lenient.entries):,} entries"
    advice = "No known writer writes this. Find out who did, before a consumer goes on with it."
    return Problem.of(error, check, detail=detail, advice=advice)
