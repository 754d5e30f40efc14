"""Starts a new log of events with the state of another one.

The way out for a log whose events cannot be taken back, such as an epoch that no leader ever
reaches, and the way to move a log, from Kafka or to another prefix. All leaders and followers of
the old log must be stopped, and go on with the new one. Once that is complete, the old log names
its successor and refuses every client.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headwater.core.errors import Damaged, Refused, Unavailable
from headwater.tier.cache import TierCache
from headwater.tier.event_codec import decode_event
from headwater.tier.eventlog.contract import (
    EventUnreadable,
    MetadataEventLog,
    PartitionFailed,
    PositionReached,
    SnapshotDelivered,
)
from headwater.tier.eventlog.stored_events import store_snapshot
from headwater.tier.eventlog.stored_log import StoredEventLog
from headwater.tier.events import TopicIdPartition
from headwater.tier.snapshot import dump_all, restore_all


class RenewedLog(msgspec.Struct, frozen=True):
    """What a log begins with."""

    events: tuple[int, ...]
    """How many the old one had, for each metadata partition."""
    partitions: tuple[TopicIdPartition, ...]
    """Those of which something is known."""


async def renew(
    source: MetadataEventLog, target: StoredEventLog, *, epoch_max: int | None = None
) -> RenewedLog:
    """Start an empty log with the state after all events of another one.

    Publishers' epochs above `epoch_max` are lowered to it: events of a leader with a newer one
    count again, once the log starts of its partitions are lowered as well
    (`LogStartRegister.lower`).
    """
    if source.partition_count != target.partition_count:
        raise Refused(
            f"a log of {source.partition_count} metadata partitions does not go into one of "
            f"{target.partition_count}: streams would lie in other partitions"
        )
    count = target.partition_count
    ends = await _ends(source)
    await check_empty(target)
    partitions: list[TopicIdPartition] = []
    for partition in range(count):
        if ends[partition]:
            cache = await _state_of(source, partition, ends[partition])
            partitions += cache.partitions()
            await begin_partition(target, partition, ends[partition], _lowered(cache, epoch_max))
    if await _ends(source) != ends:
        raise Refused(
            "events were published to the old log meanwhile: stop all its clients, and begin the "
            "new one under another prefix"
        )
    if isinstance(source, StoredEventLog):
        await source.mark_renewed(target)
    return RenewedLog(tuple(ends[partition] for partition in range(count)), tuple(partitions))


async def check_empty(target: StoredEventLog) -> None:
    """Raise `Refused` if a log that is to begin has events."""
    for partition, end in (await _ends(target)).items():
        if end:
            raise Refused(
                f"the log to begin has {end:,} events in metadata partition {partition}: take a "
                "prefix under which nothing is stored"
            )


async def begin_partition(
    target: StoredEventLog, partition: int, end: int, cache: TierCache
) -> None:
    """Start a metadata partition with the state of a cache, as if after so many events."""
    events = target.events_of(partition)
    name = await store_snapshot(events, cache, end - 1)
    if (await events.floors.move(end, name)).snapshot != name:
        raise Damaged(f"{events.floors.key} was moved by another client meanwhile: start again")


async def _ends(log: MetadataEventLog) -> Mapping[int, int]:
    ends = await log.high_water_marks()
    if len(ends) < log.partition_count:
        raise Unavailable("a log does not say how far all of its metadata partitions go")
    return ends


async def _state_of(source: MetadataEventLog, partition: int, end: int) -> TierCache:
    cache, position = TierCache(), 0
    subscription = await source.subscribe({partition: 0})
    try:
        while position < end:
            item = await anext(aiter(subscription.items))
            if isinstance(item, PartitionFailed | EventUnreadable):
                raise item.error
            if isinstance(item, SnapshotDelivered):
                cache, position = item.cache, item.through_offset + 1
            elif isinstance(item, PositionReached):
                position = item.next_offset
            else:
                cache.follow(decode_event(item.payload), item.publisher_epoch)
                position = item.offset + 1
    finally:
        await subscription.assignment.close()
    return cache


def _lowered(cache: TierCache, epoch_max: int | None) -> TierCache:
    if epoch_max is None:
        return cache
    return restore_all(
        msgspec.structs.replace(dumped, publisher_epoch=min(dumped.publisher_epoch, epoch_max))
        if dumped.publisher_epoch is not None
        else dumped
        for dumped in dump_all(cache)
    )
