"""The partitions that one member of a group reads at present: claimed, drained, released, lost.

Always holds:

- a partition is released after what was delivered of it was acknowledged or a lease has passed,
  and after its acknowledgements were stored;
- partitions take turns, and all of them read on while one is delivered;
- an acknowledgement that could not be stored any more is reported by the next `flush`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final, TypeVar

from headwater.buffer.consumer.consumed_batch import ConsumedBatch
from headwater.buffer.consumer.ownership import Sweeper, retention_of
from headwater.buffer.consumer.progress import ConsumerMetrics
from headwater.buffer.group.partition import ClaimedPartition, ReadingOptions
from headwater.buffer.group.record import GroupEpoch
from headwater.buffer.group.register import GroupRegister
from headwater.buffer.group.sharing import GroupClaims
from headwater.core import runtime
from headwater.core.errors import Fenced
from headwater.core.limits import GC_INTERVAL_S

T = TypeVar("T")

FENCED_PAUSE_S: Final = 1.0
"""By then the claims have been looked at."""


class Assignment:
    """The `ClaimUser` of a consumer, and its partitions."""

    def __init__(
        self,
        register: GroupRegister,
        claims: GroupClaims,
        options: ReadingOptions,
        metrics: ConsumerMetrics,
        *,
        drain_s: float,
        collect: bool,
    ) -> None:
        self.partitions: dict[int, ClaimedPartition] = {}
        """In the order of their turns."""
        self.unwritten = 0
        """Batches that were acknowledged since acknowledgements were last stored."""
        self.acked = runtime.Waiters()
        """Notified after each acknowledgement."""
        self.is_closing = False
        """Whether no drain waits for acknowledgements any more."""
        self._register = register
        self._claims = claims
        self._options = options
        self._metrics = metrics
        self._drain_s = drain_s
        self._collects = collect
        self._ended: set[ClaimedPartition] = set()
        """Partitions that are over, whose requests may be under way."""
        self._sweepers: dict[int, Sweeper] = {}
        self._lost_acks: Fenced | None = None
        self.on_fenced: Callable[[], None] = lambda: None
        """Called when a later epoch was met: the claims are to be looked at."""
        self._changed = runtime.Waiters()
        self._has_changed = False

    # What the claimant says

    def on_claimed(self, claimed: Mapping[str, int]) -> None:
        """Read these partitions from now on."""
        record = self._claims.record
        assert record is not None
        for number in map(int, claimed):
            epoch = record.claim_of(number)
            assert epoch is not None
            self._add(number, epoch)
        self.notify()

    async def on_release(self, names: frozenset[str]) -> None:
        """Deliver nothing more of these, wait for acknowledgements, and store them."""
        leaving = [self.partitions[int(name)] for name in names if int(name) in self.partitions]
        for one in leaving:
            one.drain()
        await self.acked.wait(
            lambda: self.is_closing or all(one.is_drained for one in leaving),
            timeout_s=self._drain_s,
        )
        await self.write(leaving)

    def on_lost(self, names: frozenset[str]) -> None:
        """Forget these partitions."""
        for number in map(int, names):
            one = self.partitions.get(number)
            if one is not None:
                self._drop(one, one.moved_error())

    # Reading

    def next_ready(self, paused: Collection[int]) -> ClaimedPartition | None:
        """Let every partition read on, and return the one whose turn it is."""
        chosen = None
        for one in list(self.partitions.values()):
            if one.number in paused:
                continue
            one.advance()
            if one.error is not None:
                self._raise_error(one)
            elif chosen is None and one.is_ready:
                chosen = one
        return chosen

    def pop(self, one: ClaimedPartition) -> ConsumedBatch:
        """The next batch of a partition that is ready, whose next turn comes last."""
        batch = one.pop()
        # In turn: otherwise only a busy partition would be read.
        self.partitions[one.number] = self.partitions.pop(one.number)
        self._note_waiting()
        return batch

    def _raise_error(self, one: ClaimedPartition) -> None:
        error, one.error = one.error, None
        assert error is not None
        if not isinstance(error, Fenced):
            raise error
        self._fence(one, error)  # another member has it: nothing is wrong

    async def changed(self, paused: Collection[int]) -> None:
        """Wait until a partition has something, or is to be looked at."""
        now_s = runtime.monotonic_s()
        due = [
            one.due_s - now_s
            for one in self.partitions.values()
            if one.is_waiting and one.number not in paused
        ]
        idle_s = max(0.0, min([self._options.idle_look_s, *due]))
        await self._changed.wait(lambda: self._has_changed, timeout_s=idle_s)

    def notify(self) -> None:
        """A poll may find something new."""
        self._has_changed = True
        self._changed.notify()

    def see(self) -> None:
        """Everything until now is seen: `changed` waits for the next change."""
        self._has_changed = False

    # Acknowledging

    def ack(self, one: ClaimedPartition, batch: ConsumedBatch) -> None:
        """Acknowledge a partition through a batch."""
        count = one.ack(batch)
        self._metrics.acks += count
        self.unwritten += count
        self._note_waiting()
        self.acked.notify()

    async def write(self, partitions: Iterable[ClaimedPartition] | None = None) -> None:
        """Store the acknowledgements of these partitions, all at once."""
        chosen = list(self.partitions.values() if partitions is None else partitions)
        waiting = [one for one in chosen if one.unwritten]
        self.unwritten = 0
        done = await asyncio.gather(*(one.write() for one in waiting), return_exceptions=True)
        errors = []
        for one, error in zip(waiting, done, strict=True):
            if isinstance(error, Fenced):
                self._fence(one, error)
            elif error is not None:
                errors.append(error)
        if errors:
            raise errors[0]

    def raise_lost_acks(self) -> None:
        """Raise once that acknowledgements could not be stored any more."""
        lost, self._lost_acks = self._lost_acks, None
        if lost is not None:
            raise lost

    async def fenced(self, one: ClaimedPartition, request: Awaitable[T]) -> T:
        """The answer of a request; a partition that is fenced is dropped."""
        try:
            return await request
        except Fenced as error:
            self._fence(one, error)
            raise

    def _note_waiting(self) -> None:
        times = [one.waiting_since_ms for one in self.partitions.values()]
        known = [time for time in times if time is not None]
        self._metrics.waiting_since_ms = min(known, default=None)

    # Ending

    async def close(self) -> None:
        """End all partitions, and wait for what is under way."""
        for one in list(self.partitions.values()):
            self._drop(one, Fenced("closed"))
        for one in list(self._ended):
            await one.close()
        sweepers, self._sweepers = self._sweepers, {}
        for sweeper in sweepers.values():
            await sweeper.close()

    def _add(self, number: int, epoch: GroupEpoch) -> ClaimedPartition:
        one = ClaimedPartition(
            self._register.stream,
            self._register,
            number,
            epoch,
            options=self._options,
            metrics=self._metrics,
            notify=self.notify,
        )
        self.partitions[number] = one
        self._start_sweeper(one)
        return one

    def _fence(self, one: ClaimedPartition, error: Fenced) -> None:
        """A later epoch has the partition. The next look says so, too.

        If it does not, the group's register went back. Then taking the partition once more finds
        that out, and no partition is left unread in silence.
        """
        is_read = self.partitions.get(one.number) is one and not one.is_draining
        self._drop(one, error)
        if is_read:
            self._add(one.number, one.epoch).due_s += FENCED_PAUSE_S
            self.on_fenced()

    def _drop(self, one: ClaimedPartition, error: Fenced) -> None:
        if self.partitions.get(one.number) is one:
            del self.partitions[one.number]
            if one.unwritten:
                self._lost_acks = error
            sweeper = self._sweepers.pop(one.number, None)
            if sweeper is not None:
                sweeper.stop()
        one.abandon()
        self._ended = {old for old in self._ended if old.is_closing} | {one}
        self._note_waiting()
        self.acked.notify()
        self.notify()

    def _start_sweeper(self, one: ClaimedPartition) -> None:
        if self._collects:
            stream = self._register.stream
            sweeper = Sweeper(
                stream.collector(one.number),
                partial(retention_of, stream),
                self._metrics,
                interval_s=GC_INTERVAL_S,
            )
            sweeper.start(one)
            self._sweepers[one.number] = sweeper
