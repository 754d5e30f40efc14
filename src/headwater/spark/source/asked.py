"""Places that options ask for, looked up: where a reading begins, and where a batch read ends."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from headwater.buffer.consumer import Place
from headwater.core.errors import Refused, Trimmed
from headwater.spark.options import ReadOptions
from headwater.spark.options.offsets import EARLIEST, LATEST, NEWEST_OFFSET, OLDEST_OFFSET
from headwater.spark.source.feed import Bounds, Feed
from headwater.spark.source.loss import lost_before
from headwater.spark.source.offset import Part

LOG: Final = logging.getLogger("headwater.spark")


def check_named(name: str, offsets: Any, parts: Iterable[Part]) -> None:
    """Offsets for each partition, if any: those of all that are read, and of no other."""
    if not isinstance(offsets, Mapping):
        return
    wanted = set(parts)
    given = {Part(stream, number) for stream, numbers in offsets.items() for number in numbers}
    for missing in sorted(wanted - given):
        raise Refused(f"{name} says nothing of {missing}: name all, with -2 for the earliest")
    for other in sorted(given - wanted):
        raise Refused(f"{name} has an offset for {other}, which is not read here")


async def starting_place(feed: Feed, options: ReadOptions, default: str) -> Place:
    """Where a reading begins that begins anew."""
    bounds = await feed.bounds()
    if options.starting_timestamp_ms is not None:
        found = await feed.at_time(options.starting_timestamp_ms)
        return bounds.latest if found is None else found
    asked = options.starting_offsets
    try:
        return await _place(feed, bounds, default if asked is None else asked)
    except Trimmed:
        wanted = Place(-1, asked[feed.part.stream][feed.part.partition])
        loss = lost_before(feed.part, wanted, bounds.oldest, options.url)
        if options.fail_on_data_loss:
            raise loss from None
        LOG.warning("%s", loss)
        return bounds.oldest


async def ending_place(feed: Feed, options: ReadOptions) -> Place:
    """Where a batch read ends."""
    bounds = await feed.bounds()
    if options.ending_timestamp_ms is not None:
        found = await feed.at_time(options.ending_timestamp_ms)
        return bounds.latest if found is None else found
    try:
        return await _place(feed, bounds, options.ending_offsets)
    except Trimmed:
        return bounds.oldest  # everything that was asked for is gone; the start says so


async def _place(feed: Feed, bounds: Bounds, offsets: Any) -> Place:
    if offsets == EARLIEST:
        return bounds.oldest
    if offsets == LATEST:
        return bounds.latest
    lsn = offsets[feed.part.stream][feed.part.partition]
    if lsn == OLDEST_OFFSET:
        return bounds.oldest
    return bounds.latest if lsn == NEWEST_OFFSET else await feed.at_lsn(lsn)
