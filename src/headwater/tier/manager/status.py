"""Settings, status and metrics of a metadata manager."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields

import msgspec

from headwater.core import limits
from headwater.core.metrics import Histogram
from headwater.core.retry import retry_pause_s
from headwater.core.settings import check_above_zero


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


class ManagerMetrics:
    """Counts and durations of one manager, since it was started."""

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
