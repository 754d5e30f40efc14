"""What a consumer counts, under the names that dashboards of the published buffer know."""

from __future__ import annotations

from typing import Final

from headwater.buffer.queue.contract import Collected, Counters
from headwater.core import runtime
from headwater.core.metrics import Histogram

_PUBLISHED: Final = (
    "batches_collected",
    "entries_collected",
    "bytes_collected",
    "consumer_lag_seconds",
    "queue_length",
    "acks",
    "gc_files_deleted",
    "gc_files_failed",
    "gc_duration_seconds",
    "fetch_duration_seconds",
    "descriptors_handed_out",
)


class ConsumerMetrics:
    """Plain numbers of one consumer; `published()` gives them under their published names."""

    def __init__(self, counters: Counters | None = None) -> None:
        self.counters = counters or Counters()
        self.batches_collected = 0
        self.entries_collected = 0
        self.bytes_collected = 0
        self.descriptors_handed_out = 0
        self.acks = 0
        self.queue_length = 0
        self.dead_letters = 0
        self.gc_files_deleted = 0
        self.gc_files_failed = 0
        self.gc_passes_failed = 0
        self.gc_last_error = ""
        self.gc_duration_seconds = Histogram()
        self.fetch_duration_seconds = Histogram()
        self.waiting_since_ms: int | None = None
        """The ingestion time of the oldest batch known to wait for its acknowledgement."""

    def __repr__(self) -> str:
        names = [*_PUBLISHED, "dead_letters", "gc_passes_failed", "gc_last_error"]
        names += ["manifest_writes", "manifest_conflicts"]
        told = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"ConsumerMetrics({told})"

    @property
    def consumer_lag_seconds(self) -> float:
        """How long the oldest batch known to be unacknowledged has waited, up to this moment.

        Kept as a time and not as a duration: a duration written when a batch arrives stands
        still while the consumer does, just when somebody should look.
        """
        if self.waiting_since_ms is None:
            return 0.0
        return max(0.0, (runtime.wall_ms() - self.waiting_since_ms) / 1000)

    @property
    def manifest_writes(self) -> int:
        """Conditional writes to the queue."""
        return self.counters.writes

    @property
    def manifest_conflicts(self) -> int:
        """Those of them that lost a race."""
        return self.counters.conflicts

    def fetched(self, entries: int, size_bytes: int, seconds: float) -> None:
        """Count a batch that was fetched and decoded."""
        self.batches_collected += 1
        self.entries_collected += entries
        self.bytes_collected += size_bytes
        self.fetch_duration_seconds.observe(seconds)

    def collected(self, done: Collected, seconds: float) -> None:
        """Count a pass of the garbage collector."""
        self.gc_files_deleted += done.batches_expired + done.batches_orphaned + done.chunks_expired
        self.gc_files_failed += done.failed
        self.gc_duration_seconds.observe(seconds)

    def published(self) -> dict[str, float | Histogram]:
        """Every metric under its published name."""
        found: dict[str, float | Histogram] = {
            f"buffer.{name}": getattr(self, name) for name in _PUBLISHED
        }
        found['buffer.manifest_writes{role="consumer"}'] = self.manifest_writes
        found['buffer.manifest_conflicts{role="consumer"}'] = self.manifest_conflicts
        return found
