"""What a coordinator did and how long it took: plain numbers, for whoever serves them."""

from __future__ import annotations

from collections import Counter

from headwater.coordinator.watermarks import Watermarks
from headwater.core.metrics import Histogram


class CoordinatorMetrics:
    """Counts and durations of one coordinator."""

    def __init__(self, watermarks: Watermarks) -> None:
        self.writes_applied = 0
        self.writes_refused = 0
        """Writes that the delta refused."""
        self.queue_depth: dict[str, int] = {}
        """Commands that wait in each channel, as of its last turn."""
        self.delta_bytes = 0
        """The size of the current delta, by its own estimate."""
        self.frozen = 0
        """Deltas that are frozen and not written."""
        self.flushes: Counter[str] = Counter()
        """By reason: interval, size, command, stop."""
        self.flush_retries = 0
        self.backpressure: Counter[str] = Counter()
        """By reason: full, timeout (writers turned away), frozen (the writer waited to freeze)."""
        self.apply_seconds = Histogram()
        """Of a turn: up to COORDINATOR_TURN_WRITES writes."""
        self.freeze_seconds = Histogram()
        self.flush_seconds = Histogram()
        """From the first try of a flush until it was written."""
        self.watermarks = watermarks
        """The write epochs applied, written and durable."""
