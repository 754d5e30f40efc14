"""Settings, status and metrics of a metadata manager."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields

import msgspec

from headwater.core import limits
from headwater.core.errors import Refused
from headwater.core.metrics import Histogram
from headwater.core.retry import retry_pause_s


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """Times, in seconds."""

    publish_timeout_s: float = limits.METADATA_PUBLISH_TIMEOUT_S
    """How long a publisher waits until its event is applied here, unless it says so itself."""
    refresh_timeout_s: float = limits.METADATA_REFRESH_TIMEOUT_S
    """How long a refresh waits until it has caught up, unless its caller says so."""
    call_timeout_s: float = limits.METADATA_CALL_TIMEOUT_S
    """A question to the log that takes so long is given up, and asked again."""
    tend_interval_s: float = limits.METADATA_TEND_INTERVAL_S
    """How often it is looked whether something has to be tried again."""
    retry_base_s: float = limits.METADATA_RETRY_BASE_S
    retry_cap_s: float = limits.METADATA_RETRY_CAP_S
    """Pauses before the next try double from the one to the other, with jitter."""
    snapshot_interval_s: float = limits.METADATA_SNAPSHOT_INTERVAL_S
    """How often partitions that moved are written to their snapshots."""

    def __post_init__(self) -> None:
        for one in fields(self):
            if not getattr(self, one.name) > 0:
                raise Refused(f"{one.name} is {getattr(self, one.name)}: it must be above 0")

    def pause_s(self, failures: int) -> float:
        """How long to wait after so many failures in a row."""
        return retry_pause_s(failures, base_s=self.retry_base_s, cap_s=self.retry_cap_s)


class PartitionStatus(msgspec.Struct, frozen=True):
    """One metadata partition."""

    partition: int
    is_assigned: bool
    is_ready: bool
    first_offset: int
    """Where the log began when it was followed from its beginning; above 0, earlier events are
    gone, and segments that only they told of are not known."""
    next_offset: int
    """All events below it are applied."""
    high_water_mark: int | None
    """Up to where it has to be applied before it is ready; None while that is not known."""
    saved_offset: int
    """All events below it are in the snapshot."""
    segments: int
    problem: str | None
    """Why it is followed no further, or what is being tried again."""


class ManagerStatus(msgspec.Struct, frozen=True):
    """Everything at a glance."""

    partitions: tuple[PartitionStatus, ...]
    """Those that are or were followed, in order."""
    problem: str | None
    """What is wrong with the subscription as a whole, or with the snapshots."""


class ManagerMetrics:
    """Counts and durations of one manager, since it was started."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        """By what became of them: changed, repeated, stale, rejected."""
        self.events_of_unknown_segments = 0
        """Of the rejected ones, updates of segments that the log no longer tells of."""
        self.events_misplaced = 0
        """Events in another metadata partition than the one where they are looked for."""
        self.snapshots_followed = 0
        """Snapshots that took the place of events, because the log has these no longer."""
        self.partitions_stopped = 0
        """Assigned ones that stand still at this moment."""
        self.partition_failures: Counter[str] = Counter()
        """What the log told of partitions that it could not go on with, by kind of error."""
        self.subscriptions = 0
        self.subscription_failures: Counter[str] = Counter()
        """By kind of error."""
        self.high_water_mark_failures = 0
        self.published = 0
        self.publish_seconds = Histogram()
        """Until an event that was published was applied here."""
        self.snapshots_written = 0
        self.snapshots_failed = 0
        self.snapshots_damaged = 0
        """Found at the start, and left out: their partitions are read from the log."""
