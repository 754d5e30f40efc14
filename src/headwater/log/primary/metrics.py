"""What a leader did for its replicas: plain numbers, for whoever serves them."""

from __future__ import annotations

from collections import Counter

from headwater.core.metrics import Histogram


class ReplicationMetrics:
    """Counts and durations of one leader."""

    def __init__(self) -> None:
        self.partial_resyncs = 0
        """Replicas that came back and went on from where they were."""
        self.full_rebootstraps: Counter[str] = Counter()
        """Replicas that came back and were sent to a fresh copy, by cause."""
        self.slots_invalidated: Counter[str] = Counter()
        """By cause."""
        self.slots_dropped = 0
        self.slots_renewed = 0
        """Slots that a completed re-bootstrap made valid again."""
        self.pulls = 0
        self.records_sent = 0
        self.acknowledgements = 0
        self.health_flips: Counter[str] = Counter()
        """To healthy, to unhealthy."""
        self.sweeps_failed = 0
        """Looks after replicas and slots that an error of the log cut short."""
        self.commit_seconds = Histogram()
        """From asking until a record was replicated."""
        self.commit_timeouts: Counter[str] = Counter()
        """By policy."""
        self.prunes_held = 0
        """Times that less was pruned than could be, because slots could not be written."""
        self.held_up = 0
        """Writers that were held up because of the lag."""
        self.held_up_seconds = Histogram()
