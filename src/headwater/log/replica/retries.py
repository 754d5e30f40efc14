"""Pauses of a replica between one try and the next: they grow, and are no two alike."""

from __future__ import annotations

from headwater.core import limits, runtime
from headwater.core.errors import Fenced, HeadwaterError
from headwater.log.replica.errors import LogGap
from headwater.log.replica.metrics import ReplicaMetrics


class Retries:
    """How often it failed in a row."""

    def __init__(self, metrics: ReplicaMetrics, *, cap_s: float) -> None:
        self.failures = 0
        self._metrics = metrics
        self._cap_s = cap_s

    def count(self, error: HeadwaterError) -> bool:
        """It failed again; whether it is the first time in a row."""
        self.failures += 1
        self._metrics.retries[type(error).__name__] += 1
        self._metrics.fenced += isinstance(error, Fenced)
        self._metrics.gaps += isinstance(error, LogGap)
        return self.failures == 1

    async def pause(self) -> None:
        """Before the next try."""
        longest_s = limits.REPLICA_RETRY_BASE_S * 2 ** min(self.failures - 1, 20)
        await runtime.sleep(runtime.random().uniform(0.5, 1.0) * min(longest_s, self._cap_s))
