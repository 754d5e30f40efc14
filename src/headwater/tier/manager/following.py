"""Follows metadata partitions: one subscription to the log, and the state of each partition.

`EventPump` delivers items of the log to the partitions. It subscribes again after a failure, and
each partition continues after the last event that it applied.

Always holds of a `FollowedPartition`: `cache` is the state after the events below `next_offset`,
each applied once and in order; an unreadable event is never skipped; a query is answered only
after all events were applied that existed when the partition was assigned.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Iterator, Mapping
from typing import Final

from headwater.core import runtime
from headwater.core.errors import (
    Corrupt,
    Damaged,
    HeadwaterError,
    LimitExceeded,
    NotSupported,
    RolledBack,
    Trimmed,
    Unavailable,
)
from headwater.core.limits import METADATA_TURN_EVENTS
from headwater.core.runtime import Waiters
from headwater.tier.cache import EventOutcome, TierCache
from headwater.tier.errors import EventRejected, EventUndecodable, LogRenewed, NotReady
from headwater.tier.event_codec import decode_event, metadata_partition_for
from headwater.tier.eventlog import (
    EventDelivered,
    EventUnreadable,
    Item,
    MetadataEventLog,
    PartitionFailed,
    PositionReached,
    SnapshotDelivered,
    Subscription,
)
from headwater.tier.events import MetadataEvent, SegmentUpdate, partition_of
from headwater.tier.manager.status import ManagerConfig, ManagerMetrics, PartitionStatus
from headwater.tier.snapshot import NOTHING, Snapshot, dump_all

_log: Final = logging.getLogger("headwater")

EventResult = EventOutcome | EventRejected


class PendingEvent:
    """An event that somebody publishes, and what became of it wherever it was found."""

    def __init__(self) -> None:
        self.publishers = 0
        self.verdicts: dict[int, EventResult] = {}
        """By offset: the same event may have been published before."""


class FollowedPartition:
    """State of one metadata partition; it stays while the partition is not assigned."""

    def __init__(
        self, partition: int, partition_count: int, metrics: ManagerMetrics, waiters: Waiters
    ) -> None:
        self.partition = partition
        self.cache = TierCache()
        self.next_offset = 0
        self.saved_offset = 0
        """All below it is in a snapshot that was written."""
        self.committed_offset = NOTHING
        """Through where the snapshot went that was found at the start."""
        self.first_offset = 0
        self.is_assigned = False
        self.assignments = 0
        self.high_water_mark: int | None = None
        """As of the assignment; None while it is not known."""
        self.stopped: Damaged | LogRenewed | None = None
        self.retry_at_s: float | None = None
        """When to ask the log again for a partition that it could not go on with."""
        self.failures = 0
        self.problem: str | None = None
        self._partition_count = partition_count
        self._metrics = metrics
        self._waiters = waiters
        self._expected: dict[bytes, PendingEvent] = {}

    # What is known

    @property
    def is_stopped(self) -> bool:
        """Whether something was met that it must not pass."""
        return self.stopped is not None

    @property
    def is_ready(self) -> bool:
        """Whether all was applied that was there at the assignment."""
        return (
            self.is_assigned
            and self.stopped is None
            and self.high_water_mark is not None
            and self.next_offset >= self.high_water_mark
        )

    def check_ready(self) -> None:
        """Raise why an answer would not be all that there is to know."""
        self.check_followed()
        if self.high_water_mark is None:
            raise NotReady(
                f"how far metadata partition {self.partition} goes is not known yet: "
                f"{self.problem or 'it was only just assigned'}. Try again",
                partition=self.partition,
            )
        if self.next_offset < self.high_water_mark:
            raise NotReady(
                f"metadata partition {self.partition} is applied up to {self.next_offset} of "
                f"{self.high_water_mark}: try again",
                partition=self.partition,
            )

    def check_followed(self) -> None:
        """Raise why it is followed no further, if it is not."""
        if self.stopped is not None:
            raise _again(self.stopped)

    def status(self) -> PartitionStatus:
        """Everything at a glance."""
        caches = map(self.cache.partition, self.cache.partitions())
        return PartitionStatus(
            partition=self.partition,
            is_assigned=self.is_assigned,
            is_ready=self.is_ready,
            first_offset=self.first_offset,
            next_offset=self.next_offset,
            high_water_mark=self.high_water_mark,
            saved_offset=self.saved_offset,
            segments=sum(cache.segment_count for cache in caches if cache is not None),
            problem=str(self.stopped) if self.stopped else self.problem,
        )

    # Beginning and ending

    def resume(self, snapshot: Snapshot, cache: TierCache) -> None:
        """Go on from a snapshot, and from the cache that has its value."""
        self.cache = cache
        self.committed_offset = snapshot.through_offset
        self.first_offset = snapshot.first_offset
        self.next_offset = self.saved_offset = snapshot.through_offset + 1

    def assign(self) -> None:
        """Be followed from what was applied on."""
        self.is_assigned = True
        self.assignments += 1
        self.problem = self.retry_at_s = None
        self.failures = 0

    def unassign(self) -> None:
        """Be followed no longer; what stopped it is tried again by who follows it next."""
        self.is_assigned = False
        self.high_water_mark = self.retry_at_s = None
        if self.stopped is not None:
            self.stopped = None
            self._metrics.partitions_stopped -= 1
        self._waiters.tell()

    def reaches_to(self, high_water_mark: int, since_offset: int) -> None:
        """Know how far the log goes; `since_offset` was applied when that was asked."""
        if high_water_mark < since_offset:
            self._stop(
                RolledBack(
                    f"metadata partition {self.partition} ends at {high_water_mark}, and events "
                    f"below {since_offset} were applied: this is not the log that they are from. "
                    "Find the log, or remove the snapshots and begin anew"
                )
            )
        elif self.high_water_mark is None:
            self.high_water_mark = high_water_mark
            self.problem = None
        self._waiters.tell()

    def snapshot(self, log_id: uuid.UUID) -> Snapshot:
        """All that is known at this moment, as a value: a copy, whatever is applied afterwards."""
        return Snapshot(
            log_id=log_id,
            partition_count=self._partition_count,
            partition=self.partition,
            through_offset=self.next_offset - 1,
            dumps=dump_all(self.cache),
            first_offset=self.first_offset,
        )

    # Following

    def take(self, item: Item) -> bool:
        """Follow what the log delivered; whether there is anything to go on with."""
        if isinstance(item, EventDelivered):
            if item.offset >= self.next_offset:
                self._take_event(item)
        elif isinstance(item, EventUnreadable):
            if item.offset >= self.next_offset:
                self._stop(self._undecodable(item.offset, item.error))
        elif isinstance(item, SnapshotDelivered):
            self._take_snapshot(item)
        elif isinstance(item, PositionReached):
            self._move_to(item.next_offset)
        else:
            self._take_failure(item)
        self._waiters.tell()
        return not self.is_stopped

    def _take_event(self, item: EventDelivered) -> None:
        try:
            event = decode_event(item.payload)
            verdict = self._apply(event, item.publisher_epoch)
        except (Corrupt, NotSupported, LimitExceeded) as error:
            self._stop(self._undecodable(item.offset, error))
            return
        expected = self._expected.get(item.payload)
        if expected is not None:
            expected.verdicts[item.offset] = verdict
        self._move_to(item.offset + 1)

    def _apply(self, event: MetadataEvent, beside: int | None) -> EventResult:
        partition = partition_of(event)
        if metadata_partition_for(partition, self._partition_count) != self.partition:
            self._metrics.events_misplaced += 1
        verdict = self.cache.follow(event, beside)
        if isinstance(verdict, EventOutcome):
            self._metrics.events[verdict.value] += 1
            return verdict
        self._metrics.events["rejected"] += 1
        if isinstance(event, SegmentUpdate) and verdict.current is None:
            self._metrics.events_of_unknown_segments += 1
        return verdict

    def _take_snapshot(self, item: SnapshotDelivered) -> None:
        if item.through_offset < self.next_offset:
            return
        self.cache = item.cache
        # It is by all events, also where the log once began later than it was asked for.
        self.first_offset = 0
        self._metrics.snapshots_followed += 1
        self._move_to(item.through_offset + 1)

    def _move_to(self, next_offset: int) -> None:
        if next_offset > self.next_offset:
            self.next_offset = next_offset
            self.failures, self.retry_at_s = 0, None
            if self.high_water_mark is not None:
                self.problem = None

    def _take_failure(self, item: PartitionFailed) -> None:
        error = item.error
        self._metrics.partition_failures[type(error).__name__] += 1
        if isinstance(error, Trimmed) and self.next_offset < error.floor:
            self._begin_later(error)
        elif isinstance(error, Damaged | LogRenewed):
            self._stop(error)
        # Everything else may mend itself: the pump asks for the partition again.

    def _begin_later(self, trimmed: Trimmed) -> None:
        if self.next_offset == 0:
            # Nothing was applied, so nothing is missing in between: the log begins here.
            self.first_offset = self.next_offset = self.saved_offset = trimmed.floor
            return
        self._stop(
            Damaged(
                f"metadata partition {self.partition} begins at {trimmed.floor}, and only events "
                f"below {self.next_offset} were applied: those in between are gone. Remove the "
                "snapshots to begin with what there is"
            )
        )

    def _undecodable(self, offset: int, error: HeadwaterError) -> EventUndecodable:
        return EventUndecodable(
            f"metadata partition {self.partition} is followed up to offset {offset}, whose event "
            f"cannot be read: {error}. Nothing after it is known here",
            partition=self.partition,
            offset=offset,
        )

    def _stop(self, error: Damaged | LogRenewed) -> None:
        if self.stopped is None:
            self._metrics.partitions_stopped += 1
        self.stopped = error
        self.retry_at_s = None  # asking the log again does not help
        _log.error("metadata partition %d stopped: %s", self.partition, error)

    # Publishing

    @contextlib.contextmanager
    def expecting(self, payload: bytes) -> Iterator[dict[int, EventResult]]:
        """Keep what becomes of this event, by offset, while somebody publishes it."""
        expected = self._expected.setdefault(payload, PendingEvent())
        expected.publishers += 1
        try:
            yield expected.verdicts
        finally:
            expected.publishers -= 1
            if not expected.publishers:
                del self._expected[payload]


def _again(error: Damaged | LogRenewed) -> Damaged | LogRenewed:
    """The same error for another caller: one that was raised carries its traceback with it."""
    if isinstance(error, EventUndecodable):
        return EventUndecodable(str(error), partition=error.partition, offset=error.offset)
    for kind in (LogRenewed, RolledBack, Corrupt):
        if isinstance(error, kind):
            return kind(str(error))
    return Damaged(str(error))


class EventPump:
    """One subscription at a time."""

    def __init__(
        self,
        log: MetadataEventLog,
        followed: Mapping[int, FollowedPartition],
        config: ManagerConfig,
        metrics: ManagerMetrics,
    ) -> None:
        self.problem: str | None = None
        """Why there is no subscription at this moment."""
        self._log = log
        self._followed = followed
        self._config = config
        self._metrics = metrics
        self._subscription: Subscription | None = None
        self._failures = 0

    async def run(self) -> None:
        """Pump for ever; raises only what is a bug."""
        while True:
            try:
                await self._pump()
            except HeadwaterError as error:
                self.problem = str(error)
                self._metrics.subscription_failures[type(error).__name__] += 1
                if self._failures == 0:
                    _log.warning("metadata events are subscribed to again: %s", error)
            await runtime.sleep(self._config.pause_s(self._failures))
            self._failures += 1

    def follow(self, followed: FollowedPartition) -> None:
        """Have a partition delivered from what it has applied on; later, if nothing is now."""
        followed.retry_at_s = None
        if self._subscription is None:
            return
        if followed.high_water_mark is not None:
            followed.problem = (
                None  # a log that has nothing to deliver does not say that it is well
            )
        assignment = self._subscription.assignment
        try:
            # Removed first: where it is still assigned, adding it would leave it where it is.
            assignment.remove(followed.partition)
            assignment.add(followed.partition, followed.next_offset)
        except HeadwaterError as error:
            self._retry_later(followed, error)

    def leave(self, partition: int) -> None:
        """Have a partition delivered no longer."""
        if self._subscription is not None:
            self._subscription.assignment.remove(partition)

    async def _pump(self) -> None:
        subscription = await self._subscribe()
        self._subscription = subscription
        self._metrics.subscriptions += 1
        try:
            # Nothing was awaited since: whoever is assigned later is added by `follow`.
            for followed in self._followed.values():
                if followed.is_assigned and not followed.is_stopped:
                    self.follow(followed)
            self.problem = None
            turn = 0
            async for item in subscription.items:
                self._deliver(item)
                self._failures = 0
                turn += 1
                if turn % METADATA_TURN_EVENTS == 0:
                    await runtime.sleep(0)
        finally:
            self._subscription = None
            await subscription.assignment.close()
        raise Unavailable("the log ended the subscription")

    async def _subscribe(self) -> Subscription:
        timeout_s = self._config.call_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await self._log.subscribe({})
        except TimeoutError:
            raise Unavailable(f"the log made no subscription within {timeout_s:.1f} s") from None

    def _deliver(self, item: Item) -> None:
        followed = self._followed[item.partition]
        if not followed.is_assigned or followed.is_stopped:
            return
        if not followed.take(item):
            self.leave(followed.partition)
        elif isinstance(item, PartitionFailed):
            self._retry_later(followed, item.error)

    def _retry_later(self, followed: FollowedPartition, error: HeadwaterError) -> None:
        followed.problem = str(error)
        followed.retry_at_s = runtime.monotonic_s() + self._config.pause_s(followed.failures)
        followed.failures += 1
