"""Places that options ask for, looked up: where a reading begins, and where a batch read ends."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from headwater.buffer.consumer import QueuePosition, UnreadableBatch
from headwater.core.errors import Refused, Trimmed
from headwater.spark.options import ReadOptions, TimeBound
from headwater.spark.options.offsets import EARLIEST, LATEST, NEWEST_OFFSET, OLDEST_OFFSET
from headwater.spark.source.feed import Bounds, Feed
from headwater.spark.source.loss import lost_before
from headwater.spark.source.offset import Part

LOG: Final = logging.getLogger("headwater.spark")


def check_named(options: ReadOptions, parts: Iterable[Part]) -> None:
    """Bounds for each partition, if any: those of all that are read, and of no other."""
    named: dict[str, Any] = {
        "startingOffsets": options.starting_offsets,
        "endingOffsets": options.ending_offsets,
    }
    for bound in (options.starting_time, options.ending_time):
        if bound is not None and bound.moments_us:
            named[bound.option] = bound.moments_us
    for name, bounds in named.items():
        _check_named(name, bounds, parts)


def _check_named(name: str, offsets: Any, parts: Iterable[Part]) -> None:
    if not isinstance(offsets, Mapping):
        return
    wanted = set(parts)
    given = {Part(stream, number) for stream, numbers in offsets.items() for number in numbers}
    for missing in sorted(wanted - given):
        cure = "" if name.endswith("ByTimestamp") else ", with -2 for the earliest"
        raise Refused(f"{name} says nothing of {missing}: name all{cure}")
    for other in sorted(given - wanted):
        raise Refused(f"{name} names {other}, which is not read here")


async def starting_place(feed: Feed, options: ReadOptions, default: str) -> QueuePosition:
    """Where a reading begins that begins anew."""
    bounds = await feed.bounds()
    if options.starting_time is not None:
        found = await _at_time(feed, options.starting_time, options)
        if found is None and not options.starts_at_latest:
            raise _nothing_so_late(feed, options.starting_time)
        return bounds.latest if found is None else found
    asked = options.starting_offsets
    try:
        return await _place(feed, bounds, default if asked is None else asked)
    except Trimmed:
        wanted = QueuePosition(-1, asked[feed.part.stream][feed.part.partition])
        loss = lost_before(feed.part, wanted, bounds.oldest, options.url)
        if options.fail_on_data_loss:
            raise loss from None
        LOG.warning("%s", loss)
        return bounds.oldest


async def ending_place(feed: Feed, options: ReadOptions) -> QueuePosition:
    """Where a batch read ends."""
    bounds = await feed.bounds()
    if options.ending_time is not None:
        found = await _at_time(feed, options.ending_time, options)
        return bounds.latest if found is None else found
    try:
        return await _place(feed, bounds, options.ending_offsets)
    except Trimmed:
        return bounds.oldest  # everything that was asked for is gone; the start says so


async def _at_time(feed: Feed, bound: TimeBound, options: ReadOptions) -> QueuePosition | None:
    try:
        return await feed.at_time(bound.of(*feed.part), bound.by)
    except UnreadableBatch as error:
        if options.on_bad_batch == "fail":
            raise
        # It is passed over when its turn comes, or noted; here it is no obstacle.
        return QueuePosition(error.descriptor.sequence, error.descriptor.first_lsn)


def _nothing_so_late(feed: Feed, bound: TimeBound) -> Refused:
    late = "was ingested" if bound.by == "ingestion" else "has a timestamp"
    return Refused(
        f"{bound.option}: no retained record of {feed.part} {late} at "
        f"{bound.of(*feed.part) / 1000:,.0f} ms since 1970 or later. To begin at the end of such "
        "partitions: startingOffsetsByTimestampStrategy=latest"
    )


async def _place(feed: Feed, bounds: Bounds, offsets: Any) -> QueuePosition:
    if offsets == EARLIEST:
        return bounds.oldest
    if offsets == LATEST:
        return bounds.latest
    lsn = offsets[feed.part.stream][feed.part.partition]
    if lsn == OLDEST_OFFSET:
        return bounds.oldest
    return bounds.latest if lsn == NEWEST_OFFSET else await feed.at_lsn(lsn)
