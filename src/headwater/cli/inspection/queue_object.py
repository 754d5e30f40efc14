"""Any object of a queue: a chunk, a register, or a segment of what was acknowledged."""

from __future__ import annotations

from typing import Final

from headwater.buffer.queue.v1 import acked
from headwater.buffer.queue.v1.side_object import V1Names
from headwater.cli.inspection.chunk import inspect_chunk
from headwater.cli.inspection.recognise import empty, mistaken, recognise
from headwater.cli.inspection.register import inspect_register
from headwater.cli.inspection.report import Problem, Report, Rows
from headwater.cli.inspection.source import Source
from headwater.core.errors import Corrupt, NotSupported

SEGMENT: Final = "segment of acknowledged entries, HWA1"


def inspect_queue_object(source: Source, *, entries: int) -> Report:
    """What an object of a queue holds."""
    data = source.data
    if not data:
        return Report("no part of a queue, but an empty object", 0, problems=[empty("queue")])
    if data[:3] == b"HWC":
        return inspect_chunk(source, entries=entries)
    if data[:3] == acked.MAGIC[:3]:
        return _segment(source, entries)
    if data[:1] == b"{" or source.key.endswith(".json"):
        return inspect_register(source, entries=entries)
    if source.key.isdigit() and not recognise(data):
        return inspect_chunk(source, entries=entries)
    report = Report("no part of a queue that is known", len(data))
    problem = Corrupt(
        f"these {len(data):,} bytes are no part of a queue: neither a chunk (HWC2), nor a "
        "register, nor a segment (HWA1)"
    )
    report.problems.append(mistaken(data, "queue") or Problem.of(problem, "kind", offset=0))
    return report


def _segment(source: Source, shown: int) -> Report:
    report = Report(SEGMENT, len(source.data))
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
    report.tables.append(Rows("acknowledged_entries", columns, rows, total))
    return report
