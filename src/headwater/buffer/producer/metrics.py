"""The metrics of a producer."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.buffer.queue.contract import Counters
from headwater.core.metrics import Histogram, Metrics


class ProducerMetrics(Metrics):
    """The metrics of one producer; `published()` has the names of the published buffer."""

    computed = ("manifest_writes", "manifest_conflicts")

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

    @property
    def manifest_writes(self) -> int:
        """Conditional writes to the queues."""
        return sum(counters.writes for counters in self._counters)

    @property
    def manifest_conflicts(self) -> int:
        """Conditional writes that lost a race."""
        return sum(counters.conflicts for counters in self._counters)

    def published(self) -> dict[str, object]:
        """The metrics under the names that dashboards of the published buffer use."""
        values = self.values(prefix="buffer.")
        for name in self.computed:
            values[f'buffer.{name}{{role="producer"}}'] = values.pop(f"buffer.{name}")
        return values
