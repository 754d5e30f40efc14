"""Describes objects of a queue: chunks, registers, segments of acknowledged entries, manifests."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any, Final

import xxhash

from headwater.buffer.queue.native.chunk import MAGIC, OVERHEAD_BYTES, decode_chunk
from headwater.buffer.queue.v1 import acked, manifest_format
from headwater.buffer.queue.v1.manifest_format import Manifest
from headwater.buffer.queue.v1.manifest_object import V1Names
from headwater.cli.inspect_command import (
    FailedCheck,
    InspectedObject,
    empty_object,
    fail_as_other,
    failed_checksum,
    failed_size,
    recognise,
)
from headwater.cli.inspect_register import describe_register
from headwater.cli.report import InspectionReport
from headwater.core.errors import Corrupt, HeadwaterError, NotSupported

ACKED_SEGMENT: Final = "segment of acknowledged entries, HWA1"


def describe_queue_object(source: InspectedObject, *, entries: int) -> InspectionReport:
    """What an object of a queue holds."""
    data = source.data
    if not data:
        return empty_object("part of a queue", "no part of a queue, but an empty object")
    if data[:3] == b"HWC":
        return describe_chunk(source, entries=entries)
    if data[:3] == acked.MAGIC[:3]:
        return _acked_segment(source, entries)
    if data[:1] == b"{" or source.key.endswith(".json"):
        return describe_register(source, entries=entries)
    if source.key.isdigit() and not recognise(data):
        return describe_chunk(source, entries=entries)
    report = InspectionReport("no part of a queue that is known", size_bytes=len(data))
    problem = Corrupt(
        f"these {len(data):,} bytes are no part of a queue: neither a chunk (HWC2), nor a "
        "register, nor a segment (HWA1)"
    )
    if not fail_as_other(report, data, "queue"):
        report.fail(problem, "kind", offset=0)
    return report


def _acked_segment(source: InspectedObject, limit: int) -> InspectionReport:
    report = InspectionReport(ACKED_SEGMENT, size_bytes=len(source.data))
    name = source.key or "the segment"
    try:
        segment = acked.decode_segment(V1Names("unknown", "unknown"), name, source.data)
    except (Corrupt, NotSupported) as error:
        check = "checksum" if "checksum" in str(error) else "contents"
        report.fail(error, check)
        return report
    header = segment.header
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
        {
            "sequence": one.sequence,
            "first_lsn": one.first_lsn,
            "records": one.rows,
            "size_bytes": one.size_bytes,
            "first_ingested_ms": one.min_ms,
            "location": one.location,
        }
        for one in segment.descriptors[:limit]
    ]
    report.table("acknowledged_entries", rows, header.entries)
    return report


CHUNK: Final = "chunk of a native queue, HWC2"
_CHUNK_NUMBER: Final = re.compile(r"[0-9]{20}")
_QUEUE_ID: Final = re.compile(r"/ingest/([0-9a-f-]{36})/chunks/[0-9]{20}$")


def describe_chunk(source: InspectedObject, *, entries: int) -> InspectionReport:
    """What a chunk holds, with its first entries."""
    data = source.data
    report = InspectionReport(CHUNK, size_bytes=len(data))
    number = int(source.key) if _CHUNK_NUMBER.fullmatch(source.key) else None
    queue_in_name = _QUEUE_ID.search(source.name)
    try:
        chunk = decode_chunk(
            data, queue_id=queue_in_name[1] if queue_in_name else None, number=number
        )
    except (Corrupt, NotSupported) as error:
        check, offset, detail = next(_failed_chunk_checks(data))
        report.fail(error, check, offset=offset, detail=detail)
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
    places = itertools.islice(zip(chunk.entries, chunk.places(), strict=True), entries)
    rows = [
        {
            "sequence": place.sequence,
            "first_lsn": place.first_lsn,
            "records": entry.rows,
            "size_bytes": entry.size_bytes,
            "first_ingested_ms": entry.min_ms,
            "earliest_timestamp_us": entry.min_timestamp_us,
            "latest_timestamp_us": entry.max_timestamp_us,
            "producer": chunk.owners[entry.owner].producer,
            "producer_sequence": entry.producer_sequence,
            "batch": entry.batch_id,
            "stands_in": "an object" if entry.inline is None else "this chunk",
            "metadata": entry.metadata,
        }
        for entry, place in places
    ]
    report.table("chunk_entries", rows, len(chunk.entries))
    blocks = [
        {
            "chunks": f"{block.first} to {block.first + block.size - 1}",
            "latest_ingested_ms": block.newest.ingested_ms,
            "latest_timestamp_us": block.newest.timestamp_us,
        }
        for block in chunk.blocks_before
    ]
    if blocks:
        report.table("times_before", blocks)
    if chunk.recent_openings:
        owners = [
            {"producer": owner.producer, "incarnation": owner.incarnation}
            for owner in chunk.recent_openings
        ]
        report.table("recent_openings", owners)
    return report


def _failed_chunk_checks(data: bytes) -> Iterator[FailedCheck]:
    """The checks that a reader makes, in its order: those that fail, and where."""
    size = len(data)
    if size < OVERHEAD_BYTES:
        yield FailedCheck("length")
        return
    if data[:4] != MAGIC:
        yield FailedCheck("magic", 0)
    stated = int.from_bytes(data[4:8], "little") + OVERHEAD_BYTES
    length = FailedCheck("length", 4, f"It tells of {stated:,} bytes in all")
    yield from failed_size(stated, size, length)
    yield from failed_checksum(data, size - 8)
    detail = "The checksum matches: it was written so, or is another's"
    yield FailedCheck("contents", None, detail)


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


def describe_manifest(source: InspectedObject, *, entries: int) -> InspectionReport:
    """What a manifest holds, with its first entries and their metadata."""
    report = InspectionReport(MANIFEST, size_bytes=len(source.data))
    if not source.data:
        return empty_object("manifest", "no manifest, but an empty object")
    try:
        manifest = manifest_format.decode_manifest(source.data)
    except _UNREADABLE as error:
        if not fail_as_other(report, source.data, "manifest"):
            _judge_manifest(report, source.data, error)
        if report.problems[0].check in ("kind", "version"):
            report.title = "no manifest that is known"
        return report
    add_manifest(report, manifest, entries)
    return report


def add_manifest(report: InspectionReport, manifest: Manifest, limit: int) -> None:
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
        report.remark("nothing is pending: everything was dequeued, or nothing was appended")
    elif gaps := manifest.next_sequence - pending[0].sequence - len(pending):
        report.remark(f"there are {gaps:,} gaps between sequences, which no known writer leaves")
    first = pending[:limit]
    rows: list[dict[str, Any]] = [
        {
            "sequence": entry.sequence,
            "location": entry.location,
            "metadata_items": len(entry.metadata),
        }
        for entry in first
    ]
    report.table("pending_entries", rows, len(pending))
    metadata = [
        {
            "sequence": entry.sequence,
            "first_record": item.start_index,
            "ingestion_time_ms": item.ingestion_time_ms,
            "payload": item.payload,
        }
        for entry in first
        for item in entry.metadata[:limit]
    ]
    if metadata:
        report.table("metadata", metadata)


def _judge_manifest(report: InspectionReport, data: bytes, error: HeadwaterError) -> None:
    message = str(error)
    check = next((name for words, name in _MANIFEST_CHECKS if words in message), "contents")
    try:
        lenient = manifest_format.decode_manifest(data, lenient=True)
    except _UNREADABLE:
        report.fail(error, check)
        return
    detail = f"Other implementations read it all the same, as {len(lenient.entries):,} entries"
    advice = "No known writer writes this. Find out who did, before a consumer goes on with it."
    report.fail(error, check, detail=detail, advice=advice)
