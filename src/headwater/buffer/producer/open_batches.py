"""The open batches: one for each partition, and one for calls whose keys are not hashed yet.

It also has the clock that gives small calls their ingestion time.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

import pyarrow as pa

from headwater.buffer.producer.config import Settings
from headwater.buffer.producer.record_batch import OpenBatch, ProducerBatch, UnroutedBatch
from headwater.core import limits, runtime
from headwater.core.errors import Bug
from headwater.core.portal import Portal

BURST_CALLS: Final = 16
UNROUTED_ROWS: Final = 8192
UNROUTED_BYTES: Final = limits.MIB
BATCH_ROWS: Final = limits.BATCH_MAX_CALLS
"""So that a batch never has more calls, or more records, than it may."""


class Drained(NamedTuple):
    """What happened since the sender came last."""

    begun: list[OpenBatch]
    routed: list[UnroutedBatch]
    sealed: list[ProducerBatch]
    lost: list[ProducerBatch]
    """Batches that failed before they had a partition."""


class OpenBatches:
    """Begins, seals and routes batches, and counts what they hold.

    For callers that hold the accumulator's lock.
    """

    def __init__(self, settings: Settings, partitions: int, portal: Portal | None) -> None:
        self._portal = portal
        self._clock = runtime.current()
        self.partitions = partitions
        self.batch_bytes = settings.batch_bytes
        self.by_key = partitions > 1 and settings.partitioner == "key"
        self.rotates = partitions > 1 and not self.by_key
        """Whether every call takes the next partition."""
        self.turn = 0
        """The partition of records that may go to any."""
        self._open: list[ProducerBatch | None] = [None] * partitions
        self.current: OpenBatch | None = None
        """Where small calls go: a partition's batch, or the unrouted one if keys decide."""
        self.current_bytes, self.current_rows = self.batch_bytes, BATCH_ROWS
        if self.by_key:
            self.current_bytes = min(UNROUTED_BYTES, self.batch_bytes)
            self.current_rows = UNROUTED_ROWS
        self.drained = Drained([], [], [], [])
        self.is_stirred = False
        """Whether `drained` has something for the sender."""
        self.incomplete: dict[ProducerBatch, None] = {}
        """Sealed batches without a result, in the order of sealing."""
        self.held_bytes = 0
        self.held_calls = 0

    def count(self, batch: OpenBatch, size_bytes: int, calls: int) -> None:
        """Count what was added to a batch, or released."""
        batch.size_bytes += size_bytes
        batch.calls += calls
        self.held_bytes += size_bytes
        self.held_calls += calls

    @property
    def pending_rows(self) -> int:
        """Records whose handles have no result."""
        unrouted = self.current.rows if isinstance(self.current, UnroutedBatch) else 0
        batches = [*filter(None, self._open), *self.incomplete]
        return unrouted + sum(batch.rows for batch in batches)

    def next_current(self, size: int, rows: int) -> OpenBatch:
        """The batch for a small call of this size, if any partition will do."""
        if not self.by_key:
            self.current = batch = self.batch(self.take_turn(), None, size, rows)
            return batch
        unrouted = self.current
        if unrouted is not None and (
            unrouted.size_bytes + size > self.current_bytes
            or unrouted.rows + rows > self.current_rows
        ):
            self.route()
            unrouted = None
        if unrouted is None:
            first_s = self._clock.monotonic_s()
            self.current = unrouted = UnroutedBatch(None, first_s, self._portal)
            self._begin(unrouted)
        return unrouted

    def take_turn(self) -> int:
        turn = self.turn
        if self.rotates:
            self.turn = (turn + 1) % self.partitions
        return turn

    def batch(
        self,
        partition: int,
        shape: pa.Schema | None,
        size: int,
        rows: int,
        first_s: float | None = None,
    ) -> ProducerBatch:
        """The partition's open batch, if records of this shape and size still fit, or a new one."""
        batch = self._open[partition]
        if batch is not None and (
            batch.size_bytes + size > self.batch_bytes
            or batch.rows + rows > BATCH_ROWS
            or not (batch.shape is shape or (batch.shape and shape and batch.shape == shape))
        ):
            self.seal(batch)
            batch = None
        if batch is None:
            began_s = self._clock.monotonic_s() if first_s is None else first_s
            batch = ProducerBatch(shape, began_s, self._portal, partition=partition)
            self._open[partition] = batch
            self._begin(batch)
        return batch

    def _begin(self, batch: OpenBatch) -> None:
        self.drained.begun.append(batch)
        self.is_stirred = True

    def finish(self, batch: OpenBatch) -> None:
        """Seal the batch of a partition, or route an unrouted one."""
        if isinstance(batch, ProducerBatch):
            self.seal(batch)
        else:
            self.route()

    def seal(self, batch: ProducerBatch) -> None:
        if self.current is batch:
            self.current = None
        if self.by_key and batch.partition == self.turn:
            # As in Kafka's producer: records without a key stay with a partition for a batch.
            self.turn = (self.turn + 1) % self.partitions
        batch.is_sealed = True
        batch.sealed_s = self._clock.monotonic_s()
        self._open[batch.partition] = None
        self.drained.sealed.append(batch)
        self.incomplete[batch] = None
        self.is_stirred = True

    def route(self) -> None:
        """Move unrouted records to the batches of their partitions."""
        unrouted = self.current
        if not isinstance(unrouted, UnroutedBatch):
            return
        self.current = None
        self.held_bytes -= unrouted.size_bytes
        try:
            shares = unrouted.split(self.partitions, self.turn)
        except Exception as error:
            self._lose(unrouted, error)
            return
        largest = max(share.records.num_rows for share, _ in shares)
        for share, calls in shares:
            size = share.records.nbytes + sum(map(len, filter(None, calls.metadata)))
            rows = share.records.num_rows
            assert share.partition is not None
            batch = self.batch(share.partition, None, size, rows, unrouted.first_s)
            unrouted.route(share.rows, batch)
            batch.begin_calls(calls)
            batch.add_columns(share.records)
            self.count(batch, size, 0)
            if rows == largest:
                # Calls are spread over partitions and counted once: in the largest share.
                batch.calls += unrouted.calls
                unrouted.calls = 0
            if batch.size_bytes >= self.batch_bytes:
                self.seal(batch)
        self._close_unrouted(unrouted)

    def _lose(self, unrouted: UnroutedBatch, error: Exception) -> None:
        """Fail the handles of records that could not be split, or they would wait without end."""
        batch = ProducerBatch(None, unrouted.first_s, None, partition=0)
        unrouted.route(None, batch)
        batch.rows = unrouted.rows
        batch.fail(Bug(f"{batch.rows} records could not be split by partition: {error!r}"))
        self.held_calls -= unrouted.calls
        self.drained.lost.append(batch)
        self._close_unrouted(unrouted)

    def _close_unrouted(self, unrouted: UnroutedBatch) -> None:
        unrouted.close()
        self.drained.routed.append(unrouted)
        self.is_stirred = True

    def seal_all(self) -> None:
        self.route()
        for batch in self._open:
            if batch is not None:
                self.seal(batch)


class CallClock:
    """The time of small calls, which is read once for a burst of them.

    Reading it would be a quarter of what a call of one record costs. A burst begins where calls
    follow each other within a millisecond. It ends after BURST_CALLS, when the accumulator closes
    its window, and when the event loop gets its turn. Calls from other threads may come after any
    pause, so each of them reads the time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop
        self._wall_ms = runtime.current().wall_ms
        self._is_ending = False
        self.now_ms = 0
        self.calls_left = 0
        """Calls that may use `now_ms`."""

    def read(self) -> int:
        """The time now; begins a burst if the last time was just before."""
        before_ms, self.now_ms = self.now_ms, self._wall_ms()
        if self._loop is not None and 0 <= self.now_ms - before_ms <= 1:
            self.calls_left = BURST_CALLS
            if not self._is_ending:
                self._is_ending = True
                self._loop.call_soon(self._end_burst)
        return self.now_ms

    def _end_burst(self) -> None:
        self.calls_left, self._is_ending = 0, False
