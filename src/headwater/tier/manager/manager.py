"""The manager of the tier's metadata: follows the log of events, keeps its state, publishes to it.

    manager = await TopicMetadataManager.start(log, "/var/lib/headwater/tier")
    await manager.reconcile_assignment({manager.metadata_partition(orders)})
    await manager.publish(started)
    await manager.publish(finished)
    manager.partition(orders).segment_at(epoch=4, offset=42)
    await manager.close()

Always holds:

- the state of a partition has all events that existed when its metadata partition was assigned, and
  all that this manager published; before that, `partition` raises `NotReady`; after an unreadable
  event, it raises that error;
- a metadata partition that is not assigned has an empty state;
- `publish` returns what became of the event, in bounded time;
- each event is applied once, also over restarts and reassignments.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final

from headwater.core import runtime
from headwater.core.disk import Disk, OsDisk
from headwater.core.errors import Bug, HeadwaterError, OutcomeUnknown, Refused, Unavailable
from headwater.core.runtime import Waiters
from headwater.tier.cache import EventOutcome, PartitionCache
from headwater.tier.errors import EventRejected, NotReady
from headwater.tier.event_codec import encode_event, metadata_partition_for
from headwater.tier.eventlog import MetadataEventLog
from headwater.tier.events import (
    EPOCH_MAX,
    NO_BROKER,
    MetadataEvent,
    PartitionDelete,
    PartitionDeleteState,
    SegmentMetadata,
    SegmentState,
    TopicIdPartition,
    partition_of,
)
from headwater.tier.manager.following import (
    EventResult,
    FollowedPartition,
    ManagerConfig,
    ManagerMetrics,
    ManagerStatus,
)
from headwater.tier.manager.pump import EventPump
from headwater.tier.manager.snapshots import SnapshotFolder, SnapshotSaver
from headwater.tier.segment_cover import CoverPiece, walk_cover

_log: Final = logging.getLogger("headwater")


class TopicMetadataManager:
    """The state of remote segments after the events of a log. For one event loop."""

    def __init__(
        self, log: MetadataEventLog, folder: SnapshotFolder | None, config: ManagerConfig
    ) -> None:
        """Use `TopicMetadataManager.start`."""
        self.config = config
        self.metrics = ManagerMetrics().register()
        self._log = log
        self._waiters = Waiters()
        self._followed = {
            partition: FollowedPartition(
                partition, log.partition_count, self.metrics, self._waiters
            )
            for partition in range(log.partition_count)
        }
        self._pump = EventPump(log, self._followed, config, self.metrics)
        self._saver = SnapshotSaver(log.log_id, folder, self._followed, self.metrics)
        self._reconciling = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped: HeadwaterError | None = None
        """Why no events are followed any more."""

    @classmethod
    async def start(
        cls,
        log: MetadataEventLog,
        folder: str | None = None,
        *,
        config: ManagerConfig | None = None,
        disk: Disk | None = None,
    ) -> TopicMetadataManager:
        """Load the snapshots of a folder; follows no partition yet.

        A damaged snapshot is ignored, and its partition is read from the log. `Refused` if a
        snapshot is of another log, or of one with another number of partitions. Without a folder,
        everything is read from the log.
        """
        snapshots = None
        if folder is not None:
            snapshots = SnapshotFolder(disk or OsDisk(), os.path.abspath(folder))  # noqa: ASYNC240
        manager = cls(log, snapshots, config or ManagerConfig())
        await manager._saver.load()
        manager._spawn(manager._pump.run(), "pump")
        manager._spawn(manager._maintain(), "maintain")
        return manager

    # Assignment

    def metadata_partition(self, partition: TopicIdPartition) -> int:
        return metadata_partition_for(partition, self._log.partition_count)

    def assigned(self) -> list[int]:
        return [one.partition for one in self._followed.values() if one.is_assigned]

    def committed_offset(self, metadata_partition: int) -> int:
        """The last offset in the snapshot that was loaded at the start; -1 if there was none."""
        return self._get(metadata_partition).committed_offset

    def is_ready(self, metadata_partition: int) -> bool:
        return self._stopped is None and self._get(metadata_partition).is_ready

    async def reconcile_assignment(self, desired: Iterable[int]) -> None:
        """Follow these metadata partitions and no others.

        Added partitions continue after the last event that was applied here, or after their
        snapshot. They are `NotReady` until all events are applied that the log has now; if the log
        does not say how far it goes, the manager keeps asking.
        """
        wanted = {self._get(partition).partition for partition in desired}
        async with self._reconciling:
            self._check_running()
            for followed in self._followed.values():
                if followed.is_assigned and followed.partition not in wanted:
                    followed.unassign()
                    self._pump.leave(followed.partition)
                elif not followed.is_assigned and followed.partition in wanted:
                    followed.assign()
                    self._pump.follow(followed)
            await self._pump.query_missing_marks()

    async def wait_ready(self, metadata_partition: int, *, timeout_s: float | None = None) -> None:
        followed = self._get_assigned(metadata_partition)
        await self._waiters.wait(
            lambda: followed.is_ready or self._stop_reason(followed) is not None,
            timeout_s=self.config.refresh_timeout_s if timeout_s is None else timeout_s,
        )
        self._get_assigned(metadata_partition).check_ready()

    async def refresh(self, metadata_partition: int, *, timeout_s: float | None = None) -> None:
        """Ask the log how far it goes now, and wait until all of that is applied.

        `NotReady` if that takes too long, or if the log does not say how far it goes.
        """
        followed = self._get_assigned(metadata_partition)
        timeout_s = self.config.refresh_timeout_s if timeout_s is None else timeout_s
        deadline_s = runtime.monotonic_s() + timeout_s
        assignment, mark = followed.assignments, await self._pump.query_mark(followed, timeout_s)
        await self._waiters.wait(
            lambda: (
                followed.next_offset >= mark
                or followed.assignments != assignment
                or self._stop_reason(followed) is not None
            ),
            timeout_s=max(0.0, deadline_s - runtime.monotonic_s()),
        )
        self._get_assigned(metadata_partition).check_ready()
        if followed.next_offset < mark:
            raise NotReady(
                f"metadata partition {metadata_partition} is applied up to {followed.next_offset} "
                f"of {mark} after waiting for {timeout_s:.1f} s: try again",
                partition=metadata_partition,
            )

    def status(self) -> ManagerStatus:
        shown = [one for one in self._followed.values() if one.is_assigned or one.next_offset]
        stopped = str(self._stopped) if self._stopped else None
        problem = stopped or self._pump.problem or self._saver.problem
        return ManagerStatus(tuple(one.status() for one in shown), problem)

    async def close(self) -> None:
        """Stop, and write the snapshots; raises if that fails.

        After a `Bug` nothing is written: the state may not be the one that the events give.
        """
        self._stop(Refused("the manager of the tier's metadata is closed: start another"))
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks.clear()
        await self._saver.close(save=not isinstance(self._stopped, Bug))

    # State and publishing

    def partition(self, partition: TopicIdPartition) -> PartitionCache:
        """The state of a partition: use it at once, and do not keep it over an `await`.

        It is empty if nothing is known, or if the metadata partition is not assigned. `NotReady`:
        not all events are applied yet.
        """
        self._check_running()
        followed = self._followed[self.metadata_partition(partition)]
        if not followed.is_assigned:
            return PartitionCache(partition)
        followed.check_ready()
        return followed.cache.partition(partition)

    async def publish(
        self,
        event: MetadataEvent,
        *,
        publisher_epoch: int | None = None,
        timeout_s: float | None = None,
    ) -> EventOutcome:
        """Publish an event, wait until it is applied here, and return what it changed.

        That an event is in the log does not say what it changed: that depends on all events before
        it, and a leader that was replaced must not take its event for effective.

        `publisher_epoch` is for a `PartitionDelete`: the log keeps it beside the event. Other
        events carry their own. `EventRejected`: the event does not follow from the state. `Fenced`:
        a newer leader has published. Both changed nothing. `Refused`: its metadata partition is not
        followed here. `Unavailable`: it is not in the log. `OutcomeUnknown`: the time is over, and
        it may be in the log.
        """
        if isinstance(event, SegmentMetadata) and event.state is not SegmentState.COPY_STARTED:
            raise EventRejected(
                f"{event.segment_id} cannot start as {event.state.name}: a segment is added as "
                "COPY_STARTED, and updated from then on; nothing was published"
            )
        followed = self._get_assigned(self.metadata_partition(partition_of(event)))
        followed.check_followed()
        followed.check_publisher(event, publisher_epoch)
        began_s = runtime.monotonic_s()
        timeout_s = self.config.publish_timeout_s if timeout_s is None else timeout_s
        result = await self._publish(followed, event, publisher_epoch, timeout_s)
        if isinstance(result, EventRejected):
            raise EventRejected(str(result), current=result.current)
        if result is EventOutcome.STALE:
            raise followed.fenced_by_newer(event)
        self.metrics.published += 1
        self.metrics.publish_seconds.observe(runtime.monotonic_s() - began_s)
        return result

    async def _publish(
        self,
        followed: FollowedPartition,
        event: MetadataEvent,
        publisher_epoch: int | None,
        timeout_s: float,
    ) -> EventResult:
        payload, partition = encode_event(event), followed.partition
        deadline_s = runtime.monotonic_s() + timeout_s
        with followed.awaiting(payload) as results:
            try:
                async with asyncio.timeout(timeout_s):
                    offset = await self._log.publish(
                        partition, payload, publisher_epoch=publisher_epoch
                    )
            except TimeoutError:
                raise OutcomeUnknown(
                    f"the log did not say within {timeout_s:.1f} s whether it appended the event "
                    f"to metadata partition {partition}: it may have"
                ) from None
            await self._waiters.wait(
                lambda: followed.next_offset > offset or self._stop_reason(followed) is not None,
                timeout_s=max(0.0, deadline_s - runtime.monotonic_s()),
            )
            result = results.get(offset)
        if result is not None:
            return result
        appended = f"the event is at offset {offset} of metadata partition {partition}"
        if (stopped := self._stop_reason(followed)) is not None:
            raise OutcomeUnknown(f"{appended}, and its effect is not known here: {stopped}")
        if followed.next_offset > offset:
            raise OutcomeUnknown(
                f"{appended}, which was applied as part of a snapshot: check its effect"
            )
        raise OutcomeUnknown(
            f"{appended}, and was not applied within {timeout_s:.1f} s: check its effect later; "
            f"{followed.problem or f'events below {followed.next_offset} are applied'}"
        )

    # Maintenance

    async def _maintain(self) -> None:
        failures, query_at_s = 0, 0.0
        save_at_s = runtime.monotonic_s() + self.config.snapshot_interval_s
        while True:
            await runtime.sleep(self.config.tend_interval_s)
            now_s = runtime.monotonic_s()
            for followed in self._followed.values():
                if followed.retry_at_s is not None and now_s >= followed.retry_at_s:
                    self._pump.follow(followed)
            if now_s >= query_at_s:
                failures = 0 if await self._pump.query_missing_marks() else failures + 1
                query_at_s = now_s + self.config.pause_s(failures) if failures else now_s
            if now_s >= save_at_s:
                await self._saver.save()
                save_at_s = runtime.monotonic_s() + self.config.snapshot_interval_s

    # Life cycle

    def _get(self, metadata_partition: int) -> FollowedPartition:
        followed = self._followed.get(metadata_partition)
        if followed is None:
            raise Refused(
                f"there is no metadata partition {metadata_partition}: the log has "
                f"{self._log.partition_count}, numbered from 0"
            )
        return followed

    def _get_assigned(self, metadata_partition: int) -> FollowedPartition:
        self._check_running()
        followed = self._get(metadata_partition)
        if not followed.is_assigned:
            raise Refused(
                f"metadata partition {metadata_partition} is not followed here: assign it first"
            )
        return followed

    def _stop_reason(self, followed: FollowedPartition) -> HeadwaterError | None:
        """Why waiting for a partition is useless, if it is."""
        if self._stopped is not None:
            return self._stopped
        if not followed.is_assigned:
            return Refused(f"metadata partition {followed.partition} is no longer followed")
        return followed.stopped

    def _check_running(self) -> None:
        if self._stopped is not None:
            raise type(self._stopped)(str(self._stopped))

    def _stop(self, reason: HeadwaterError) -> None:
        if self._stopped is None:
            self._stopped = reason
        self._waiters.notify()

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        task = runtime.spawn(coroutine, name=f"tier-metadata-{name}")
        task.add_done_callback(self._task_done)
        self._tasks.append(task)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        """Stop the manager: without its tasks, its state would silently become old."""
        if task.cancelled():
            self._stop(Unavailable("the manager of the tier's metadata was cancelled"))
        elif (error := task.exception()) is not None:
            _log.error("the tier's metadata are no longer followed", exc_info=error)
            self._stop(Bug(f"the tier's metadata are no longer followed: {error!r}"))


class ManagedPartition:
    """The metadata of one partition, for jobs and readers.

    `NotReady` if the manager does not follow the partition's events: the manager has no state then,
    and a job that used an empty one would treat all segments as deleted.
    """

    def __init__(self, manager: TopicMetadataManager, partition: TopicIdPartition) -> None:
        self._manager = manager
        self._partition = partition

    async def refresh(self) -> None:
        """Apply all events that the log has now."""
        try:
            await self._manager.refresh(self._manager.metadata_partition(self._partition))
        except Refused:
            self._check_assigned()  # the reason, if the partition is not or no longer assigned
            raise

    async def publish(self, event: MetadataEvent, *, publisher_epoch: int) -> EventOutcome:
        """Append an event, wait until it is applied here, and return what it changed.

        `Fenced`: a newer leader has published. `EventRejected`: the event does not follow from the
        state. `Unavailable`: it was not appended. `OutcomeUnknown`: it may have been appended or
        may be later, but never after an event that is published afterwards.
        """
        self._check_assigned()
        return await self._manager.publish(event, publisher_epoch=publisher_epoch)

    def state(self) -> PartitionCache:
        """The state after all events applied so far: do not keep it over an `await`."""
        self._check_assigned()
        return self._manager.partition(self._partition)

    async def refreshed_cover(self, first_lsn: int, end_lsn: int) -> Sequence[CoverPiece]:
        """The cover of [first_lsn, end_lsn) after all events that the log has now: a `CoverSource`.

        A log is pruned as soon as its leader has copied it. A reader follows the events itself and
        may not have applied them yet: without the refresh, existing records would appear to be
        missing.
        """
        await self.refresh()
        return [piece async for piece in walk_cover(self.state, first_lsn, end_lsn)]

    def _check_assigned(self) -> None:
        metadata_partition = self._manager.metadata_partition(self._partition)
        # A partition that is ready is assigned: this is the cheap check, made first.
        is_ready = self._manager.is_ready(metadata_partition)
        if not is_ready and metadata_partition not in self._manager.assigned():
            raise NotReady(
                f"metadata partition {metadata_partition}, which has the events of "
                f"{self._partition}, is not followed: assign it (reconcile_assignment), then try "
                "again",
                partition=metadata_partition,
            )


async def publish_deletion(
    log: MetadataEventLog, partitions: Sequence[TopicIdPartition], through: PartitionDeleteState
) -> int:
    """Publish the deletion of a stream's partitions through a state; returns how many had a state.

        the stream is marked deleted → MARKED, STARTED → its objects are removed → FINISHED

    So no segment is listed whose object is being removed, and after an interruption the next
    attempt continues. A deleted stream has no leader: this publishes under an epoch above all
    earlier ones, so a leader that still runs is fenced and lists nothing afterwards.

    Nothing is published about partitions without a state. `Fenced`: a newer leader runs for one of
    them; find it, and try again.
    """
    manager = await TopicMetadataManager.start(log)
    try:
        followed = {manager.metadata_partition(one) for one in partitions}
        await manager.reconcile_assignment(followed)
        for metadata_partition in sorted(followed):
            await manager.wait_ready(metadata_partition)
        listed = [one for one in partitions if not manager.partition(one).is_blank]
        for partition in listed:
            cache = manager.partition(partition)
            newest, now = cache.publisher_epoch, cache.delete_state
            epoch = 0 if newest is None else min(newest + 1, EPOCH_MAX)
            for state in PartitionDeleteState:
                if state <= through and (now is None or state > now):
                    event = PartitionDelete(partition, NO_BROKER, runtime.wall_ms(), state)
                    await manager.publish(event, publisher_epoch=epoch)
        return len(listed)
    finally:
        await manager.close()
