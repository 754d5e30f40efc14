"""How requests went: counters, what they cost, and the warning about a store that does not answer.

Prices are list prices per thousand requests in the providers' cheapest common regions,
Standard/Hot class, late 2026: an estimate to compare designs by, not a bill. Storage and
transfer are not included. Deletes are free on S3 and Google; local stores cost nothing.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from headwater.core import limits, runtime
from headwater.core.metrics import Histogram

PRICED_AS_WRITES: Final = frozenset({"put", "put_if_absent", "put_if_unchanged", "list"})
PRICED_AS_READS: Final = frozenset({"get", "head"})

# scheme -> US dollars per 1,000 (writes and lists, reads)
PRICE_PER_THOUSAND: Final[dict[str, tuple[float, float]]] = {
    "s3": (0.005, 0.0004),
    "gs": (0.005, 0.0004),
    "az": (0.0065, 0.0005),
}


@dataclass(slots=True)
class OperationStats:
    """The requests of one kind: how many, how many failed, and how long they took."""

    requests: int = 0
    failures: int = 0
    retries: int = 0
    throttled: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    latency_s: Histogram = field(default_factory=Histogram)


@dataclass(slots=True)
class StoreStats:
    """The requests of one `Store` since it was opened."""

    scheme: str
    operations: dict[str, OperationStats] = field(default_factory=dict)

    def of(self, operation: str) -> OperationStats:
        stats = self.operations.get(operation)
        if stats is None:
            stats = self.operations[operation] = OperationStats()
        return stats

    @property
    def requests(self) -> int:
        """Requests of all kinds, including retries."""
        return sum(stats.requests for stats in self.operations.values())

    @property
    def cost_usd(self) -> float:
        """An estimate of what the requests cost, without storage and transfer."""
        write, read = PRICE_PER_THOUSAND.get(self.scheme, (0.0, 0.0))
        return sum(
            stats.requests
            / 1000
            * (write if name in PRICED_AS_WRITES else read if name in PRICED_AS_READS else 0.0)
            for name, stats in self.operations.items()
        )


_log = logging.getLogger(__name__)


class SlowWarning:
    """Logs that a store does not answer, while the caller still waits."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._warned_s: float | None = None

    def after(self, wait_s: float, operation: str) -> asyncio.TimerHandle:
        """Warn in `wait_s`, unless the returned handle is cancelled before."""
        return asyncio.get_running_loop().call_later(wait_s, self._warn, wait_s, operation)

    def _warn(self, waited_s: float, operation: str) -> None:
        now_s = runtime.monotonic_s()
        if self._warned_s is not None and now_s - self._warned_s < limits.SLOW_AGAIN_S:
            return
        self._warned_s = now_s
        _log.warning("%s has not answered a %s for %.0f s; waiting", self._url, operation, waited_s)
