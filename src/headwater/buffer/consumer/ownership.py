"""Ownership of a partition: the acknowledged frontier, and the garbage collection beside it."""

from __future__ import annotations

import asyncio
import logging
import shlex
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final

import msgspec

from headwater.buffer.consumer.dead_letter import write_dead_letter
from headwater.buffer.consumer.progress import ConsumerMetrics
from headwater.buffer.layout import check_group_name
from headwater.buffer.queue.contract import (
    Collector,
    Descriptor,
    QueueConsumer,
    Retention,
    Uncounted,
)
from headwater.buffer.stream import Stream, open_stream
from headwater.buffer.stream.handle import explain_deletion
from headwater.buffer.transaction.holds import active_holds
from headwater.core import runtime
from headwater.core.errors import Fenced, HeadwaterError, LimitExceeded, Refused
from headwater.core.limits import ACKS_PER_DEQUEUE, GC_INTERVAL_S, UNACKED_MAX_BATCHES
from headwater.core.portal import call_in_child
from headwater.core.settings import seconds


class TakenOver(Fenced):
    """Another consumer was opened; the message says by which group, and when."""

    def __init__(self, message: str, *, group: str = "", by: str = "") -> None:
        super().__init__(message)
        self.group = group
        """Whose ownership it was."""
        self.by = by
        """The group that has it; the same one if it was opened once more; empty if not known."""


class Ownership:
    """Owns a partition without reading it: for planners that let other processes fetch."""

    def __init__(
        self,
        stream: Stream,
        partition: int,
        group: str,
        queue_consumer: QueueConsumer,
        sweeper: Sweeper | None,
    ) -> None:
        """Use `Ownership.open`."""
        self.stream = stream
        self.partition = partition
        self.group = group
        self._queue_consumer = queue_consumer
        self._sweeper = sweeper
        self._process = ProcessGuard("ownership")
        self._calling = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        stream: Stream,
        partition: int,
        group: str,
        *,
        take_over: bool = False,
        acked_through: int | None = None,
        gc: bool = True,
        gc_interval_s: float = GC_INTERVAL_S,
    ) -> Ownership:
        """Become the owner, and fence the previous one.

        `acked_through` also acknowledges through that batch. `Refused` if another group owns the
        partition and `take_over` is false, or if nodes consume the stream.
        """
        check_consumable(stream, partition, group)
        queue_consumer = stream.queue_consumer(partition)
        metrics = ConsumerMetrics(queue_consumer.counters)
        metrics.register(stream=stream.name, partition=partition, group=group)
        sweeper = None
        if gc:
            collector = stream.collector(partition)
            retention = partial(retention_of, stream)
            sweeper = Sweeper(collector, retention, metrics, interval_s=gc_interval_s)
        async with explain_deletion(stream):
            await queue_consumer.open(group, take_over=take_over, last_acked_sequence=acked_through)
        ownership = cls(stream, partition, group, queue_consumer, sweeper)
        if sweeper is not None:
            sweeper.start(ownership)
        return ownership

    def __repr__(self) -> str:
        return f"<{self.group!r} owns {self.stream.name}/{self.partition}, epoch {self.epoch}>"

    @property
    def epoch(self) -> int:
        """The epoch of this opening. Each opening gets a higher one."""
        return self._queue_consumer.epoch

    async def check(self) -> None:
        """Raise `TakenOver` unless this is still the owner."""
        await self._call(self._queue_consumer.check_fence)

    async def acknowledge(self, sequence: int) -> None:
        """Acknowledge every batch through this one; a lower one than before changes nothing."""
        await self._call(lambda: self._queue_consumer.dequeue(sequence))

    async def give_up(self, error: Uncounted) -> None:
        """Continue without a batch that cannot be counted. Its dead letter is written first."""
        lost = error.descriptor
        await self.check()
        cause = f"{type(error).__name__}: {error}"
        letter = await write_dead_letter(self.stream, self.partition, lost, cause)
        await self._call(lambda: self._queue_consumer.give_up(lost.sequence, rows=letter.rows))

    async def close(self) -> None:
        """Stop collecting. Acknowledges nothing; the ownership stays until another one opens."""
        if self._sweeper is not None and not self._process.is_left:
            await self._sweeper.close()

    async def _call(self, request: Callable[[], Awaitable[None]]) -> None:
        self._process.check()
        async with self._calling:
            try:
                async with explain_deletion(self.stream):
                    await request()
            except Fenced as error:
                if self._sweeper is not None:
                    self._sweeper.stop()  # the successor collects
                raise await self._taken_over(error) from error

    async def _taken_over(self, error: Fenced) -> TakenOver:
        try:
            state = await self.stream.queue_reader(self.partition).state()
        except HeadwaterError:
            # The new owner cannot be read now, but there certainly is one.
            return TakenOver(
                f"stream {self.stream.name!r}, partition {self.partition}: another consumer was "
                f"opened and fenced this one of group {self.group!r} (epoch {self.epoch})",
                group=self.group,
            )
        at = runtime.utc_text(state.opened_ms, "milliseconds")
        when = f" at {at}" if state.opened_ms else ""
        return TakenOver(
            f"stream {self.stream.name!r}, partition {self.partition}: group {state.group!r} "
            f"opened the consumer{when} (epoch {state.epoch}) and fenced this one of group "
            f"{self.group!r} (epoch {self.epoch})",
            group=self.group,
            by=state.group,
        )


