"""What a coordinator did and how long it took: plain numbers, for whoever serves them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headwater.coordinator.channel import Channel
from headwater.coordinator.watermarks import Watermarks
from headwater.core.metrics import Histogram


class CoordinatorMetrics:
    """Counts and durations of one coordinator."""

    def __init__(self, watermarks: Watermarks, channels: Sequence[Channel]) -> None:
        self._channels = channels
        self.writes_taken = 0
        """Writes that left their channel, refused ones included."""
        self.writes_refused = 0
        """Writes that the delta refused."""
        self.delta_bytes = 0
        """The size of the current delta, by its own estimate."""
        self.frozen = 0
        """Deltas that are frozen and not written."""
        self.flushes: Counter[str] = Counter()
        """By reason: interval, size, command, stop."""
        self.flush_retries = 0
        self.backpressure: Counter[str] = Counter()
        """By reason: full (turned away at once), waited (stood in line for room), timeout (and
        gave up), frozen (the writer itself waited, for a frozen delta to be written)."""
        self.apply_seconds = Histogram()
        """Of a turn: up to COORDINATOR_TURN_WRITES writes."""
        self.freeze_seconds = Histogram()
        self.flush_seconds = Histogram()
        """From the first try of a flush until it was written."""
        self.watermarks = watermarks
        """The write epochs applied, written and durable."""

    @property
    def writes_applied(self) -> int:
        """Writes that the delta took."""
        return self.writes_taken - self.writes_refused

    @property
    def queue_depth(self) -> dict[str, int]:
        """Commands in each channel at this moment."""
        return {channel.name: len(channel.commands) for channel in self._channels}

    @property
    def writers_waiting(self) -> dict[str, int]:
        """Calls that wait for room in each channel at this moment."""
        return {channel.name: channel.writers_waiting for channel in self._channels}
