"""A member of a group: reads its share of a stream's partitions and acknowledges.

    async with Consumer("s3://bucket/root", "orders", group="billing") as consumer:
        async for batch in consumer:
            process(batch.records)
            await consumer.ack(batch)

Always holds:

- a batch is delivered only while the claim of its partition can be relied on, without a request
  within a lease and after one look otherwise. What is acknowledged is fenced by the claim's epoch;
- after an error or a cancellation of `poll` no batch is passed over;
- acknowledgements are cumulative for each partition, and stored within ACK_WRITE_S, after
  ACKS_PER_DEQUEUE batches, by `flush`, before a partition is released, and by `close`. What was
  acknowledged and not stored is delivered again after a crash;
- a member that does not poll for `max_poll_interval_s` releases its partitions, and joins again at
  its next poll.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import socket
from types import TracebackType
from typing import Any, Final

from headwater.buffer.consumer.consumed_batch import ConsumedBatch
from headwater.buffer.consumer.delivery import OnBadBatch
from headwater.buffer.consumer.ownership import ProcessGuard, check_consumable
from headwater.buffer.consumer.positions import ReadBound, ReadBounds
from headwater.buffer.consumer.progress import ConsumerMetrics
from headwater.buffer.group.admin import GroupLag, partition_lag
from headwater.buffer.group.assignment import Assignment
from headwater.buffer.group.partition import ClaimedPartition, ReadingOptions
from headwater.buffer.group.register import GroupRegister
from headwater.buffer.group.sharing import (
    GroupClaims,
    begin_group,
    claim_timing,
    partition_names,
    resolve_lsn,
)
from headwater.buffer.layout import check_group_name
from headwater.buffer.stream import Stream
from headwater.buffer.stream.handle import NotOpen, check_source, explain_deletion, open_source
from headwater.buffer.stream.streams import resolve_stream
from headwater.core import runtime
from headwater.core.errors import Fenced, HeadwaterError, OutcomeUnknown, Refused, Unavailable
from headwater.core.limits import (
    ACK_WRITE_S,
    ACKS_PER_DEQUEUE,
    FOLLOW_POLL_CAP_S,
    GROUP_READ_AHEAD_BATCHES,
    MAX_POLL_INTERVAL_S,
    READ_AHEAD_BYTES,
    STREAM_LOOK_S,
)
from headwater.core.settings import seconds
from headwater.store import Store
from headwater.store.claimant import Claimant

_log: Final = logging.getLogger("headwater")


class GroupConsumer:
    """One member of a group. One task polls; others may acknowledge meanwhile."""

    def __init__(
        self,
        source: str | Store | Stream,
        name: str | None = None,
        group: str = "default",
        *,
        start: ReadBounds = None,
        on_bad_batch: OnBadBatch = "raise",
        fail_on_data_loss: bool = True,
        read_ahead_bytes: int = READ_AHEAD_BYTES,
        read_ahead_batches: int = GROUP_READ_AHEAD_BATCHES,
        collect: bool = True,
        heartbeat_s: float | None = None,
        session_timeout_s: float | None = None,
        max_poll_interval_s: float = MAX_POLL_INTERVAL_S,
    ) -> None:
        """A member of a group, which begins at `start` (default: "earliest") if it does not exist.

        `start` is an LSN, "earliest", "latest" or a time, or a mapping with one for each partition.
        With `fail_on_data_loss=False`, records that retention deleted before the group processed
        them are skipped with a warning; otherwise `poll` raises `Trimmed`. Reading ahead is bounded
        for each partition. A store that is given by its address is closed with the consumer.
        """
        check_source(source, name)
        self.group = check_group_name(group)
        self.metrics = ConsumerMetrics()
        self._source = source
        self._name = name
        self._start = start
        self._options = ReadingOptions(
            on_bad_batch, fail_on_data_loss, read_ahead_bytes, read_ahead_batches, FOLLOW_POLL_CAP_S
        )
        self._beats_s = heartbeat_s, session_timeout_s
        self._max_poll_interval_s = seconds("max_poll_interval_s", max_poll_interval_s)
        self._collect = collect
        parts: Any = NotOpen("consumer")
        self._register: GroupRegister = parts
        self._assignment: Assignment = parts
        self._claimant: Claimant = parts
        self._process: ProcessGuard = parts
        self._owned: Store | None = None
        self._upkeep: asyncio.Task[None] | None = None
        """Runs from the opening to the closing."""
        self._paused: set[int] = set()
        self._opening, self._polling, self._closing = (asyncio.Lock() for _ in range(3))
        self._polled_s = self._looked_s = 0.0
        self._error: Exception | None = None
        """What failed in the background; raised by the next call."""
        self._is_closed = self._is_over = False

    async def open(self) -> GroupConsumer:
        """Join the group; returns the consumer. May be repeated."""
        async with self._opening:
            if self._upkeep is None:
                async with open_source(self._source) as (found, owned):
                    stream = await resolve_stream(found, self._name, writing=True)
                    if stream is found:
                        # The handle may be older than the last partitions.
                        stream = await stream.reread()
                    check_consumable(stream, 0, self.group)
                    async with explain_deletion(stream):
                        await self._join(stream)
                self._owned = owned
                self._process = ProcessGuard("consumer")
                self._polled_s = self._looked_s = runtime.monotonic_s()
                self._upkeep = runtime.spawn(self._keep_up(), name="upkeep")
        self._check_open()
        return self

    async def _join(self, stream: Stream) -> None:
        timing = claim_timing(stream, *self._beats_s)
        idle_look_s = min(FOLLOW_POLL_CAP_S, timing.look_s)
        options = dataclasses.replace(self._options, idle_look_s=idle_look_s)
        options.delivery(stream, 0, ConsumerMetrics())  # refuses what is not valid
        register = GroupRegister(stream, self.group)
        await begin_group(register, self._start)
        claims = GroupClaims(register)
        assignment = Assignment(
            register, claims, options, self.metrics, drain_s=timing.lease_s, collect=self._collect
        )
        claimant = Claimant(
            claims,
            assignment,
            partition_names(range(stream.partitions)),
            host=socket.gethostname() if runtime.current().outside_allowed else "",
            timing=timing,
        )
        assignment.on_fenced = claimant.wake
        try:
            await claimant.start()
        except BaseException:
            await claimant.stop()
            raise
        self._register, self._assignment, self._claimant = register, assignment, claimant
        self.metrics.register(stream=stream.name, group=self.group)

    async def __aenter__(self) -> GroupConsumer:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except HeadwaterError as closing:
            if error is None:
                raise
            error.add_note(f"closing the consumer failed as well: {closing}")

    def __aiter__(self) -> GroupConsumer:
        return self

    async def __anext__(self) -> ConsumedBatch:
        batch = await self.poll()
        assert batch is not None  # without a timeout it waits
        return batch

    def __repr__(self) -> str:
        if self._upkeep is None:
            return f"<consumer of group {self.group!r}, not open>"
        return (
            f"<consumer of group {self.group!r} of {self.stream.name!r}, partitions "
            f"{sorted(self._assignment.partitions)}>"
        )

    @property
    def is_open(self) -> bool:
        """Whether it was opened, and not closed since."""
        return self._upkeep is not None and not self._is_over

    @property
    def stream(self) -> Stream:
        """The stream, with the partitions that it had when it was last looked at."""
        return self._register.stream

    @property
    def assignment(self) -> frozenset[int]:
        """The partitions that this member reads at present."""
        partitions = list(self._assignment.partitions.values())
        return frozenset(one.number for one in partitions if not one.is_draining)

    @property
    def member(self) -> str:
        """The id of this member in the group."""
        return self._claimant.member

    # Reading

    async def poll(self, timeout_s: float | None = None) -> ConsumedBatch | None:
        """The next batch of any partition; None if there is none within `timeout_s`.

        Without a timeout it waits until there is one. After an error or a cancellation, the next
        call delivers the same batch.
        """
        self._check_open()
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit, self._polling:
                try:
                    # Nothing after it waits: what it returns is delivered.
                    return await self._next()
                finally:
                    self._polled_s = runtime.monotonic_s()
        except TimeoutError:
            if not limit.expired():
                raise
            return None
        except OutcomeUnknown as error:
            # Of a heartbeat or a claim: the caller changed nothing, and the next poll looks.
            raise Unavailable(f"the group of this consumer cannot be read: {error}") from error

    async def _next(self) -> ConsumedBatch:
        while True:
            self._check_open()
            async with explain_deletion(self.stream):
                await self._claimant.ensure_current()
            self._check_open()
            self._assignment.see()
            ready = self._assignment.next_ready(self._paused)
            if ready is not None:
                return self._assignment.pop(ready)
            await self._assignment.changed(self._paused)

    # Acknowledging

    async def ack(self, batch: ConsumedBatch) -> None:
        """Acknowledge that everything of the batch's partition through this batch is processed.

        `Fenced` if another member reads the partition by now, so that it is delivered again.
        """
        self._check_open()
        one = self._assignment.partitions.get(batch.partition)
        if one is None:
            raise Fenced(
                f"batch {batch.sequence} of stream {self.stream.name!r}, partition "
                f"{batch.partition}: the partition moved to another member of group "
                f"{self.group!r}, which delivers again what was not acknowledged"
            )
        self._assignment.ack(one, batch)

    async def flush(self) -> None:
        """Store all acknowledgements. `Fenced` if some could not be stored any more."""
        self._check_open()
        await self._flush()

    async def _flush(self) -> None:
        await self._assignment.write()
        self._assignment.raise_lost_acks()

    # Positions

    async def seek(self, partition: int, where: ReadBound) -> None:
        """Read a partition from here on: an LSN, "earliest", "latest" or a time. Stored at once.

        What was delivered before and is not acknowledged needs no acknowledgement any more.
        """
        one = self._assigned(partition)
        async with explain_deletion(self.stream):
            lsn = await resolve_lsn(self.stream, partition, where)
        await self._assignment.fenced(one, one.seek(lsn))

    def pause(self, *partitions: int) -> None:
        """Deliver nothing of these partitions until `resume`. They stay this member's."""
        self._check_open()
        for partition in partitions:
            self.stream.check_partition(partition)
        self._paused.update(partitions)

    def resume(self, *partitions: int) -> None:
        """Deliver these partitions again; all of them if none is named."""
        self._check_open()
        self._paused.difference_update(partitions or list(self._paused))
        self._assignment.notify()

    async def position(self, partition: int) -> int:
        """The LSN of the record that is delivered next."""
        one = await self._taken(partition)
        assert one.next_lsn is not None
        return one.next_lsn

    async def committed(self, partition: int) -> int:
        """The first LSN that is not acknowledged, as stored."""
        return (await self._taken(partition)).committed_lsn

    async def lag(self) -> GroupLag:
        """What is not acknowledged in the partitions of this member."""
        self._check_open()
        numbers = sorted(self.assignment)
        taken = [await self._taken(number) for number in numbers]
        async with explain_deletion(self.stream):
            found = await asyncio.gather(
                *(partition_lag(self.stream, one.number, one.acked_lsn) for one in taken)
            )
        return GroupLag({one.partition: one for one in found})

    def _assigned(self, partition: int) -> ClaimedPartition:
        self._check_open()
        one = self._assignment.partitions.get(partition)
        if one is None or one.is_draining:
            self.stream.check_partition(partition)
            raise Refused(
                f"partition {partition} of stream {self.stream.name!r} is not assigned to this "
                f"member, which reads {sorted(self.assignment)}"
            )
        return one

    async def _taken(self, partition: int) -> ClaimedPartition:
        """A partition whose position is known."""
        one = self._assigned(partition)
        await self._assignment.fenced(one, one.take())
        return one

    # In the background

    async def _keep_up(self) -> None:
        """Store acknowledgements, look for new partitions, and leave if nothing polls."""
        assignment = self._assignment
        while True:
            await assignment.acked.wait(
                lambda: assignment.unwritten >= ACKS_PER_DEQUEUE, timeout_s=ACK_WRITE_S
            )
            try:
                await assignment.write()
                await self._look_at_stream()
                await self._leave_if_idle()
            except (Unavailable, OutcomeUnknown) as error:
                _log.debug("group %r of %r: %s", self.group, self.stream.name, error)
            except Exception as error:
                self._error = error
                assignment.notify()

    async def _look_at_stream(self) -> None:
        now_s = runtime.monotonic_s()
        if now_s - self._looked_s < STREAM_LOOK_S:
            return
        self._looked_s = now_s
        stream = await self.stream.reread()
        if stream.partitions > self.stream.partitions:
            self._register.stream = stream
            self._claimant.set_names(partition_names(range(stream.partitions)))

    async def _leave_if_idle(self) -> None:
        idle_s = runtime.monotonic_s() - self._polled_s
        if self._polling.locked() or idle_s < self._max_poll_interval_s:
            return
        if self._claimant.is_running:
            _log.warning(
                "group %r of stream %r: no poll for %.0f s: this member releases its partitions "
                "and joins again at the next poll (max_poll_interval_s is %g)",
                self.group,
                self.stream.name,
                idle_s,
                self._max_poll_interval_s,
            )
            await self._claimant.leave()

    # Closing

    async def close(self) -> None:
        """Store all acknowledgements, and leave the group. May be called twice.

        After an error, such as `Fenced`, the last acknowledgements were not stored; the consumer is
        closed anyway. Does nothing if the consumer is not open.
        """
        if self._upkeep is None or self._process.is_left:
            return
        self._is_closed = True
        self._assignment.notify()
        async with self._closing:
            if not self._is_over:
                await self._end()

    async def _end(self) -> None:
        self._assignment.is_closing = True
        self._assignment.acked.notify()
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.wait((self._upkeep,))
        try:
            await self._flush()
        finally:
            await self._leave()
            self._is_over = True
            await self._assignment.close()
            if self._owned is not None:
                await self._owned.close()

    async def _leave(self) -> None:
        try:
            await self._claimant.leave(for_good=True)
        except HeadwaterError as error:
            _log.warning(
                "group %r of stream %r: leaving failed, so the others take over after the session "
                "timeout: %s",
                self.group,
                self.stream.name,
                error,
            )

    def _check_open(self) -> None:
        self._process.check()
        if self._is_closed:
            raise Refused(f"this consumer of {self.stream.name!r} is closed: open another")
        error, self._error = self._error, None
        if error is not None:
            raise error
