"""Garbage collection beside a consumer, and the retention that it applies."""

from __future__ import annotations

import asyncio
import logging
import shlex
import weakref
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from headwater.buffer.consumer.metrics import ConsumerMetrics
from headwater.buffer.layout import check_group_name
from headwater.buffer.queue.contract import Collector, Retention
from headwater.buffer.stream import Stream, open_stream
from headwater.buffer.transaction.holds import active_holds
from headwater.core import runtime
from headwater.core.errors import Refused
from headwater.core.settings import seconds

_log: Final = logging.getLogger("headwater")


class Sweeper:
    """Runs the collector every `interval_s`, until its owner is garbage-collected.

    It has a weak reference to the owner: a strong one would keep an abandoned consumer alive.
    """

    def __init__(
        self,
        collector: Collector,
        retention: Callable[[], Awaitable[Retention]],
        metrics: ConsumerMetrics,
        *,
        interval_s: float,
    ) -> None:
        self._collector = collector
        self._retention = retention
        self._metrics = metrics
        self._interval_s = seconds("gc_interval_s", interval_s)
        self._task: asyncio.Task[None] | None = None
        self._is_failing = False
        """Whether the last pass failed: only the first of several failures is logged."""

    def start(self, owner: object) -> None:
        """Start. The first pass comes after one interval."""
        self._task = runtime.spawn(self._run(weakref.ref(owner)), name="garbage collection")

    def stop(self) -> None:
        """Stop, without waiting for a running pass."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stop, and wait for a running pass."""
        self.stop()
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def _run(self, owner: weakref.ref[object]) -> None:
        while True:
            await runtime.sleep(self._interval_s)
            # Passes are bounded: with one pass per interval, fast producers would fill the store.
            while owner() is not None and await self._sweep():
                pass
            if owner() is None:
                return

    async def _sweep(self) -> bool:
        """Run a pass. Returns whether there is more to collect."""
        started_s = runtime.monotonic_s()
        try:
            done = await self._collector.collect(await self._retention())
        except Exception as error:
            # The next pass repeats the work, so an error must not end the consumer or the sweeper.
            # It is in the metrics, and logged because nobody watches the metrics of a Spark query.
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


def check_consumable(stream: Stream, partition: int, group: str) -> Stream:
    """The stream itself; `Refused` if nodes consume it, or for an invalid partition or group."""
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
    """The stream's current retention, and what its open transactions hold.

    `Refused` if another stream has the name now: its retention does not apply to this one.
    """
    current = await open_stream(stream.store, stream.name)
    if current.id != stream.id:
        raise Refused(f"stream {stream.name!r} was deleted and created again since it was opened")
    retention = current.retention()
    if current.config.format == "v1":
        return retention
    holds = await active_holds(current, retention.grace_ms)
    return msgspec.structs.replace(
        retention, hold_below=holds.below, keep_producers=holds.producers
    )
