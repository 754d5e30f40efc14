"""Describes a segment of the tier (Parquet), or of a log on disk (RDLW, also of other software)."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

import xxhash

from headwater.cli.advice import command
from headwater.cli.inspect_command import InspectedObject, empty_object, fail_as_other, show_records
from headwater.cli.report import InspectionReport, Problem
from headwater.core.disk import OsDisk
from headwater.core.errors import Corrupt, HeadwaterError, NotSupported
from headwater.log.record.group import Group
from headwater.log.spool.codec import decode_group
from headwater.log.spool.folder import SEGMENT, Folder
from headwater.log.spool.frame import MAGIC, FrameHead, GroupKind, Window
from headwater.log.spool.scan import FileEnd, Survey, survey
from headwater.tier.segments import SegmentIndex, read_index
from headwater.tier.segments.columns import ID_KEY
from headwater.tier.segments.reading import decode_row_group
from headwater.tier.segments.seal import PARQUET_MAGIC

TIER_SEGMENT: Final = "segment of the tier, Parquet"
ROWS_SHOWN: Final = 20
_NAME: Final = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.parquet")
_TIER_CHECKS: Final = (
    ("ends with", "end"),
    ("not a segment of Headwater", "seal"),
    ("footer", "footer"),
    ("the description of the segment", "description"),
)


def describe_segment(source: InspectedObject, *, records: int) -> InspectionReport:
    """What a segment holds, with its first records."""
    data = memoryview(source.data)
    if not data:
        return empty_object("segment", "no segment, but an empty object")
    report = InspectionReport(TIER_SEGMENT, size_bytes=len(data))
    try:
        index = read_index(data, len(data))
    except (Corrupt, NotSupported) as error:
        # A damaged one is a Parquet file as well: what is wrong says more than that it is one.
        is_parquet = source.data.startswith(PARQUET_MAGIC)
        if is_parquet or not fail_as_other(report, source.data, "segment"):
            checks = (check for words, check in _TIER_CHECKS if words in str(error))
            report.fail(error, next(checks, "seal"))
        return report
    report.facts |= _tier_facts(index)
    _describe_contents(report, index)
    _judge_name(report, source, index)
    first = _read_all(report, index, data)
    _judge_body(report, index, data)
    if first is not None:
        show_records(
            report, first.records, records, index.description.rows, first_lsn=first.first_lsn
        )
    return report


def _tier_facts(index: SegmentIndex) -> dict[str, Any]:
    said = index.description
    return {
        "stream": said.stream,
        "stream_id": str(said.stream_id),
        "partition": said.partition,
        "segment_id": str(said.segment_id),
        "first_lsn": said.first_lsn,
        "last_lsn": said.last_lsn,
        "records": said.rows,
        "lost_lsns": said.last_lsn - said.first_lsn + 1 - said.rows,
        "terms": ", ".join(str(term) for term, _ in said.epochs),
        "latest_record_ms": said.max_timestamp_ms or None,
        "schema_version": said.schema_version or None,
        "sequences": None if said.sequences is None else "{} to {}".format(*said.sequences),
        "footer_size_bytes": len(index.seal.footer),
        "written_by": index.parquet.created_by,
    }


def _describe_contents(report: InspectionReport, index: SegmentIndex) -> None:
    """Its columns, runs of the same columns, and row groups."""
    sizes: dict[str, int] = {}
    for group in map(index.parquet.row_group, range(index.parquet.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            name = column.path_in_schema.partition(".")[0]
            sizes[name] = sizes.get(name, 0) + column.total_compressed_size
    columns = [
        {
            "column": field.name,
            "type": str(field.type),
            "field_id": int((field.metadata or {}).get(ID_KEY, b"-1")),
            "size_bytes": sizes.get(field.name.partition(".")[0], 0),
        }
        for field in index.parquet.schema.to_arrow_schema()
    ]
    report.table("columns", columns)
    said = index.description
    runs = [
        {
            "first_lsn": run.first_lsn,
            "last_lsn": run.last_lsn,
            "term": run.term,
            "columns": f"lost: {run.lost}"
            if run.schema is None
            else ", ".join(index.schemas[run.schema].names),
        }
        for run in said.runs[:ROWS_SHOWN]
    ]
    report.table("runs", runs, len(said.runs))
    groups = [
        {
            "first_lsn": group.first_lsn,
            "last_lsn": group.last_lsn,
            "records": group.rows,
            "offset": group.offset,
            "size_bytes": group.size_bytes,
            "latest_ms": group.max_timestamp_ms or None,
        }
        for group in said.row_groups[:ROWS_SHOWN]
    ]
    report.table("row_groups", groups, len(said.row_groups))


def _judge_name(report: InspectionReport, source: InspectedObject, index: SegmentIndex) -> None:
    name = _NAME.fullmatch(source.key)
    if name is not None and name[1] != str(index.description.segment_id):
        error = Corrupt(f"this is segment {index.description.segment_id}, under another's name")
        report.fail(error, "name")


def _read_all(report: InspectionReport, index: SegmentIndex, data: memoryview) -> Group | None:
    """Read every row group as a reader would; the first group of records."""
    first: Group | None = None
    said = index.description
    for number, stored in enumerate(said.row_groups):
        part = data[stored.offset : stored.offset + stored.size_bytes]
        try:
            groups = decode_row_group(index, number, part, said.first_lsn, said.last_lsn + 1)
        except Corrupt as error:
            report.fail(error, "row group", offset=stored.offset)
        else:
            first = first or groups[0]
    return first


def _judge_body(report: InspectionReport, index: SegmentIndex, data: memoryview) -> None:
    computed = xxhash.xxh3_128_digest(data[: index.seal.body_bytes])
    if computed == index.seal.body_xxh3:
        report.facts["checksum"] = f"XXH3 {computed.hex()} of the body matches"
    elif not report.problems:
        error = Corrupt(
            "the checksum of the body does not match, and those of all row groups do: what only "
            "other readers use, such as page indexes and bloom filters, was changed"
        )
        report.fail(error, "body")


LOG_SEGMENT: Final = "segment of a log, RDLW"
_UNREADABLE_FRAME: Final = "unreadable"


class _Bytes:
    """Bytes at hand, read as a file is."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def read_at(self, offset: int, length: int) -> bytes:
        return bytes(self._data[offset : offset + length])


