"""The manager of the tier's metadata: follows the log of events, answers by it, publishes to it.

    manager = await TopicMetadataManager.start(log, "/var/lib/headwater/tier")
    await manager.reconcile_assignment({manager.metadata_partition(orders)})
    await manager.publish(began)
    await manager.publish(ended)
    manager.segment_at(orders, epoch=4, offset=42)
    await manager.close()

Always holds:

- an answer is by all events that were there when the metadata partition was assigned, and by all
  that this manager published; before that it is `NotReady`, and where an event cannot be read, what
  stopped it;
- a metadata partition that is not assigned has nothing to say: None, or nothing in a list;
- whoever publishes is told what became of the event, in bounded time;
- each event is applied once, also over restarts and when a partition comes and goes.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine, Iterable
from typing import Any, Final

from headwater.core import runtime
from headwater.core.disk import Disk, OsDisk
from headwater.core.errors import Bug, HeadwaterError, Refused, Unavailable
from headwater.core.runtime import Waiters
from headwater.tier.cache import EventOutcome, PartitionCache, TierCache
from headwater.tier.errors import NotReady
from headwater.tier.event_codec import metadata_partition_for
from headwater.tier.eventlog import MetadataEventLog
from headwater.tier.events import (
    MetadataEvent,
    PartitionDeleteState,
    SegmentMetadata,
    TopicIdPartition,
    partition_of,
)
from headwater.tier.manager.following import EventPump, FollowedPartition
from headwater.tier.manager.publishing import check_event, publish_and_wait
from headwater.tier.manager.snapshots import SnapshotFolder, SnapshotSaver
from headwater.tier.manager.status import ManagerConfig, ManagerMetrics, ManagerStatus
from headwater.tier.segment_cover import CoverPiece

_log: Final = logging.getLogger("headwater")


class TopicMetadataManager:
    """What is known of remote segments by a log of events. For one event loop."""

    def __init__(
        self, log: MetadataEventLog, folder: SnapshotFolder | None, config: ManagerConfig
    ) -> None:
        """Use `TopicMetadataManager.start`."""
        self.config = config
        self.metrics = ManagerMetrics()
        self._log = log
        self._waiters = Waiters()
        self._followed = {
            partition: FollowedPartition(
                partition, log.partition_count, self.metrics, self._waiters
            )
            for partition in range(log.partition_count)
        }
        self._pump = EventPump(log, self._followed, config, self.metrics)
        self._saving = SnapshotSaver(log.log_id, folder, self._followed, self.metrics)
        self._reconciling = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._over: HeadwaterError | None = None
        """Why nothing is followed any more."""

    @classmethod
    async def start(
        cls,
        log: MetadataEventLog,
        folder: str | None = None,
        *,
        config: ManagerConfig | None = None,
        disk: Disk | None = None,
    ) -> TopicMetadataManager:
        """Take up what the folder's snapshots say, and follow nothing yet.

        A snapshot that is damaged is left out, and its partition is read from the log. `Refused` if
        they are of another log, or of one that had another number of partitions. Without a folder
        there are none, and everything is read from the log.
        """
        files = None
        if folder is not None:
            files = SnapshotFolder(disk or OsDisk(), os.path.abspath(folder))  # noqa: ASYNC240
        manager = cls(log, files, config or ManagerConfig())
        await manager._saving.load()
        manager._spawn(manager._pump.run(), "pump")
        manager._spawn(manager._tend(), "tend")
        return manager

    # What is followed

    @property
    def partition_count(self) -> int:
        """How many metadata partitions there are."""
        return self._log.partition_count

    def metadata_partition(self, partition: TopicIdPartition) -> int:
        """Where the events of a partition are."""
        return metadata_partition_for(partition, self.partition_count)

    def assigned(self) -> list[int]:
        """The metadata partitions that are followed, in order."""
        return [one.partition for one in self._followed.values() if one.is_assigned]

    def committed_offset(self, metadata_partition: int) -> int:
        """Through where the snapshot went that was found at the start; -1 if there was none."""
        return self._one(metadata_partition).committed_offset

    def is_ready(self, metadata_partition: int) -> bool:
        """Whether questions about its partitions are answered."""
        return self._over is None and self._one(metadata_partition).is_ready

    async def reconcile_assignment(self, desired: Iterable[int]) -> None:
        """Follow these metadata partitions and no others.

        Those that are added go on from what was applied when they were followed last, or from their
        snapshot. Until it is known how far the log goes, and that has been applied, what is asked
        of them is `NotReady`; a log that does not say so is asked again by itself.
        """
        wanted = {self._one(partition).partition for partition in desired}
        async with self._reconciling:
            self._check_running()
            for followed in self._followed.values():
                if followed.is_assigned and followed.partition not in wanted:
                    followed.unassign()
                    self._pump.leave(followed.partition)
                elif not followed.is_assigned and followed.partition in wanted:
                    followed.assign()
                    self._pump.follow(followed)
            await self._look_how_far()

    async def wait_ready(self, metadata_partition: int, *, timeout_s: float | None = None) -> None:
        """Wait until questions are answered; raises why they are not."""
        followed = self._assigned_one(metadata_partition)
        await self._waiters.wait(
            lambda: followed.is_ready or self._why_waiting_is_vain(followed) is not None,
            timeout_s=self.config.refresh_timeout_s if timeout_s is None else timeout_s,
        )
        self._assigned_one(metadata_partition).check_ready()

    async def refresh(self, metadata_partition: int, *, timeout_s: float | None = None) -> None:
        """Ask how far the log goes now, and wait until all of that is applied.

        `NotReady` if that takes too long, or if the log does not say how far it goes.
        """
        followed = self._assigned_one(metadata_partition)
        timeout_s = self.config.refresh_timeout_s if timeout_s is None else timeout_s
        deadline_s = runtime.monotonic_s() + timeout_s
        assignment, mark = followed.assignments, await self._mark_of(followed, timeout_s)
        await self._waiters.wait(
            lambda: (
                followed.next_offset >= mark
                or followed.assignments != assignment
                or self._why_waiting_is_vain(followed) is not None
            ),
            timeout_s=max(0.0, deadline_s - runtime.monotonic_s()),
        )
        self._assigned_one(metadata_partition).check_ready()
        if followed.next_offset < mark:
            raise NotReady(
                f"metadata partition {metadata_partition} is applied up to {followed.next_offset} "
                f"of {mark}, and it was waited {timeout_s:.1f} s for that: try again",
                partition=metadata_partition,
            )

    def status(self) -> ManagerStatus:
        """Everything at a glance."""
        known = [one for one in self._followed.values() if one.is_assigned or one.next_offset]
        problem = str(self._over) if self._over else self._pump.problem or self._saving.problem
        return ManagerStatus(tuple(one.status() for one in known), problem)

    async def close(self) -> None:
        """Stop, and write what was applied to the snapshots; raises if that fails.

        After a bug nothing is written: what is known may not be what the events come to.
        """
        self._end(Refused("the manager of the tier's metadata is closed: start another"))
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks.clear()
        await self._saving.close(save=not isinstance(self._over, Bug))

    # Publishing

    async def publish(
        self,
        event: MetadataEvent,
        *,
        publisher_epoch: int | None = None,
        timeout_s: float | None = None,
    ) -> EventOutcome:
        """Publish an event, and wait until it is applied here; what it changed.

        The epoch stands beside the event, for a `PartitionDelete`; others carry their own. Raises
        `EventRejected` if the event does not follow from what is there, and `Fenced` if a newer
        leader has published: it changed nothing then. `Refused` if its metadata partition is not
        followed here, `Unavailable` if it could not be published: it is not in the log.
        `OutcomeUnknown` if the time is over: it may be.
        """
        check_event(event)
        followed = self._assigned_one(self.metadata_partition(partition_of(event)))
        followed.check_followed()
        began_s = runtime.monotonic_s()
        outcome = await publish_and_wait(
            self._log,
            followed,
            self._waiters,
            event,
            publisher_epoch=publisher_epoch,
            timeout_s=self.config.publish_timeout_s if timeout_s is None else timeout_s,
            why_vain=lambda: self._why_waiting_is_vain(followed),
        )
        self.metrics.published += 1
        self.metrics.publish_seconds.observe(runtime.monotonic_s() - began_s)
        return outcome

    # What is known

    def segment_at(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> SegmentMetadata | None:
        """The finished segment that holds an offset under an epoch."""
        cache = self._answering(partition)
        return cache.segment_at(partition, epoch, offset) if cache else None

    def segment_at_time(
        self, partition: TopicIdPartition, epoch: int, timestamp_ms: int, first_offset: int = 0
    ) -> SegmentMetadata | None:
        """The first segment of an epoch, from an offset on, with a record of this time or later."""
        cache = self._answering(partition)
        return (
            cache.segment_at_time(partition, epoch, timestamp_ms, first_offset) if cache else None
        )

    def highest_offset(self, partition: TopicIdPartition, epoch: int) -> int | None:
        """The last offset of an epoch that was ever finished."""
        cache = self._answering(partition)
        return cache.highest_offset(partition, epoch) if cache else None

    def segments(self, partition: TopicIdPartition) -> list[SegmentMetadata]:
        """All segments that are listed, in order of their start offsets."""
        cache = self._answering(partition)
        return cache.segments(partition) if cache else []

    def segments_of(self, partition: TopicIdPartition, epoch: int) -> list[SegmentMetadata]:
        """The segments with offsets of an epoch, in order of their start offsets."""
        cache = self._answering(partition)
        return cache.segments_of(partition, epoch) if cache else []

    def cover(self, partition: TopicIdPartition, first_lsn: int, end_lsn: int) -> list[CoverPiece]:
        """What to read for [first_lsn, end_lsn), each LSN from one segment."""
        cache = self._answering(partition)
        return cache.cover(partition, first_lsn, end_lsn) if cache else []

    def partition(self, partition: TopicIdPartition) -> PartitionCache | None:
        """All that is known of a partition, to be asked at once and not kept; None if nothing."""
        cache = self._answering(partition)
        return cache.partition(partition) if cache else None

    def delete_state(self, partition: TopicIdPartition) -> PartitionDeleteState | None:
        """How far the deletion of a partition has come; None also when it is over."""
        cache = self._answering(partition)
        return cache.delete_state(partition) if cache else None

    def publisher_epoch(self, partition: TopicIdPartition) -> int | None:
        """The newest epoch that has published for a partition, also if that is deleted."""
        cache = self._answering(partition)
        return cache.publisher_epoch(partition) if cache else None

    def _answering(self, partition: TopicIdPartition) -> TierCache | None:
        """The cache that knows all there is; None where its metadata partition is not followed."""
        self._check_running()
        followed = self._followed[self.metadata_partition(partition)]
        if not followed.is_assigned:
            return None
        followed.check_ready()
        return followed.cache

    # Keeping it going

    async def _tend(self) -> None:
        """Ask again for whatever failed, and write snapshots when it is time."""
        failures, look_at_s = 0, 0.0
        save_at_s = runtime.monotonic_s() + self.config.snapshot_interval_s
        while True:
            await runtime.sleep(self.config.tend_interval_s)
            now_s = runtime.monotonic_s()
            for followed in self._followed.values():
                if followed.retry_at_s is not None and now_s >= followed.retry_at_s:
                    self._pump.follow(followed)
            if now_s >= look_at_s:
                failures = 0 if await self._look_how_far() else failures + 1
                look_at_s = now_s + self.config.pause_s(failures) if failures else now_s
            if now_s >= save_at_s:
                await self._saving.save()
                save_at_s = runtime.monotonic_s() + self.config.snapshot_interval_s

    async def _look_how_far(self) -> bool:
        """Ask how far those partitions go of which it is not known; whether it is of all."""
        asked = {
            one: (one.assignments, one.next_offset)
            for one in self._followed.values()
            if one.is_assigned and one.high_water_mark is None and not one.is_stopped
        }
        if not asked:
            return True
        try:
            wanted = [followed.partition for followed in asked]
            marks = await self._high_water_marks(wanted, self.config.call_timeout_s)
        except HeadwaterError as error:
            self.metrics.high_water_mark_failures += 1
            for followed in asked:
                followed.problem = str(error)
            return False
        for followed, (assignments, since_offset) in asked.items():
            mark = marks.get(followed.partition)
            if mark is None:
                self.metrics.high_water_mark_failures += 1
                followed.problem = "the log does not say how far it goes"
            elif followed.is_assigned and followed.assignments == assignments:
                self._reaches_to(followed, mark, since_offset)
        return all(followed.partition in marks for followed in asked)

    async def _mark_of(self, followed: FollowedPartition, timeout_s: float) -> int:
        assignments, since_offset = followed.assignments, followed.next_offset
        try:
            # Of this one alone: another one that does not answer must not hold this one up.
            wanted, call_timeout_s = [followed.partition], self.config.call_timeout_s
            marks = await self._high_water_marks(wanted, min(timeout_s, call_timeout_s))
            mark = marks[followed.partition]
        except (HeadwaterError, KeyError) as error:
            self.metrics.high_water_mark_failures += 1
            raise NotReady(
                f"the log does not say how far metadata partition {followed.partition} goes: "
                f"{error}. Try again",
                partition=followed.partition,
            ) from error
        if followed.is_assigned and followed.assignments == assignments:
            self._reaches_to(followed, mark, since_offset)
        return mark

    def _reaches_to(self, followed: FollowedPartition, mark: int, since_offset: int) -> None:
        followed.reaches_to(mark, since_offset)
        if followed.is_stopped:
            self._pump.leave(followed.partition)

    async def _high_water_marks(self, partitions: list[int], timeout_s: float) -> dict[int, int]:
        try:
            async with asyncio.timeout(timeout_s):
                return dict(await self._log.high_water_marks(partitions))
        except TimeoutError:
            raise Unavailable(f"no answer within {timeout_s:.1f} s") from None

    # Being there

    def _one(self, metadata_partition: int) -> FollowedPartition:
        followed = self._followed.get(metadata_partition)
        if followed is None:
            raise Refused(
                f"there is no metadata partition {metadata_partition}: the log has "
                f"{self.partition_count}, numbered from 0"
            )
        return followed

    def _assigned_one(self, metadata_partition: int) -> FollowedPartition:
        self._check_running()
        followed = self._one(metadata_partition)
        if not followed.is_assigned:
            raise Refused(
                f"metadata partition {metadata_partition} is not followed here: assign it first"
            )
        return followed

    def _why_waiting_is_vain(self, followed: FollowedPartition) -> HeadwaterError | None:
        if self._over is not None:
            return self._over
        if not followed.is_assigned:
            return Refused(f"metadata partition {followed.partition} is followed no longer")
        return followed.stopped

    def _check_running(self) -> None:
        if self._over is not None:
            raise type(self._over)(str(self._over))

    def _end(self, why: HeadwaterError) -> None:
        if self._over is None:
            self._over = why
        self._waiters.tell()

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        task = runtime.spawn(coroutine, name=f"tier-metadata-{name}")
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Say so to everybody: what follows nothing must not go on answering."""
        if task.cancelled():
            self._end(Unavailable("the manager of the tier's metadata was cancelled"))
        elif (error := task.exception()) is not None:
            _log.error("the tier's metadata are followed no longer", exc_info=error)
            self._end(Bug(f"the tier's metadata are followed no longer: {error!r}"))
