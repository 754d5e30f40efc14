"""What the jobs did: plain numbers, for whoever serves them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class TierMetrics:
    """Of one leader, since it began."""

    copied_segments: int = 0
    copied_bytes: int = 0
    """Of objects made from the local log."""
    merged_segments: int = 0
    """Made by merging."""
    merged_bytes: int = 0
    unlisted_segments: int = 0
    removed_objects: int = 0
    dropped_lsns: int = 0
    """From the local log, because they are remote."""
    lag_lsns: int = 0
    """LSNs of the local log that are not remote, when a round last came to its end."""
    missing_lsns: int = 0
    """LSNs at or above the log start that are neither remote nor local."""
    failures: Counter[str] = field(default_factory=Counter)
    """By job."""
    succeeded_ms: dict[str, int] = field(default_factory=dict)
    """By job: when it last came to its end, by this process's clock."""