def describe_log_segment(source: InspectedObject, *, frames: int) -> InspectionReport:
    """What a segment holds, with its last frames: its end is what one comes for."""
    data = source.data
    named = SEGMENT.fullmatch(source.key)
    report = InspectionReport(LOG_SEGMENT, size_bytes=len(data))
    if data and data[:4] != MAGIC and fail_as_other(report, data, "wal"):
        return report
    if not data and named is None:
        return empty_object("segment of a log", LOG_SEGMENT)
    folder_facts = _facts_beside(source) if named else {}
    window = Window(_Bytes(data), source.name, end=len(data))
    first_lsn = int(named[1]) if named else None
    surveyed = survey(window, first_lsn=first_lsn, last_lsn=folder_facts.get("reached_lsn", 0))
    report.facts |= _log_facts(surveyed, folder_facts)
    rows = [_frame_row(window, peeked) for peeked in surveyed.frames[-frames:]]
    report.table("last_frames", rows, len(surveyed.frames))
    _judge_end(report, surveyed)
    _judge_frames(report, window, surveyed)
    return report


def _facts_beside(source: InspectedObject) -> dict[str, Any]:
    """What the files beside a segment say of it."""
    folder = Path(source.name).resolve().parent
    if not os.path.isdir(folder):
        return {}
    listing = Folder(OsDisk(), str(folder)).listing()
    first_lsn = int(source.key[:20])
    later = [first for first in listing.segments if first > first_lsn]
    facts: dict[str, Any] = {}
    if listing.watermarks is not None:
        facts |= {
            "floor_lsn_beside": listing.watermarks.floor_lsn,
            "synced_lsn_beside": listing.watermarks.synced_lsn,
        }
    if later:
        facts["sealed"] = f"yes: the next segment begins at LSN {later[0]}"
        facts["reached_lsn"] = later[0] - 1
    elif listing.watermarks is not None:
        facts["sealed"] = "no: it is the last one"
        facts["reached_lsn"] = listing.watermarks.synced_lsn
    return facts


