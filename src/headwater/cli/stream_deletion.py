"""Deletes a stream, and tells by the tier's events that its segments are gone."""

from __future__ import annotations

from contextlib import AsyncExitStack

from headwater.buffer.stream import DeletedReport, delete_stream
from headwater.buffer.stream.config import StreamConfig
from headwater.cli.event_log_place import EventLogPlace
from headwater.core.errors import Damaged, NotFound
from headwater.store import Store
from headwater.tier import PartitionDeleteState, TopicIdPartition
from headwater.tier.eventlog import MetadataEventLog


async def delete_with_tier(
    store: Store, name: str, events: EventLogPlace, *, stream_id: str | None = None
) -> tuple[DeletedReport, Damaged | None]:
    """Delete a stream; what that did, and why its tier's events could not be told, if so.

    `stream_id` is that of the stream that is meant; without it, the one that has the name now.

    Events that cannot be reached hold up the objects: what is listed would be gone. Events that are
    damaged do not, because nobody reads by them.
    """
    async with AsyncExitStack() as stack:
        told = _Told(await _opened(store, events, stack))
        report = await delete_stream(store, name, stream_id=stream_id, before_objects=told.begin)
        if not report.failed:
            await told.tell(PartitionDeleteState.FINISHED)
        return report, told.damage


class _Told:
    def __init__(self, log: MetadataEventLog | None) -> None:
        self.damage: Damaged | None = None
        self._log = log
        self._partitions: list[TopicIdPartition] = []

    async def begin(self, stream: StreamConfig) -> None:
        self._partitions = [
            TopicIdPartition.of_stream(stream.id, stream.name, number)
            for number in range(stream.partitions)
        ]
        await self.tell(PartitionDeleteState.STARTED)

    async def tell(self, through: PartitionDeleteState) -> None:
        if self._log is None or self.damage is not None:
            return
        # Here: most stores have no tier, and need no manager of its events.
        from headwater.tier.jobs import publish_deletion

        try:
            await publish_deletion(self._log, self._partitions, through)
        except Damaged as damage:
            self.damage = damage


async def _opened(
    store: Store, events: EventLogPlace, stack: AsyncExitStack
) -> MetadataEventLog | None:
    """The log of events; None if nothing was ever copied to a tier here."""
    try:
        return await stack.enter_async_context(events.opened(store))
    except NotFound:
        if not events.is_default:
            raise
        return None
