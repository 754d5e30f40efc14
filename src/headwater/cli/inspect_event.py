"""Describes a metadata event about a remote segment, as Kafka writes it."""

from __future__ import annotations

import re
import uuid
from typing import Any, Final

from headwater.cli.inspect_command import InspectedObject, empty_object, fail_as_other
from headwater.cli.report import InspectionReport
from headwater.core.errors import (
    Corrupt,
    HeadwaterError,
    LimitExceeded,
    NotFound,
    NotSupported,
    Unavailable,
)
from headwater.tier.event_codec import METADATA_PARTITIONS, decode_event, metadata_partition_for
from headwater.tier.eventlog import (
    EventDelivered,
    EventUnreadable,
    MetadataEventLog,
    PartitionFailed,
)
from headwater.tier.eventlog.stored_events import FAMILY, read_event_object, token_of
from headwater.tier.events import (
    MetadataEvent,
    PartitionDelete,
    SegmentMetadata,
    SegmentState,
    partition_of,
    unstamp,
)
from headwater.tier.snapshot import FAMILY as SNAPSHOT_FAMILY
from headwater.tier.snapshot import PartitionDump, Snapshot, decode_snapshot

STORED_KIND: Final = "no event of a stored log that can be read"
_UNREADABLE: Final = (Corrupt, NotSupported, LimitExceeded)
_CHECKS: Final = (
    ("bytes follow the event", "end"),
    ("there is no state", "state"),
    ("name", "name"),
    ("the event is not valid", "contents"),
)
_NAME: Final = re.compile(r"(?:^|/)([0-9]+)/([0-9]{20})$")
"""Of an event in a store: its metadata partition and its offset."""


def describe_event(source: InspectedObject) -> InspectionReport:
    """What an event says: by itself, as an object of a stored log, or in a snapshot."""
    data = source.data
    if not data:
        return empty_object("metadata event", "no event, but an empty object")
    if data.startswith(FAMILY):
        return _inspect_object(source)
    if data.startswith(SNAPSHOT_FAMILY):
        return describe_snapshot(source)
    try:
        event = decode_event(data)
    except _UNREADABLE as error:
        report = InspectionReport("no metadata event that is known", size_bytes=len(data))
        if fail_as_other(report, data, "event"):
            return report
        if _NAME.search(source.name):
            # Named as an event of a stored log: what it should be is known, and it is not.
            return _inspect_object(source)
        report.fail(error, _check(error))
        return report
    report = InspectionReport(_event_kind(event), size_bytes=len(data))
    _describe(report, event)
    return report


def describe_logged(log_id: uuid.UUID, event: EventDelivered) -> InspectionReport:
    """What an event says, and its place in its log."""
    report = describe_event(InspectedObject("", event.payload))
    report.facts = {
        "log_id": str(log_id),
        "log_partition": event.partition,
        "log_offset": event.offset,
        "epoch_beside": event.publisher_epoch,
    } | report.facts
    return report


async def describe_in_log(log: MetadataEventLog, partition: int, offset: int) -> InspectionReport:
    """The event at an offset of a log; `NotFound` if there is none."""
    end = (await log.high_water_marks([partition])).get(partition)
    if end is None:
        raise Unavailable(f"the log does not say how far metadata partition {partition} goes")
    if offset >= end:
        raise NotFound(f"metadata partition {partition} ends at {end:,}: {offset:,} is not there")
    subscription = await log.subscribe({partition: offset})
    item = await anext(subscription)
    if isinstance(item, PartitionFailed):
        raise item.error
    if isinstance(item, EventUnreadable) and item.offset == offset:
        report = InspectionReport("no metadata event that can be read", size_bytes=0)
        report.fail(item.error, "event")
        return report
    if isinstance(item, EventDelivered) and item.offset == offset:
        return describe_logged(log.log_id, item)
    raise NotFound(
        f"metadata partition {partition} has no event at {offset:,}: it is compacted, or the "
        "marker of a transaction"
    )


def _inspect_object(source: InspectedObject) -> InspectionReport:
    try:
        log_id, event = read_event_object(source.key or "this object", source.data)
    except _UNREADABLE as error:
        report = InspectionReport(STORED_KIND, size_bytes=len(source.data))
        report.fail(error, "checksum" if "checksum" in str(error) else "object")
        return report
    report = describe_logged(log_id, event)
    report.size_bytes = len(source.data)
    report.facts["token"] = token_of(source.data).hex()
    named = _NAME.search(source.name)
    if named is not None and (int(named[1]), int(named[2])) != (event.partition, event.offset):
        moved = Corrupt(
            f"this is event {event.offset:,} of metadata partition {event.partition}, under the "
            f"name of event {int(named[2]):,} of {named[1]}: it was copied or renamed"
        )
        report.fail(moved, "name")
    return report