def _log_facts(surveyed: Survey, folder_facts: dict[str, Any]) -> dict[str, Any]:
    frames = surveyed.frames
    lost = sum(one.envelope is not None and one.envelope.kind == GroupKind.LOST for one in frames)
    return {
        "frames": len(frames),
        "versions": ", ".join(f"v{one}" for one in sorted({f.header.version for f in frames})),
        "groups": sum(one.envelope is not None for one in frames),
        "lost_ranges": lost,
        "first_lsn": frames[0].first_lsn if frames else None,
        "last_lsn": frames[-1].header.lsn if frames else None,
        "terms": ", ".join(str(one) for one in sorted({f.header.term or 0 for f in frames})),
        "synced_lsn": surveyed.scan.synced_lsn or None,
        "valid_size_bytes": surveyed.scan.valid_bytes,
        "ending": surveyed.scan.ending.value,
        **{name: value for name, value in folder_facts.items() if name != "reached_lsn"},
    }


def _frame_row(window: Window, peeked: FrameHead) -> dict[str, Any]:
    return {
        "offset": peeked.offset,
        "size_bytes": peeked.header.frame_bytes,
        "version": peeked.header.version,
        "term": peeked.header.term,
        "first_lsn": peeked.first_lsn,
        "last_lsn": peeked.header.lsn,
        "synced_lsn": peeked.envelope.synced_lsn if peeked.envelope else None,
        "written_ms": peeked.header.timestamp_ms,
        "columns": _frame_contents(window, peeked),
    }


def _frame_contents(window: Window, peeked: FrameHead) -> str:
    payload = window.payload(peeked)
    if payload is None:
        return "changed while it was read"
    try:
        group = decode_group(peeked.header, payload)
    except HeadwaterError as error:
        return f"{_UNREADABLE_FRAME}: {error}"
    return (
        f"lost: {group.lost}" if group.lost is not None else ", ".join(group.records.schema.names)
    )


def _judge_end(report: InspectionReport, surveyed: Survey) -> None:
    scan = surveyed.scan
    if scan.ending is FileEnd.CLEAN:
        return
    torn_bytes = scan.size_bytes - scan.valid_bytes
    head_words = f"; its head tells of LSN {scan.said_lsn}" if scan.said_lsn is not None else ""
    if not surveyed.frames and scan.said_lsn is None and scan.size_bytes >= len(MAGIC):
        error = Corrupt("no frame of a log begins here, and the file has none")
        report.fail(error, "frames", offset=0, advice="Name a segment of a log.")
        return
    if scan.ending is FileEnd.TORN:
        message = (
            f"torn: {torn_bytes:,} bytes after LSN {scan.last_lsn} are no whole frame, and nothing "
            f"says that they were synced{head_words}"
        )
        advice = "Open the log: it cuts them off, and they are written again."
        report.problems.append(Problem("end", message, scan.valid_bytes, advice, "TornTail"))
        return
    gone = ", ".join(map(str, surveyed.missing)) or f"LSN {scan.last_lsn + 1} on"
    message = (
        f"corrupt: {scan.why}"
        if scan.why is not None
        else (
            f"corrupt: the log was synced through LSN {scan.synced_lsn}, and {gone} cannot be read"
            f"{head_words}; {len(scan.later):,} whole frames follow"
        )
    )
    advice = (
        f"Repair with: {command()} log repair FOLDER --from COPY (or --tier URL --stream STREAM, "
        "or --buffer URL --stream STREAM)"
    )
    report.fail(Corrupt(message), "frames", offset=scan.valid_bytes, advice=advice)


def _judge_frames(report: InspectionReport, window: Window, surveyed: Survey) -> None:
    """Report the first frame that is complete and cannot be decoded: readers fail on it."""
    for peeked in surveyed.frames:
        contents = _frame_contents(window, peeked)
        if contents.startswith(_UNREADABLE_FRAME):
            message = f"LSN {peeked.first_lsn} to {peeked.header.lsn}: {contents}"
            advice = "Read the log before it and after it, and write those records again."
            report.fail(Corrupt(message), "frames", offset=peeked.offset, advice=advice)
            return
