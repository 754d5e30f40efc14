"""Begins a log of events anew where the old one cannot be read in full.

What can be read of the old log is followed; only in metadata partitions where something is missing
are objects asked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import aclosing
from functools import partial

import msgspec

from headwater.buffer.stream import list_streams
from headwater.store import Store
from headwater.tier.eventlog import StoredEventLog
from headwater.tier.eventlog.renewal import begin_partition, check_empty
from headwater.tier.events import metadata_partition_for
from headwater.tier.identity import TopicIdPartition
from headwater.tier.rebuild.partition_rebuild import PartitionRebuild, RebuiltPartition
from headwater.tier.rebuild.remains import Missing, Remains
from headwater.tier.rebuild.replay import Replay


class Rebuilt(msgspec.Struct, frozen=True):
    """What a rebuild came to."""

    missing: tuple[str, ...]
    """What of the old log cannot be read."""
    partitions: tuple[RebuiltPartition, ...]


async def rebuild(
    store: Store,
    source: StoredEventLog | None,
    target: StoredEventLog,
    *,
    on_step: Callable[[int], None] = lambda done: None,
) -> Rebuilt:
    """Let an empty log begin with what is left of another one, and with the segments in the store.

    Without `source` with segments alone. `on_step` is told how many metadata partitions are done,
    for everything that was read. Nobody may lead or follow meanwhile, nor go by the old log after:
    `StoredEventLog.mark_renewed` lets it refuse them.
    """
    await check_empty(target)
    count = target.partition_count
    places: dict[int, list[TopicIdPartition]] = defaultdict(list)
    for stream in await list_streams(store):
        for number in range(stream.partitions):
            place = TopicIdPartition.of_stream(stream.id, stream.name, number)
            places[metadata_partition_for(place, count)].append(place)
    missing: list[str] = []
    partitions: list[RebuiltPartition] = []
    for number in range(count):
        replay, end = Replay(store), 0
        if source is None:
            await replay.take(Missing("all events: nothing of the old log was read"))
        else:
            remains = Remains(source.events_of(number))
            async with aclosing(remains.items()) as items:
                async for item in items:
                    await replay.take(item)
                    on_step(number)
            end = remains.end
        for place in places[number]:
            on_read = partial(on_step, number)
            partitions.append(await PartitionRebuild(store, place, replay, on_read).run())
        missing += (what for what in replay.missing if what not in missing[-1:])
        cache = replay.cache
        if end or cache.partitions() or cache.deleted():
            await begin_partition(target, number, max(end, 1), cache)
        on_step(number + 1)
    partitions.sort(key=lambda one: (one.stream, one.partition))
    return Rebuilt(tuple(missing), tuple(partitions))
