"""A snapshot of the tier's events: what a metadata partition's events through an offset come to."""

from __future__ import annotations

import re
from typing import Any, Final

from headwater.cli.inspection.report import Problem, Report, Rows
from headwater.cli.inspection.source import Source
from headwater.core.errors import Corrupt, NotSupported
from headwater.tier.events import SegmentState
from headwater.tier.snapshot import PartitionDump, Snapshot, decode_snapshot

KIND: Final = "snapshot of the tier's events, HWT1"
ROWS_SHOWN: Final = 20
_NAME: Final = re.compile(r"snapshot-([0-9]{20})-[0-9a-f]{32}")


def inspect_event_snapshot(source: Source) -> Report:
    """What a snapshot holds, by partition of a stream."""
    report = Report(KIND, len(source.data))
    try:
        snapshot = decode_snapshot(source.data, source.key or "this snapshot")
    except (Corrupt, NotSupported) as error:
        check = "checksum" if "checksum" in str(error) else "contents"
        report.problems.append(Problem.of(error, check))
        return report
    report.facts |= {
        "log_id": str(snapshot.log_id),
        "metadata_partition": snapshot.partition,
        "metadata_partitions": snapshot.partition_count,
        "first_offset": snapshot.first_offset,
        "through_offset": snapshot.through_offset,
        "partitions": len(snapshot.dumps),
        "segments": sum(len(dumped.segments) for dumped in snapshot.dumps),
    }
    _judge_name(report, source, snapshot)
    report.tables.append(_rows(snapshot))
    return report


def _judge_name(report: Report, source: Source, snapshot: Snapshot) -> None:
    named = _NAME.fullmatch(source.key)
    if named is not None and int(named[1]) != snapshot.through_offset:
        error = Corrupt(
            f"this is the snapshot through {snapshot.through_offset:,}, under the name of the one "
            f"through {int(named[1]):,}: it was copied or renamed"
        )
        report.problems.append(Problem.of(error, "name"))


def _rows(snapshot: Snapshot) -> Rows:
    dumps = snapshot.dumps
    rows = [_row(dumped) for dumped in dumps[:ROWS_SHOWN]]
    columns = (
        "stream",
        "stream_id",
        "partition",
        "publisher_epoch",
        "listed",
        "finished",
        "highest_offset",
        "deletion",
    )
    return Rows("known", columns, rows, len(dumps) if len(dumps) > len(rows) else None)


def _row(dumped: PartitionDump) -> tuple[Any, ...]:
    place = dumped.partition
    highest = [offset for _, offset in dumped.highest if offset is not None]
    return (
        place.name,
        str(place.topic_id),
        place.partition,
        dumped.publisher_epoch,
        len(dumped.segments),
        sum(one.state is SegmentState.COPY_FINISHED for one in dumped.segments),
        max(highest, default=None),
        None if dumped.delete_state is None else dumped.delete_state.name,
    )