class Frontier:
    """The acknowledgements of one consumer.

    Always holds: the frontier moves forward only, over delivered batches, in order. It moves after
    the dequeue, so an error changes nothing and the same call can be repeated. The number of
    delivered batches that are not acknowledged is bounded, so that a caller that never acknowledges
    gets an error before the memory is full.
    """

    def __init__(self, position: int | None) -> None:
        self.last_acked: int | None = position
        self.last_handed_out: int | None = position
        self._unacked: deque[Descriptor] = deque()
        self._undequeued: list[Descriptor] = []

    @property
    def oldest_unacked(self) -> Descriptor | None:
        """The oldest delivered batch that is not acknowledged."""
        return self._unacked[0] if self._unacked else None

    @property
    def undequeued(self) -> list[Descriptor]:
        """Batches that are acknowledged here and still pending in the queue."""
        return self._undequeued

    @property
    def is_due(self) -> bool:
        """Whether the next acknowledgement writes to the queue."""
        return len(self._undequeued) + 1 >= ACKS_PER_DEQUEUE

    def room(self) -> int:
        """How many batches can be delivered; `LimitExceeded` if none."""
        left = UNACKED_MAX_BATCHES - len(self._unacked)
        if left < 1:
            raise LimitExceeded(
                f"{len(self._unacked):,} delivered batches are not acknowledged; "
                f"UNACKED_MAX_BATCHES is {UNACKED_MAX_BATCHES:,}. Acknowledge what was processed "
                "(ack, ack_through); to read without acknowledging, follow the stream (Follower) "
                "or read it (headwater.read)"
            )
        return left

    def note_delivered(self, descriptors: Iterable[Descriptor]) -> None:
        """Note that these batches were delivered."""
        for descriptor in descriptors:
            # Without bytes: it may wait long for its acknowledgement.
            waiting = msgspec.structs.replace(descriptor, inline=None, metadata=None, calls=b"")
            self._unacked.append(waiting)
            self.last_handed_out = descriptor.sequence

    def check_next(self, sequence: int) -> None:
        """Refuse an acknowledgement that does not follow the one before it."""
        expected = 0 if self.last_acked is None else self.last_acked + 1
        if sequence != expected:
            raise Refused(f"out-of-order ack: expected sequence {expected}, got {sequence}")
        self._check_handed_out("ack", sequence)

    def check_through(self, sequence: int) -> None:
        """Refuse a batch that is acknowledged already, or was not delivered."""
        if self.last_acked is not None and sequence <= self.last_acked:
            raise Refused(
                f"non-monotonic ack_through: last_acked={self.last_acked}, requested={sequence}"
            )
        self._check_handed_out("ack_through", sequence)

    def advance(self, sequence: int) -> int:
        """Acknowledge through this sequence, and return the number of batches."""
        count = 0
        while self._unacked and self._unacked[0].sequence <= sequence:
            self._undequeued.append(self._unacked.popleft())
            count += 1
        self.last_acked = sequence
        return count

    def settle(self) -> None:
        """Note that the queue has every acknowledgement."""
        self._undequeued.clear()

    def _check_handed_out(self, verb: str, sequence: int) -> None:
        if self.last_handed_out is None or sequence > self.last_handed_out:
            last = "nothing" if self.last_handed_out is None else f"{self.last_handed_out} the last"
            raise Refused(
                f"{verb} of sequence {sequence}, beyond what was handed out ({last}): only what "
                "was delivered can be acknowledged"
            )


class ProcessGuard:
    """Refuses to work in a forked child of the process that created it.

    A child has a copy of every position: parent and child would read the same batches, and each
    would acknowledge what the other has not processed.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self.is_left = False
        """Whether this is a forked child."""
        call_in_child(self._begin_in_child)

    def check(self) -> None:
        """Raise `Refused` in a forked child."""
        if self.is_left:
            raise Refused(
                f"this {self._what} was opened before the process forked: open one in the child"
            )

    def _begin_in_child(self) -> None:
        self.is_left = True


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
