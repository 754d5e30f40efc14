"""What the jobs did: plain numbers, for whoever serves them."""

from __future__ import annotations

from collections import Counter


class TierMetrics:
    """Counts of one leader, since it began."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        """By job: segments copied, objects removed, segments unlisted, segments merged away, LSNs
        dropped from the local log."""
        self.failures: Counter[str] = Counter()
        """By job."""
        self.missing_lsns = 0
        """LSNs at or above the log start that are neither remote nor local."""
