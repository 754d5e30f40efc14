"""Where a read begins and ends by its options, and the errors for records that are gone."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Final

from headwater.buffer.queue.contract import Descriptor, QueuePosition
from headwater.buffer.stream import Stream
from headwater.buffer.stream.config import UNLIMITED
from headwater.core.errors import Refused, RolledBack, Trimmed
from headwater.spark.option_values import EARLIEST, LATEST, NEWEST_OFFSET, OLDEST_OFFSET, TimeBound
from headwater.spark.options import ReadOptions
from headwater.spark.source.feed import Bounds, PartitionFeed
from headwater.spark.source.offset import StreamPartition

LOG: Final = logging.getLogger("headwater.spark")


def check_partitions_named(options: ReadOptions, parts: Iterable[StreamPartition]) -> None:
    """Check that bounds by partition name exactly the partitions that are read."""
    named: dict[str, Any] = {
        "startingOffsets": options.starting_offsets,
        "endingOffsets": options.ending_offsets,
    }
    for bound in (options.starting_time, options.ending_time):
        if bound is not None and bound.moments_us:
            named[bound.option] = bound.moments_us
    for name, bounds in named.items():
        _check_partitions(name, bounds, parts)


def _check_partitions(name: str, offsets: Any, parts: Iterable[StreamPartition]) -> None:
    if not isinstance(offsets, Mapping):
        return
    wanted = set(parts)
    named = {
        StreamPartition(stream, number) for stream, numbers in offsets.items() for number in numbers
    }
    for missing in sorted(wanted - named):
        cure = "" if name.endswith("ByTimestamp") else ", with -2 for the earliest"
        raise Refused(f"{name} does not name {missing}: name all partitions{cure}")
    for other in sorted(named - wanted):
        raise Refused(f"{name} names {other}, which is not read here")


async def starting_position(
    feed: PartitionFeed, options: ReadOptions, default: str
) -> QueuePosition:
    bounds = await feed.bounds()
    if options.starting_time is not None:
        position = await feed.at_time(
            options.starting_time, skips_unreadable=options.on_bad_batch != "fail"
        )
        if position is None and not options.starts_at_latest:
            raise _no_record_so_late(feed, options.starting_time)
        return bounds.latest if position is None else position
    offsets: Any = default if options.starting_offsets is None else options.starting_offsets
    try:
        return await _resolve_offset(feed, bounds, offsets)
    except Trimmed:
        wanted = QueuePosition(-1, offsets[feed.part.stream][feed.part.partition])
        loss = data_loss_before(feed.part, wanted, bounds.oldest, options.url)
        if options.fail_on_data_loss:
            raise loss from None
        LOG.warning("%s", loss)
        return bounds.oldest


async def ending_position(feed: PartitionFeed, options: ReadOptions) -> QueuePosition:
    bounds = await feed.bounds()
    if options.ending_time is not None:
        position = await feed.at_time(
            options.ending_time, skips_unreadable=options.on_bad_batch != "fail"
        )
        return bounds.latest if position is None else position
    try:
        return await _resolve_offset(feed, bounds, options.ending_offsets)
    except Trimmed:
        return bounds.oldest  # all wanted records are gone; `starting_position` raises or warns


def _no_record_so_late(feed: PartitionFeed, bound: TimeBound) -> Refused:
    late = "was ingested" if bound.by == "ingestion" else "has a timestamp"
    return Refused(
        f"{bound.option}: no retained record of {feed.part} {late} at "
        f"{bound.of(*feed.part) / 1000:,.0f} ms since 1970 or later. To begin at the end of such "
        "partitions: startingOffsetsByTimestampStrategy=latest"
    )


async def _resolve_offset(feed: PartitionFeed, bounds: Bounds, offsets: Any) -> QueuePosition:
    if offsets == EARLIEST:
        return bounds.oldest
    if offsets == LATEST:
        return bounds.latest
    lsn = offsets[feed.part.stream][feed.part.partition]
    if lsn == OLDEST_OFFSET:
        return bounds.oldest
    return bounds.latest if lsn == NEWEST_OFFSET else await feed.at_lsn(lsn)


def data_loss_before(
    part: StreamPartition, wanted: QueuePosition, oldest: QueuePosition, url: str
) -> Trimmed:
    """The error of a query that wants to continue at a position that was deleted."""
    gone = oldest.lsn - wanted.lsn
    return Trimmed(
        f"{part}: data loss. Wanted from offset {wanted.lsn} on, and the oldest retained record is "
        f"{oldest.lsn}: {gone:,} records were acknowledged by the owner of the stream and deleted "
        "by retention, or were truncated, before this query read them. "
        + _advice(url, part.stream),
        floor_lsn=oldest.lsn,
    )


def data_loss_while_reading(stream: Stream, partition: int, lost: Descriptor) -> Trimmed:
    """The error of a task whose batch was deleted before it could read it."""
    retention_ms = stream.config.retention_ms
    retention = "forever" if retention_ms == UNLIMITED else f"for {retention_ms / 3_600_000:,.1f} h"
    return Trimmed(
        f"{StreamPartition(stream.name, partition)}: data loss. Wanted offsets {lost.first_lsn} to "
        f"{lost.last_lsn}, which were deleted by retention (the stream keeps acknowledged records "
        f"{retention}) before they were read. " + _advice(stream.store.url, stream.name),
        floor_lsn=lost.last_lsn + 1,
    )


def beyond_the_end(
    part: StreamPartition, wanted: QueuePosition, end: QueuePosition, whose: str
) -> RolledBack:
    """The error of a query that wants to continue beyond the end of the stream."""
    return RolledBack(
        f"{part}: {whose} is at offset {wanted.lsn}, and the next record of the stream will be "
        f"{end.lsn}: the stream was restored to an earlier state, or records that were accepted "
        "are gone. Put back what is missing; or give the query a new checkpoint, a groupId of its "
        "own, and the startingOffsets to read from"
    )


def _advice(url: str, stream: str) -> str:
    return (
        "To continue with what is left: failOnDataLoss=false. To keep records for longer: "
        f"headwater stream alter {shlex.quote(url)} {stream} --set retention=30d"
    )
