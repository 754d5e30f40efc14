"""What a store did: requests, latencies, bytes, retries, and what they would have cost.

Prices are list prices per thousand requests in the providers' cheapest common regions,
Standard/Hot class, late 2026: an estimate to compare designs by, not a bill. Storage and
transfer are not in it. Deletes are free on S3 and Google; local stores cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from headwater.core.metrics import Histogram

WRITES: Final = frozenset({"put", "put_if_absent", "put_if_unchanged", "put_stream", "list"})
READS: Final = frozenset({"get", "head"})

# scheme -> US dollars per 1,000 (writes and lists, reads)
PRICE_PER_THOUSAND: Final[dict[str, tuple[float, float]]] = {
    "s3": (0.005, 0.0004),
    "gs": (0.005, 0.0004),
    "az": (0.0065, 0.0005),
}


@dataclass(slots=True)
class OperationStats:
    """One kind of operation: how often it was sent, how it went, how long it took."""

    requests: int = 0
    failures: int = 0
    retries: int = 0
    throttled: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    latency_s: Histogram = field(default_factory=Histogram)
    in_flight: int = 0
    """Attempts that were sent and are not answered yet."""


@dataclass(slots=True)
class StoreStats:
    """All that one `Store` did since it was opened."""

    scheme: str
    operations: dict[str, OperationStats] = field(default_factory=dict)

    def of(self, operation: str) -> OperationStats:
        """The numbers of one operation."""
        found = self.operations.get(operation)
        if found is None:
            found = self.operations[operation] = OperationStats()
        return found

    @property
    def requests(self) -> int:
        """Requests of every kind, retries included."""
        return sum(stats.requests for stats in self.operations.values())

    @property
    def answered(self) -> int:
        """How many attempts have ended, however they did."""
        return sum(stats.latency_s.count for stats in self.operations.values())

    @property
    def in_flight(self) -> int:
        """Attempts of every kind that are not answered yet."""
        return sum(stats.in_flight for stats in self.operations.values())

    @property
    def cost_usd(self) -> float:
        """An estimate of what the requests cost, without storage and transfer."""
        write, read = PRICE_PER_THOUSAND.get(self.scheme, (0.0, 0.0))
        return sum(
            stats.requests / 1000 * (write if name in WRITES else read if name in READS else 0.0)
            for name, stats in self.operations.items()
        )
