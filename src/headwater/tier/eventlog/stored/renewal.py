"""Begins a log of events anew with what another one comes to.

The way out for a log whose events nobody can take back: one in which an epoch was published that
no leader ever reaches, or one that is to move, from Kafka or to another prefix. Whoever led and
followed the old log must have stopped, and goes on with the new one. When that stands, the old one
says where it goes on, and refuses everybody.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headwater.core.errors import Damaged, Refused, Unavailable
from headwater.tier.cache import TierCache
from headwater.tier.event_codec import decode_event
from headwater.tier.eventlog.contract import MetadataEventLog
from headwater.tier.eventlog.items import (
    EventUnreadable,
    PartitionFailed,
    PositionReached,
    SnapshotDelivered,
)
from headwater.tier.eventlog.stored.log import StoredEventLog
from headwater.tier.eventlog.stored.snapshots import store_snapshot
from headwater.tier.events import TopicIdPartition
from headwater.tier.snapshot import dump_all, restore_all


class Renewed(msgspec.Struct, frozen=True):
    """What a log begins with."""

    events: tuple[int, ...]
    """How many came to it, for each metadata partition."""
    partitions: tuple[TopicIdPartition, ...]
    """Those of which something is known."""


async def renew(
    source: MetadataEventLog, target: StoredEventLog, *, epoch_max: int | None = None
) -> Renewed:
    """Let an empty log begin with what all events of another one come to.

    Publishers' epochs above `epoch_max` are taken down to it: what a leader with a newer one says
    counts again, once the log starts of its partitions were taken down as well
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
    known: list[TopicIdPartition] = []
    for partition in range(count):
        if ends[partition]:
            cache = await _known(source, partition, ends[partition])
            known += cache.partitions()
            await begin_partition(target, partition, ends[partition], _lowered(cache, epoch_max))
    if await _ends(source) != ends:
        raise Refused(
            "somebody has published to the old log meanwhile: stop whoever uses it, and begin the "
            "new one under another prefix"
        )
    if isinstance(source, StoredEventLog):
        await source.mark_renewed(target)
    return Renewed(tuple(ends[partition] for partition in range(count)), tuple(known))


async def check_empty(target: StoredEventLog) -> None:
    """Raise `Refused` if a log that is to begin has events."""
    for partition, end in (await _ends(target)).items():
        if end:
            raise Refused(
                f"the log to begin has {end:,} events in metadata partition {partition}: take a "
                "prefix under which nothing stands"
            )


async def begin_partition(
    target: StoredEventLog, partition: int, end: int, cache: TierCache
) -> None:
    """Let a metadata partition begin with what a cache knows, as if by so many events."""
    events = target.events_of(partition)
    name = await store_snapshot(events, cache, end - 1)
    if (await events.floors.move(end, name)).snapshot != name:
        raise Damaged(f"{events.floors.key} was moved by somebody else meanwhile: begin anew")


async def _ends(log: MetadataEventLog) -> Mapping[int, int]:
    ends = await log.high_water_marks()
    if len(ends) < log.partition_count:
        raise Unavailable("a log does not say how far all of its metadata partitions go")
    return ends


async def _known(source: MetadataEventLog, partition: int, end: int) -> TierCache:
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
