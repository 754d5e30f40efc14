"""A remote segment: which records it holds, where, and whether every byte is as it was written."""

from __future__ import annotations

import re
from typing import Any, Final

import xxhash

from headwater.cli.inspection.recognise import empty, mistaken
from headwater.cli.inspection.record_rows import record_rows
from headwater.cli.inspection.report import Problem, Report, Rows
from headwater.cli.inspection.source import Source
from headwater.core.errors import Corrupt, HeadwaterError, NotSupported
from headwater.log.record.group import Group
from headwater.tier.segments import SegmentIndex, read_index
from headwater.tier.segments.columns import ID_KEY
from headwater.tier.segments.footer import PARQUET_MAGIC
from headwater.tier.segments.reading import decode_row_group

KIND: Final = "segment of the tier, Parquet"
ROWS_SHOWN: Final = 20
_NAME: Final = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.parquet")
_CHECKS: Final = (
    ("ends with", "end"),
    ("no segment of Headwater", "seal"),
    ("footer", "footer"),
    ("says of itself", "description"),
)


def inspect_segment(source: Source, *, records: int) -> Report:
    """What a segment holds, with its first records."""
    data = memoryview(source.data)
    if not data:
        return Report("no segment, but an empty object", 0, problems=[empty("segment")])
    report = Report(KIND, len(data))
    try:
        index = read_index(data, len(data))
    except (Corrupt, NotSupported) as error:
        # A damaged one is a Parquet file as well: what is wrong says more than that it is one.
        is_parquet = source.data.startswith(PARQUET_MAGIC)
        other = None if is_parquet else mistaken(source.data, "segment")
        report.problems.append(other or Problem.of(error, _check(error)))
        return report
    report.facts |= _facts(index)
    report.tables += [_columns(index), _runs(index), _row_groups(index)]
    _judge_name(report, source, index)
    first = _read_all(report, index, data)
    _judge_body(report, index, data)
    if first is not None:
        report.tables += record_rows(
            first.records, records, index.description.rows, first_lsn=first.first_lsn
        )
    return report


def _check(error: HeadwaterError) -> str:
    return next((check for words, check in _CHECKS if words in str(error)), "seal")


def _facts(index: SegmentIndex) -> dict[str, Any]:
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


def _columns(index: SegmentIndex) -> Rows:
    groups = [index.parquet.row_group(number) for number in range(index.parquet.num_row_groups)]
    sizes: dict[str, int] = {}
    for group in groups:
        for number in range(group.num_columns):
            column = group.column(number)
            name = column.path_in_schema.partition(".")[0]
            sizes[name] = sizes.get(name, 0) + column.total_compressed_size
    rows: list[tuple[Any, ...]] = [
        (
            field.name,
            str(field.type),
            int((field.metadata or {}).get(ID_KEY, b"-1")),
            sizes.get(field.name.partition(".")[0], 0),
        )
        for field in index.parquet.schema.to_arrow_schema()
    ]
    return Rows("columns", ("column", "type", "field_id", "size_bytes"), rows)


def _runs(index: SegmentIndex) -> Rows:
    runs = index.description.runs
    rows: list[tuple[Any, ...]] = [
        (
            run.first_lsn,
            run.last_lsn,
            run.term,
            f"lost: {run.lost}"
            if run.schema is None
            else ", ".join(index.schemas[run.schema].names),
        )
        for run in runs[:ROWS_SHOWN]
    ]
    columns = ("first_lsn", "last_lsn", "term", "columns")
    return Rows("runs", columns, rows, len(runs) if len(runs) > len(rows) else None)


def _row_groups(index: SegmentIndex) -> Rows:
    groups = index.description.row_groups
    rows: list[tuple[Any, ...]] = [
        (
            group.first_lsn,
            group.last_lsn,
            group.rows,
            group.offset,
            group.size_bytes,
            group.max_timestamp_ms or None,
        )
        for group in groups[:ROWS_SHOWN]
    ]
    columns = ("first_lsn", "last_lsn", "records", "offset", "size_bytes", "latest_ms")
    return Rows("row_groups", columns, rows, len(groups) if len(groups) > len(rows) else None)


def _judge_name(report: Report, source: Source, index: SegmentIndex) -> None:
    named = _NAME.fullmatch(source.key)
    if named is not None and named[1] != str(index.description.segment_id):
        error = Corrupt(f"this is segment {index.description.segment_id}, under another's name")
        report.problems.append(Problem.of(error, "name"))


def _read_all(report: Report, index: SegmentIndex, data: memoryview) -> Group | None:
    """Read every row group as a reader would; the first group of records."""
    first: Group | None = None
    said = index.description
    for number, stored in enumerate(said.row_groups):
        part = data[stored.offset : stored.offset + stored.size_bytes]
        try:
            groups = decode_row_group(index, number, part, said.first_lsn, said.last_lsn + 1)
        except Corrupt as error:
            report.problems.append(Problem.of(error, "row group", offset=stored.offset))
        else:
            first = first or groups[0]
    return first


def _judge_body(report: Report, index: SegmentIndex, data: memoryview) -> None:
    found = xxhash.xxh3_128_digest(data[: index.seal.body_bytes])
    if found == index.seal.body_xxh3:
        report.facts["checksum"] = f"XXH3 {found.hex()} of the body matches"
    elif not report.problems:
        error = Corrupt(
            "the checksum of the body does not match, and those of all row groups do: what only "
            "other readers use, such as page indexes and bloom filters, was changed"
        )
        report.problems.append(Problem.of(error, "body"))
