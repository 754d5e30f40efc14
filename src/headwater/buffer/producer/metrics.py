"""What a producer did, under the names that dashboards know."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.buffer.queue.contract import Counters
from headwater.core.metrics import Histogram


class ProducerMetrics:
    """Plain counters; `manifest_writes` and `manifest_conflicts` have the role `producer`."""

    def __init__(self, counters: Sequence[Counters]) -> None:
        self._counters = counters
        self.batches_flushed = 0
        """Batches that were accepted."""
        self.entries_flushed = 0
        """Records in them."""
        self.bytes_flushed = 0
        """Their size before encoding."""
        self.bytes_written = 0
        """Their size as it was written."""
        self.flush_duration_seconds = Histogram()
        """From sealing to acceptance."""

    def __repr__(self) -> str:
        names = (
            "batches_flushed entries_flushed bytes_flushed bytes_written manifest_writes "
            "manifest_conflicts flush_duration_seconds"
        )
        told = ", ".join(f"{name}={getattr(self, name)!r}" for name in names.split())
        return f"ProducerMetrics({told})"

    @property
    def manifest_writes(self) -> int:
        """Conditional writes to the queues."""
        return sum(counters.writes for counters in self._counters)

    @property
    def manifest_conflicts(self) -> int:
        """Those of them that lost a race."""
        return sum(counters.conflicts for counters in self._counters)
