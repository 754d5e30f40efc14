"""What the jobs did: plain numbers, for whoever serves them."""

from __future__ import annotations

from collections import Counter


class TierMetrics:
    """Of one leader, since it began."""

    def __init__(self) -> None:
        self.copied_segments = 0
        self.copied_bytes = 0
        """Of objects made from the local log."""
        self.merged_segments = 0
        """Made by merging."""
        self.merged_bytes = 0
        self.unlisted_segments = 0
        self.removed_objects = 0
        self.dropped_lsns = 0
        """From the local log, because they are remote."""
        self.lag_lsns = 0
        """LSNs of the local log that are not remote, when a round last came to its end."""
        self.missing_lsns = 0
        """LSNs at or above the log start that are neither remote nor local."""
        self.failures: Counter[str] = Counter()
        """By job."""
        self.succeeded_ms: dict[str, int] = {}
        """By job: when it last came to its end, by this process's clock."""
