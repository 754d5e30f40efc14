"""Garbage collection beside a consumer, and the retention that it applies."""

from __future__ import annotations

import asyncio
import logging
import math
import shlex
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from headwater.buffer.consumer.metrics import ConsumerMetrics
from headwater.buffer.layout import check_group_name
from headwater.buffer.queue.contract import Collector, Retention
from headwater.buffer.stream import Stream, open_stream
from headwater.buffer.transaction.expiry import active_holds
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


# Whether a stream may be consumed by whoever asks, and how long it keeps what was.


def check_consumable(stream: Stream, partition: int, group: str) -> Stream:
    """The stream itself; `Refused` if a query may not consume it so."""
    check_group_name(group)
    stream.check_partition(partition)
    if stream.config.consumer == "nodes":
        raise Refused(
            f"stream {stream.name!r} is consumed by nodes, and a query reads their log. To consume "
            f"it here: headwater stream alter {shlex.quote(stream.store.url)} {stream.name} "
            "--set consumer=query"
        )
    return stream


async def retention_of(stream: Stream) -> Retention:
    """How long the stream keeps what is acknowledged, as it says at this moment, and from which
    upload on open transactions hold the collector back.

    `Refused` if there is another stream of this name by now: its retention is not this one's.
    """
    current = await open_stream(stream.store, stream.name)
    if current.id != stream.id:
        raise Refused(f"stream {stream.name!r} was deleted and made again since it was opened")
    retention = current.retention()
    if current.config.format == "v1":
        return retention
    kept = await active_holds(current, retention.grace_ms)
    return msgspec.structs.replace(retention, hold_below=kept.below, keep_producers=kept.producers)
