"""Collects a stream's garbage: reads what is to be kept, and runs the collectors of its partitions.

`headwater.buffer.queue.retention` decides what goes. Here is read what it decides by, in an order
that matters: the stream's settings with their policy first, then the position of the required
group. A group that moves back raises the policy afterwards, so a position from before it never
counts under the policy after it.
"""

from __future__ import annotations

import msgspec

from headwater.buffer.consumer.progress import UnknownGroup
from headwater.buffer.group.admin import group_names
from headwater.buffer.group.register import GroupRegister
from headwater.buffer.queue.contract import Collected
from headwater.buffer.queue.retention import Retention
from headwater.buffer.stream import Stream, open_stream
from headwater.buffer.transaction.holds import active_holds
from headwater.core.errors import HeadwaterError, Refused


class GarbageCollection:
    """The garbage collection of one partition. Several may run at once."""

    def __init__(self, stream: Stream, partition: int) -> None:
        self._stream = stream
        self._partition = partition
        self._collector = stream.collector(partition)

    async def run_pass(self, *, full: bool = False) -> Collected:
        """One bounded pass, with the stream's current settings."""
        retention = await retention_of(self._stream, self._partition)
        done = await self._collector.collect(retention, full=full)
        if not done.clock_doubt or retention.retention_ms is None:
            return done
        lowest = await lowest_position(self._stream, self._partition)
        if lowest is None:
            return done
        # What every group has processed goes by its age, whatever the clocks say.
        retention = msgspec.structs.replace(retention, groups_lsn=lowest)
        return (await self._collector.collect(retention)).plus(done)


async def retention_of(stream: Stream, partition: int) -> Retention:
    """What a partition keeps now: by the stream's settings, its required group and its holds.

    `Refused` if another stream has the name now: its retention does not apply to this one.
    """
    current = await open_stream(stream.store, stream.name)
    if current.id != stream.id:
        raise Refused(f"stream {stream.name!r} was deleted and created again since it was opened")
    current.check_partition(partition)
    retention, group = current.retention(), current.config.required_group
    if group is not None:
        below_lsn = await _position_of(current, partition, group)
        retention = msgspec.structs.replace(retention, below_lsn=below_lsn)
    if current.config.format == "v1":
        return retention
    holds = await active_holds(current, retention.grace_ms)
    return msgspec.structs.replace(
        retention, hold_below=holds.below, keep_producers=holds.producers
    )


async def _position_of(stream: Stream, partition: int, group: str) -> int:
    """The first LSN that a required group has not processed; 1 if it has no position."""
    try:
        return await GroupRegister(stream, group).position(partition)
    except UnknownGroup:
        return 1


async def lowest_position(stream: Stream, partition: int) -> int | None:
    """The lowest position of any group in a partition; None if there is none, or one is unknown."""
    found: list[int] = []
    for group in await group_names(stream):
        try:
            found.append(await GroupRegister(stream, group).position(partition))
        except UnknownGroup:
            continue  # deleted
        except HeadwaterError:
            return None
    return min(found, default=None)