def _event_kind(event: MetadataEvent) -> str:
    if isinstance(event, SegmentMetadata):
        return "metadata event, segment"
    if isinstance(event, PartitionDelete):
        return "metadata event, partition delete"
    return "metadata event, update of a segment"


def _check(error: HeadwaterError) -> str:
    if isinstance(error, NotSupported):
        return "kind"
    if isinstance(error, LimitExceeded):
        return "limit"
    return next((check for words, check in _CHECKS if words in str(error)), "fields")


def _describe(report: InspectionReport, event: MetadataEvent) -> None:
    partition = partition_of(event)
    report.facts |= {
        "stream": partition.name,
        "stream_id": str(partition.topic_id),
        "partition": partition.partition,
        "metadata_partition": metadata_partition_for(partition, METADATA_PARTITIONS),
    }
    if not isinstance(event, PartitionDelete):
        report.facts["segment_id"] = str(event.segment_id.id)
    report.facts["state"] = event.state.name
    if isinstance(event, SegmentMetadata):
        report.facts |= {
            "start_offset": event.start_offset,
            "end_offset": event.end_offset,
            "segment_size_bytes": event.size_bytes,
            "max_timestamp_ms": event.max_timestamp_ms,
            "transaction_index_empty": event.txn_index_empty,
        }
    report.facts |= {"broker_id": event.broker_id, "event_timestamp_ms": event.event_timestamp_ms}
    if not isinstance(event, PartitionDelete):
        _describe_custom(report, event.custom_metadata)
    if isinstance(event, SegmentMetadata):
        rows = [
            {"epoch": epoch, "first_offset": offset, "last_offset": event.last_offset_of(epoch)}
            for epoch, offset in event.epochs
        ]
        report.table("epochs", rows)
    report.remark(f"the metadata partition is out of {METADATA_PARTITIONS}, Kafka's default")


def _describe_custom(report: InspectionReport, custom_metadata: bytes | None) -> None:
    try:
        publisher_epoch, rest = unstamp(custom_metadata)
    except Corrupt as error:
        report.fail(error, "custom metadata")
        return
    report.facts |= {
        "publisher_epoch": publisher_epoch,
        "custom_metadata": rest if custom_metadata is not None else None,
    }


SNAPSHOT: Final = "snapshot of the tier's events, HWT1"
ROWS_SHOWN: Final = 20
_SNAPSHOT_NAME: Final = re.compile(r"snapshot-([0-9]{20})-[0-9a-f]{32}")


def describe_snapshot(source: InspectedObject) -> InspectionReport:
    """What a snapshot holds, by partition of a stream."""
    report = InspectionReport(SNAPSHOT, size_bytes=len(source.data))
    try:
        snapshot = decode_snapshot(source.data, source.key or "this snapshot")
    except (Corrupt, NotSupported) as error:
        check = "checksum" if "checksum" in str(error) else "contents"
        report.fail(error, check)
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
    _judge_snapshot_name(report, source, snapshot)
    rows = [_snapshot_row(dump) for dump in snapshot.dumps[:ROWS_SHOWN]]
    report.table("known", rows, len(snapshot.dumps))
    return report


def _judge_snapshot_name(
    report: InspectionReport, source: InspectedObject, snapshot: Snapshot
) -> None:
    name = _SNAPSHOT_NAME.fullmatch(source.key)
    if name is not None and int(name[1]) != snapshot.through_offset:
        error = Corrupt(
            f"this is the snapshot through {snapshot.through_offset:,}, under the name of the one "
            f"through {int(name[1]):,}: it was copied or renamed"
        )
        report.fail(error, "name")


def _snapshot_row(dump: PartitionDump) -> dict[str, Any]:
    highest = [offset for _, offset in dump.highest if offset is not None]
    finished = sum(one.state is SegmentState.COPY_FINISHED for one in dump.segments)
    return {
        "stream": dump.partition.name,
        "stream_id": str(dump.partition.topic_id),
        "partition": dump.partition.partition,
        "publisher_epoch": dump.publisher_epoch,
        "listed": len(dump.segments),
        "finished": finished,
        "highest_offset": max(highest, default=None),
        "deletion": None if dump.delete_state is None else dump.delete_state.name,
    }
