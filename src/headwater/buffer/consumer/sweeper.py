"""Garbage collection beside a consumer: a pass now and then, for as long as the consumer lives."""

from __future__ import annotations

import asyncio
import logging
import math
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, Final

from headwater.buffer.consumer.metrics import ConsumerMetrics
from headwater.buffer.queue.contract import Collector, Retention
from headwater.core import runtime
from headwater.core.errors import Refused

_log: Final = logging.getLogger("headwater")


class Sweeper:
    """Runs the collector every `interval_s`. Holds its owner weakly, and ends with it.

    A task that held the consumer would keep alive what nobody has any more, and collect for
    ever on its behalf.
    """

    def __init__(
        self,
        collector: Collector,
        retention: Callable[[], Awaitable[Retention]],
        metrics: ConsumerMetrics,
        *,
        interval_s: float,
    ) -> None:
        _check_interval(interval_s)
        self._collector = collector
        self._retention = retention
        self._metrics = metrics
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None
        self._is_failing = False
        """Whether the last pass failed: of several in a row the first is told."""

    def start(self, owner: object) -> None:
        """Begin; the first pass comes after one interval."""
        self._task = runtime.spawn(self._run(weakref.ref(owner)), name="garbage collection")

    def stop(self) -> None:
        """End without waiting for it."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """End, and wait until a pass under way has ended."""
        self.stop()
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def _run(self, owner: weakref.ref[object]) -> None:
        while True:
            await runtime.sleep(self._interval_s)
            # A pass is bounded. Were one enough for an interval, whoever appends faster than that
            # would fill the store for ever.
            while owner() is not None and await self._sweep():
                pass
            if owner() is None:
                return

    async def _sweep(self) -> bool:
        """Whether there is more to do at once."""
        started_s = runtime.monotonic_s()
        try:
            done = await self._collector.collect(await self._retention())
        except Exception as error:
            # Whatever a pass could not do, the next one does: it must not end the consumer, and
            # not the passes after it. Who watches sees it in the metrics; a query of Spark's has
            # nobody who does, and its store would fill up unseen.
            self._metrics.gc_passes_failed += 1
            self._metrics.gc_last_error = f"{type(error).__name__}: {error}"
            if not self._is_failing:
                _log.warning(
                    "a pass of the collector failed, and is tried again every %g s: %s",
                    self._interval_s,
                    self._metrics.gc_last_error,
                )
            self._is_failing = True
            return False
        self._is_failing = False
        self._metrics.collected(done, runtime.monotonic_s() - started_s)
        return done.is_cut_short


def _check_interval(given: Any) -> None:
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not 0 < given < math.inf:
        raise Refused(
            f"gc_interval_s is {given!r}: a number of seconds above 0; gc=False runs no passes"
        )
