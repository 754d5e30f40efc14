"""How requests went: counters, what they cost, and the warning about a store that does not answer.

Prices are list prices per thousand requests in the providers' cheapest common regions,
Standard/Hot class, late 2026: an estimate to compare designs by, not a bill. Storage and
transfer are not included. Deletes are free on S3 and Google; local stores cost nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from headwater.core import limits, runtime
from headwater.core.metrics import (
    Histogram,
    Labels,
    MetricDefinition,
    MetricKind,
    Metrics,
    Sample,
    counter,
    histogram,
    labels_of,
    samples_of,
)

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


_OF_OPERATIONS: Final = {
    "requests": counter("headwater_store_requests_total", "Requests, including retries."),
    "failures": counter("headwater_store_failures_total", "Requests that failed."),
    "retries": counter("headwater_store_retries_total", "Requests that repeated one."),
    "throttled": counter("headwater_store_throttled_total", "Requests that the store throttled."),
    "bytes_sent": counter("headwater_store_sent_bytes_total", "Bytes of objects that were sent."),
    "bytes_received": counter(
        "headwater_store_received_bytes_total", "Bytes of objects that were received."
    ),
    "latency_s": histogram("headwater_store_request_seconds", "One request."),
}
_COST: Final = counter(
    "headwater_store_cost_dollars_total", "Requests at list prices in US dollars: an estimate."
)


class StoreStats(Metrics):
    """The requests of one `Store` since it was opened."""

    internal = ("scheme", "operations")

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme
        self.operations: dict[str, OperationStats] = {}

    @classmethod
    def definitions(cls) -> tuple[MetricDefinition, ...]:
        return (*_OF_OPERATIONS.values(), _COST)

    def samples(self, labels: Labels, kinds: Iterable[MetricKind]) -> Iterator[Sample]:
        """By operation; and what they cost together."""
        # Copied: a request in another thread may add an operation.
        for operation, stats in self.operations.copy().items():
            labelled = labels_of({**dict(labels), "operation": operation})
            for attribute, definition in _OF_OPERATIONS.items():
                if definition.kind in kinds:
                    yield from samples_of(definition, labelled, getattr(stats, attribute))
        if _COST.kind in kinds:
            yield from samples_of(_COST, labels, self.cost_usd)

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
            for name, stats in self.operations.copy().items()
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
