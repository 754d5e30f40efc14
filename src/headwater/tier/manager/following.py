"""The metadata partitions that a manager follows: settings, the state of each, status and metrics.

Always holds of a `FollowedPartition`: `cache` is the state after the events below `next_offset`,
each applied once and in order; an unreadable event is never skipped; a query is answered only
after all events were applied that existed when the partition was assigned.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import ClassVar, Final, TypeAlias

import msgspec

from headwater.core import limits
from headwater.core.errors import (
    Corrupt,
    Damaged,
    EntriesTrimmed,
    Fenced,
    HeadwaterError,
    LimitExceeded,
    NotSupported,
    Refused,
    RolledBack,
)
from headwater.core.metrics import Histogram, Metrics
from headwater.core.retry import retry_pause_s
from headwater.core.runtime import Waiters
from headwater.core.settings import check_above_zero
from headwater.tier import metric_names
from headwater.tier.cache import EventOutcome, TierCache
from headwater.tier.errors import EventRejected, EventUndecodable, LogRenewed, NotReady
from headwater.tier.event_codec import decode_event, metadata_partition_for
from headwater.tier.eventlog import (
    EventDelivered,
    EventUnreadable,
    LogItem,
    PartitionFailed,
    PositionReached,
    SnapshotDelivered,
)
from headwater.tier.events import (
    MetadataEvent,
    PartitionDelete,
    SegmentUpdate,
    check_epoch,
    partition_of,
    publisher_epoch_of,
)
from headwater.tier.snapshot import NOTHING, Snapshot, dump_all

_log: Final = logging.getLogger("headwater")

EventResult: TypeAlias = EventOutcome | EventRejected
LEADER_EPOCH_MAX: Final = (1 << 31) - 1
"""The format of segments has no larger leader epoch."""


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """Timeouts and intervals, in seconds."""

    publish_timeout_s: float = limits.METADATA_PUBLISH_TIMEOUT_S
    """How long `publish` waits until the event is applied, unless the caller sets a timeout."""
    refresh_timeout_s: float = limits.METADATA_REFRESH_TIMEOUT_S
    """How long `refresh` waits, unless the caller sets a timeout."""
    call_timeout_s: float = limits.METADATA_CALL_TIMEOUT_S
    """A call to the log that takes longer is cancelled and retried."""
    tend_interval_s: float = limits.METADATA_TEND_INTERVAL_S
    """How often the manager checks whether a retry is due."""
    retry_base_s: float = limits.METADATA_RETRY_BASE_S
    retry_cap_s: float = limits.METADATA_RETRY_CAP_S
    """Pauses between retries double from `retry_base_s` to this, with jitter."""
    snapshot_interval_s: float = limits.METADATA_SNAPSHOT_INTERVAL_S
    """How often the snapshots of changed partitions are written."""

    def __post_init__(self) -> None:
        check_above_zero(self, *(one.name for one in fields(self)))

    def pause_s(self, failures: int) -> float:
        return retry_pause_s(failures, base_s=self.retry_base_s, cap_s=self.retry_cap_s)


class PartitionStatus(msgspec.Struct, frozen=True):
    partition: int
    is_assigned: bool
    is_ready: bool
    first_offset: int
    """The first event that was applied; above 0, earlier events were deleted, and segments that
    only they mention are unknown."""
    next_offset: int
    """All events below it are applied."""
    high_water_mark: int | None
    """The offset up to which events must be applied before it is ready; None while unknown."""
    saved_offset: int
    """All events below it are in the snapshot."""
    segments: int
    problem: str | None
    """Why it stopped, or what is being retried."""


class ManagerStatus(msgspec.Struct, frozen=True):
    partitions: tuple[PartitionStatus, ...]
    """The partitions that are or were followed, in order."""
    problem: str | None
    """What is wrong with the subscription as a whole, or with the snapshots."""


class ManagerMetrics(Metrics):
    """Counts and durations of one manager, since it was started."""

    exported: ClassVar = metric_names.MANAGER

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        """By result: changed, repeated, stale, rejected."""
        self.events_of_unknown_segments = 0
        """Rejected updates of segments that are not in the log any more."""
        self.events_misplaced = 0
        """Events in another metadata partition than the one of their partition."""
        self.snapshots_followed = 0
        """Snapshots applied in place of events that were deleted from the log."""
        self.partitions_stopped = 0
        """Assigned partitions that are stopped now."""
        self.partition_failures: Counter[str] = Counter()
        """Failures of single partitions that the log reported, by kind of error."""
        self.subscriptions = 0
        self.subscription_failures: Counter[str] = Counter()
        """By kind of error."""
        self.high_water_mark_failures = 0
        self.published = 0
        self.publish_seconds = Histogram()
        """From `publish` until the event was applied here."""
        self.snapshots_written = 0
        self.snapshots_failed = 0
        self.snapshots_damaged = 0
        """Ignored at the start: their partitions are read from the log."""


class FollowedPartition:
    """The state of one metadata partition; it is kept while the partition is not assigned."""

    def __init__(
        self, partition: int, partition_count: int, metrics: ManagerMetrics, waiters: Waiters
    ) -> None:
        self.partition = partition
        self.cache = TierCache()
        self.next_offset = 0
        self.saved_offset = 0
        """The events below are in a snapshot on disk."""
        self.committed_offset = NOTHING
        """The last offset in the snapshot that was loaded at the start."""
        self.first_offset = 0
        self.is_assigned = False
        self.assignments = 0
        self.high_water_mark: int | None = None
        """At the time of the assignment; None while it is unknown."""
        self.stopped: Damaged | LogRenewed | None = None
        """The error that it must not skip, if it stopped at one."""
        self.retry_at_s: float | None = None
        """When to ask the log again for a partition that failed."""
        self.failures = 0
        self.problem: str | None = None
        self._partition_count = partition_count
        self._metrics = metrics
        self._waiters = waiters
        self._awaited: dict[bytes, list[dict[int, EventResult]]] = {}
        """By event: the results that its publishers collect."""

    # State

    @property
    def is_ready(self) -> bool:
        """Whether all events are applied that existed at the assignment."""
        return (
            self.is_assigned
            and self.stopped is None
            and self.high_water_mark is not None
            and self.next_offset >= self.high_water_mark
        )

    def check_ready(self) -> None:
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
        if self.stopped is not None:
            raise _copy_of(self.stopped)

    def status(self) -> PartitionStatus:
        states = map(self.cache.partition, self.cache.partitions())
        return PartitionStatus(
            partition=self.partition,
            is_assigned=self.is_assigned,
            is_ready=self.is_ready,
            first_offset=self.first_offset,
            next_offset=self.next_offset,
            high_water_mark=self.high_water_mark,
            saved_offset=self.saved_offset,
            segments=sum(state.segment_count for state in states),
            problem=str(self.stopped) if self.stopped else self.problem,
        )

    # Assignment

    def restore(self, snapshot: Snapshot, cache: TierCache) -> None:
        self.cache = cache
        self.committed_offset = snapshot.through_offset
        self.first_offset = snapshot.first_offset
        self.next_offset = self.saved_offset = snapshot.through_offset + 1

    def assign(self) -> None:
        """Start to follow it after the last applied event."""
        self.is_assigned = True
        self.assignments += 1
        self.problem = self.retry_at_s = None
        self.failures = 0

    def unassign(self) -> None:
        """Stop following it; the next assignment retries the event that stopped it."""
        self.is_assigned = False
        self.high_water_mark = self.retry_at_s = None
        if self.stopped is not None:
            self.stopped = None
            self._metrics.partitions_stopped -= 1
        self._waiters.notify()

    def set_high_water_mark(self, high_water_mark: int, since_offset: int) -> None:
        """Set how far the log goes; events below `since_offset` were applied before the query."""
        if high_water_mark < since_offset:
            self._stop(
                RolledBack(
                    f"metadata partition {self.partition} ends at {high_water_mark}, and events "
                    f"below {since_offset} were applied: they are from another log. Open that log, "
                    "or remove the snapshots to start again"
                )
            )
        elif self.high_water_mark is None:
            self.high_water_mark = high_water_mark
            self.problem = None
        self._waiters.notify()

    def snapshot(self, log_id: uuid.UUID) -> Snapshot:
        """A copy of the state, which later events do not change."""
        return Snapshot(
            log_id=log_id,
            partition_count=self._partition_count,
            partition=self.partition,
            through_offset=self.next_offset - 1,
            dumps=dump_all(self.cache),
            first_offset=self.first_offset,
        )

    # Applying items

    def apply_item(self, item: LogItem) -> bool:
        """Apply an item of the log; returns whether to continue."""
        if isinstance(item, EventDelivered):
            if item.offset >= self.next_offset:
                self._apply_event(item)
        elif isinstance(item, EventUnreadable):
            if item.offset >= self.next_offset:
                self._stop(self._undecodable(item.offset, item.error))
        elif isinstance(item, SnapshotDelivered):
            self._apply_snapshot(item)
        elif isinstance(item, PositionReached):
            self._move_to(item.next_offset)
        else:
            self._apply_failure(item)
        self._waiters.notify()
        return self.stopped is None

    def _apply_event(self, item: EventDelivered) -> None:
        try:
            event = decode_event(item.payload)
            result = self._apply(event, item.publisher_epoch)
        except (Corrupt, NotSupported, LimitExceeded) as error:
            self._stop(self._undecodable(item.offset, error))
            return
        for results in self._awaited.get(item.payload, ()):
            results[item.offset] = result
        self._move_to(item.offset + 1)

    def _apply(self, event: MetadataEvent, publisher_epoch: int | None) -> EventResult:
        partition = partition_of(event)
        if metadata_partition_for(partition, self._partition_count) != self.partition:
            self._metrics.events_misplaced += 1
        result = self.cache.follow(event, publisher_epoch)
        if isinstance(result, EventOutcome):
            self._metrics.events[result.value] += 1
            return result
        self._metrics.events["rejected"] += 1
        if isinstance(event, SegmentUpdate) and result.current is None:
            self._metrics.events_of_unknown_segments += 1
        return result

    def _apply_snapshot(self, item: SnapshotDelivered) -> None:
        if item.through_offset < self.next_offset:
            return
        self.cache = item.cache
        # A snapshot has all events, even if this partition started after the first of them.
        self.first_offset = 0
        self._metrics.snapshots_followed += 1
        self._move_to(item.through_offset + 1)

    def _move_to(self, next_offset: int) -> None:
        if next_offset > self.next_offset:
            self.next_offset = next_offset
            self.failures, self.retry_at_s = 0, None
            if self.high_water_mark is not None:
                self.problem = None

    def _apply_failure(self, item: PartitionFailed) -> None:
        error = item.error
        self._metrics.partition_failures[type(error).__name__] += 1
        if isinstance(error, EntriesTrimmed) and self.next_offset < error.first_offset:
            self._start_at_floor(error)
        elif isinstance(error, Damaged | LogRenewed):
            self._stop(error)
        # Other errors may pass: the pump asks for the partition again.

    def _start_at_floor(self, trimmed: EntriesTrimmed) -> None:
        if self.next_offset == 0:
            # Nothing was applied, so there is no gap: the log begins here.
            self.first_offset = self.next_offset = self.saved_offset = trimmed.first_offset
            return
        self._stop(
            Damaged(
                f"metadata partition {self.partition} begins at {trimmed.first_offset}, and only "
                f"events below {self.next_offset} were applied: those in between are deleted. "
                "Remove the snapshots to start at the first event that is left"
            )
        )

    def _undecodable(self, offset: int, error: HeadwaterError) -> EventUndecodable:
        return EventUndecodable(
            f"metadata partition {self.partition} is followed up to offset {offset}, whose event "
            f"cannot be read: {error}. No later event is applied here",
            partition=self.partition,
            offset=offset,
        )

    def _stop(self, error: Damaged | LogRenewed) -> None:
        if self.stopped is None:
            self._metrics.partitions_stopped += 1
        self.stopped = error
        self.retry_at_s = None  # a retry does not help
        _log.error("metadata partition %d stopped: %s", self.partition, error)

    # Publishing

    def check_publisher(self, event: MetadataEvent, publisher_epoch: int | None) -> None:
        """Raise `Fenced` or `Refused` for an epoch that is known to be stale or impossible."""
        check_epoch(publisher_epoch)
        epoch = publisher_epoch_of(event, publisher_epoch)
        if epoch is None:
            return
        newest = self.cache.partition(partition_of(event)).publisher_epoch
        if newest is None:
            # No earlier epoch is known: a consumer may have been opened any number of times before.
            most, before = LEADER_EPOCH_MAX, "a segment cannot have a higher one"
        elif epoch < newest:
            raise self.fenced_by_newer(event)
        else:
            most = min(newest + limits.EPOCH_STEP_MAX, LEADER_EPOCH_MAX)
            before = f"{newest} was the last, and EPOCH_STEP_MAX is {limits.EPOCH_STEP_MAX:,}"
            if isinstance(event, PartitionDelete):
                # A stream's deletion is published above its last leader, whatever epoch that had.
                most = max(most, newest + 1)
        if epoch > most:
            raise Refused(
                f"no leader of {partition_of(event)} has epoch {epoch}: at most {most} is possible "
                f"({before}). Every later leader would be ignored. Nothing was published"
            )

    def fenced_by_newer(self, event: MetadataEvent) -> Fenced:
        partition = partition_of(event)
        newest = self.cache.partition(partition).publisher_epoch
        return Fenced(
            f"a leader of epoch {newest} has published for {partition}: events of older leaders "
            "are ignored"
        )

    @contextlib.contextmanager
    def awaiting(self, payload: bytes) -> Iterator[dict[int, EventResult]]:
        """Collect the results of this event while it is being published.

        By offset: an equal event may have been published before, or be published by another task.
        """
        results: dict[int, EventResult] = {}
        publishers = self._awaited.setdefault(payload, [])
        publishers.append(results)
        try:
            yield results
        finally:
            publishers[:] = [one for one in publishers if one is not results]
            if not publishers:
                del self._awaited[payload]


def _copy_of(error: Damaged | LogRenewed) -> Damaged | LogRenewed:
    """An equal error to raise: raising the same object again would extend its traceback."""
    if isinstance(error, EventUndecodable):
        return EventUndecodable(str(error), partition=error.partition, offset=error.offset)
    for kind in (LogRenewed, RolledBack, Corrupt):
        if isinstance(error, kind):
            return kind(str(error))
    return Damaged(str(error))
