"""What a producer did, under the names that dashboards know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headwater.buffer.queue.contract import Counters
from headwater.core.metrics import Histogram

_PUBLISHED: Final = (
    "batches_flushed",
    "entries_flushed",
    "bytes_flushed",
    "bytes_written",
    "flush_duration_seconds",
)


class ProducerMetrics:
    """Plain counters; `published()` gives them under their published names.

    `manifest_writes` and `manifest_conflicts` have the role `producer` there.
    """

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

    def count(self, rows: int, size_bytes: int, written_bytes: int, took_s: float) -> None:
        """A batch was accepted."""
        self.batches_flushed += 1
        self.entries_flushed += rows
        self.bytes_flushed += size_bytes
        self.bytes_written += written_bytes
        self.flush_duration_seconds.observe(took_s)

    def __repr__(self) -> str:
        names = (*_PUBLISHED[:-1], "manifest_writes", "manifest_conflicts", _PUBLISHED[-1])
        return f"ProducerMetrics({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    @property
    def manifest_writes(self) -> int:
        """Conditional writes to the queues."""
        return sum(counters.writes for counters in self._counters)

    @property
    def manifest_conflicts(self) -> int:
        """Those of them that lost a race."""
        return sum(counters.conflicts for counters in self._counters)

    def published(self) -> dict[str, float | Histogram]:
        """Every metric under its published name."""
        found: dict[str, float | Histogram] = {
            f"buffer.{name}": getattr(self, name) for name in _PUBLISHED
        }
        found['buffer.manifest_writes{role="producer"}'] = self.manifest_writes
        found['buffer.manifest_conflicts{role="producer"}'] = self.manifest_conflicts
        return found
