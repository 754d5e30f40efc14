"""A segment of the log, or a spool that another implementation wrote."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from headwater.cli.advice import command
from headwater.cli.inspection.recognise import empty, mistaken
from headwater.cli.inspection.report import Problem, Report, Rows
from headwater.cli.inspection.source import Source
from headwater.core.disk import OsDisk
from headwater.core.errors import Corrupt, HeadwaterError
from headwater.log.spool.codec import decode_group
from headwater.log.spool.folder import SEGMENT, Folder
from headwater.log.spool.frame import MAGIC, FrameHead, GroupKind, Window
from headwater.log.spool.scan import FileEnd, Survey, survey

KIND: Final = "segment of a log, RDLW"
_UNREADABLE: Final = "unreadable"


class _Bytes:
    """Bytes at hand, read as a file is."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def read_at(self, offset: int, length: int) -> bytes:
        return bytes(self._data[offset : offset + length])


def inspect_wal(source: Source, *, frames: int) -> Report:
    """What a segment holds, with its last frames: its end is what one comes for."""
    data = source.data
    named = SEGMENT.fullmatch(source.key)
    report = Report(KIND, len(data))
    other = mistaken(data, "wal") if data and data[:4] != MAGIC else None
    if other is not None:
        report.problems.append(other)
        return report
    if not data and named is None:
        report.problems.append(empty("wal"))
        return report
    beside = _known_beside(source) if named else {}
    window = Window(_Bytes(data), source.name, end=len(data))
    first_lsn = int(named[1]) if named else None
    found = survey(window, first_lsn=first_lsn, last_lsn=beside.get("reached_lsn", 0))
    report.facts |= _facts(found, beside)
    report.tables.append(_frames(window, found, frames))
    _judge(report, found)
    _judge_contents(report, window, found)
    return report


def _known_beside(source: Source) -> dict[str, Any]:
    """What the files beside a segment say of it."""
    folder = Path(source.name).resolve().parent
    if not os.path.isdir(folder):
        return {}
    listing = Folder(OsDisk(), str(folder)).listing()
    first_lsn = int(source.key[:20])
    later = [first for first in listing.segments if first > first_lsn]
    known: dict[str, Any] = {}
    if listing.watermarks is not None:
        known |= {
            "floor_lsn_beside": listing.watermarks.floor_lsn,
            "synced_lsn_beside": listing.watermarks.synced_lsn,
        }
    if later:
        known["sealed"] = f"yes: the next segment begins at LSN {later[0]}"
        known["reached_lsn"] = later[0] - 1
    elif listing.watermarks is not None:
        known["sealed"] = "no: it is the last one"
        known["reached_lsn"] = listing.watermarks.synced_lsn
    return known


def _facts(found: Survey, beside: dict[str, Any]) -> dict[str, Any]:
    frames = found.frames
    lost = sum(one.envelope is not None and one.envelope.kind == GroupKind.LOST for one in frames)
    return {
        "frames": len(frames),
        "versions": ", ".join(f"v{one}" for one in sorted({f.header.version for f in frames})),
        "groups": sum(one.envelope is not None for one in frames),
        "lost_ranges": lost,
        "first_lsn": frames[0].first_lsn if frames else None,
        "last_lsn": frames[-1].header.lsn if frames else None,
        "terms": ", ".join(str(one) for one in sorted({f.header.term or 0 for f in frames})),
        "synced_lsn": found.scan.synced_lsn or None,
        "valid_size_bytes": found.scan.valid_bytes,
        "ending": found.scan.ending.value,
        **{name: value for name, value in beside.items() if name != "reached_lsn"},
    }


def _frames(window: Window, found: Survey, shown: int) -> Rows:
    columns = (
        "offset",
        "size_bytes",
        "version",
        "term",
        "first_lsn",
        "last_lsn",
        "synced_lsn",
        "written_ms",
        "columns",
    )
    rows = [
        (
            peeked.offset,
            peeked.header.frame_bytes,
            peeked.header.version,
            peeked.header.term,
            peeked.first_lsn,
            peeked.header.lsn,
            peeked.envelope.synced_lsn if peeked.envelope else None,
            peeked.header.timestamp_ms,
            _contents(window, peeked),
        )
        for peeked in found.frames[-shown:]
    ]
    total = len(found.frames)
    return Rows("last_frames", columns, rows, total if total > len(rows) else None)


def _contents(window: Window, peeked: FrameHead) -> str:
    payload = window.payload(peeked)
    if payload is None:
        return "changed while it was read"
    try:
        group = decode_group(peeked.header, payload)
    except HeadwaterError as error:
        return f"{_UNREADABLE}: {error}"
    return (
        f"lost: {group.lost}" if group.lost is not None else ", ".join(group.records.schema.names)
    )


def _judge(report: Report, found: Survey) -> None:
    scan = found.scan
    if scan.ending is FileEnd.CLEAN:
        return
    left = scan.size_bytes - scan.valid_bytes
    said = f"; its head tells of LSN {scan.said_lsn}" if scan.said_lsn is not None else ""
    if not found.frames and scan.said_lsn is None and scan.size_bytes >= len(MAGIC):
        message = "no frame of a log begins here, and none stands in it"
        report.problems.append(Problem("frames", message, 0, "Name a segment of a log.", "Corrupt"))
        return
    if scan.ending is FileEnd.TORN:
        message = (
            f"torn: {left:,} bytes after LSN {scan.last_lsn} are no whole frame, and nothing says "
            f"that they were synced{said}"
        )
        advice = "Open the log: it cuts them off, and they are written again."
        report.problems.append(Problem("end", message, scan.valid_bytes, advice, "TornTail"))
        return
    gone = ", ".join(map(str, found.missing)) or f"LSN {scan.last_lsn + 1} on"
    message = (
        f"corrupt: {scan.why}"
        if scan.why is not None
        else (
            f"corrupt: the log was synced through LSN {scan.synced_lsn}, and {gone} cannot be read"
            f"{said}; {len(scan.later):,} whole frames follow"
        )
    )
    advice = (
        f"Mend it with: {command()} log repair FOLDER --from COPY (or --tier URL --stream STREAM, "
        "or --buffer URL --stream STREAM)"
    )
    problem = Problem("frames", message, scan.valid_bytes, advice, Corrupt.__name__)
    report.problems.append(problem)


def _judge_contents(report: Report, window: Window, found: Survey) -> None:
    """Say of the first frame that is whole and cannot be read: whoever reads the log meets it."""
    for peeked in found.frames:
        contents = _contents(window, peeked)
        if contents.startswith(_UNREADABLE):
            message = f"LSN {peeked.first_lsn} to {peeked.header.lsn}: {contents}"
            advice = "Read the log before it and after it, and write those records anew."
            problem = Problem("frames", message, peeked.offset, advice, Corrupt.__name__)
            report.problems.append(problem)
            return
