"""What a manager did: plain numbers, for whoever serves them."""

from __future__ import annotations

from collections import Counter

from headwater.core.metrics import Histogram


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
