"""Starts a new log of metadata events with the state of another one.

This is the way out for a log with an event that cannot be taken back, such as an epoch that no
leader ever reaches, and the way to move a log from Kafka or to another prefix. All leaders and
followers of the old log must be stopped, and continue with the new one. Then the old log names its
successor and refuses every client: one that still used it would merge, remove and scrub by it, and
the new log lists the same objects.
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
from headwater.tier.eventlog.stored_log import StoredEventLog, mark_renewed
from headwater.tier.events import TopicIdPartition
from headwater.tier.snapshot import dump_all, restore_all


class RenewedLog(msgspec.Struct, frozen=True):
    events: tuple[int, ...]
    """How many events the old log had, by metadata partition."""
    partitions: tuple[TopicIdPartition, ...]
    """The partitions of streams that have a state."""


async def renew(
    source: MetadataEventLog, target: StoredEventLog, *, epoch_max: int | None = None
) -> RenewedLog:
    """Start an empty log with the state after all events of another one.

    Publisher epochs above `epoch_max` are lowered to it. Then events of later leaders count again,
    once the log starts of their partitions are lowered as well (`LogStartRegister.lower`).
    """
    if source.partition_count != target.partition_count:
        raise Refused(
            f"a log of {source.partition_count} metadata partitions cannot be renewed to one of "
            f"{target.partition_count}: events of streams would be in other partitions"
        )
    ends = await _ends(source)
    await check_empty(target)
    partitions: list[TopicIdPartition] = []
    for partition in range(target.partition_count):
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
        await mark_renewed(source.store, source.prefix, target.prefix)
    return RenewedLog(
        tuple(ends[partition] for partition in range(target.partition_count)), tuple(partitions)
    )


async def check_empty(target: StoredEventLog) -> None:
    for partition, end in (await _ends(target)).items():
        if end:
            raise Refused(
                f"the new log has {end:,} events in metadata partition {partition} already: choose "
                "an unused prefix"
            )


async def begin_partition(
    target: StoredEventLog, partition: int, end: int, cache: TierCache
) -> None:
    """Start a metadata partition with the state of a cache, as if after `end` events."""
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
            item = await anext(subscription)
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
        await subscription.close()
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
