"""A published v1 manifest: a queue in one object."""

from __future__ import annotations

from typing import Final

from headwater.buffer.queue.v1 import manifest_format
from headwater.buffer.queue.v1.manifest_format import Manifest, ManifestEntry
from headwater.cli.inspection.recognise import empty, mistaken
from headwater.cli.inspection.report import Problem, Report, Rows
from headwater.cli.inspection.source import Source
from headwater.core.errors import Corrupt, HeadwaterError, NotSupported

KIND: Final = "published v1 manifest"
_UNREADABLE: Final = (Corrupt, NotSupported)
_CHECKS: Final = (
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


def inspect_manifest(source: Source, *, entries: int) -> Report:
    """What a manifest holds, with its first entries and their metadata."""
    report = Report(KIND, len(source.data))
    if not source.data:
        return Report("no manifest, but an empty object", 0, problems=[empty("manifest")])
    try:
        manifest = manifest_format.decode_manifest(source.data)
    except _UNREADABLE as error:
        report.problems.append(mistaken(source.data, "manifest") or _problem(source.data, error))
        if report.problems[0].check in ("kind", "version"):
            report.kind = "no manifest that is known"
        return report
    describe(report, manifest, entries)
    return report


def describe(report: Report, manifest: Manifest, shown: int) -> None:
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
    gaps = _gaps(manifest)
    if gaps:
        report.notes.append(
            f"there are {gaps:,} gaps between sequences, which no known writer leaves"
        )
    first = pending[:shown]
    total = len(pending) if len(pending) > len(first) else None
    report.tables.append(
        Rows(
            "pending_entries",
            ("sequence", "location", "metadata_items"),
            [(entry.sequence, entry.location, len(entry.metadata)) for entry in first],
            total,
        )
    )
    metadata = [row for entry in first for row in _metadata(entry, shown)]
    if metadata:
        columns = ("sequence", "first_record", "ingestion_time_ms", "payload")
        report.tables.append(Rows("metadata", columns, metadata))


def _metadata(entry: ManifestEntry, shown: int) -> list[tuple[int, int, int, bytes]]:
    return [
        (entry.sequence, item.start_index, item.ingestion_time_ms, item.payload)
        for item in entry.metadata[:shown]
    ]


def _gaps(manifest: Manifest) -> int:
    pending = manifest.entries
    if not len(pending):
        return 0
    return manifest.next_sequence - pending[0].sequence - len(pending)


def _problem(data: bytes, error: HeadwaterError) -> Problem:
    said = str(error)
    check = next((name for words, name in _CHECKS if words in said), "contents")
    try:
        lenient = manifest_format.decode_manifest(data, lenient=True)
    except _UNREADABLE:
        return Problem.of(error, check)
    detail = f"Other implementations read it all the same, as {len(lenient.entries):,} entries"
    advice = "No known writer writes this. Find out who did, before a consumer goes on with it."
    return Problem.of(error, check, detail=detail, advice=advice)
